"""Means over seeds and over questions, shares of seeds, and differences, with intervals (pure)."""

import math
from collections.abc import Callable, Sequence
from functools import cache
from statistics import NormalDist

import numpy as np
from mpmath import betainc
from numpy.typing import ArrayLike, NDArray

from openrlhf_cov.analysis.regression import student_quantile
from openrlhf_cov.evaluation.scores import RESAMPLES, bootstrap_means
from openrlhf_cov.utils.estimates import LEVEL, SEED, Interval, interval_of

# Seeds below which there is no interval.
FEWEST = 2
# Differences of shares and entropies that are equal as fractions differ by less than this in float64.
ROUNDING = 1e-12
# Lowest and highest possible value of a number.
Bounds = tuple[float, float]
UNBOUNDED: Bounds = (-math.inf, math.inf)
SHARE: Bounds = (0.0, 1.0)
PERCENT: Bounds = (0.0, 100.0)
CORRELATION: Bounds = (-1.0, 1.0)


def mean_over_seeds(values: ArrayLike, bounds: Bounds = UNBOUNDED) -> Interval:
    """Return the mean of one number for each seed, with Student's interval.

    The interval is about other seeds of the same task and base policy. Numbers that are all alike, 1.00 of 1.00 say,
    give an interval without width, which is too narrow.

    Args:
        values: One number (n,) for each seed.
        bounds: Lowest and highest possible value of such a number. Student's interval may reach beyond them and is
            cut there, as the true mean lies within them.

    Returns:
        The mean and its interval, whose ends are NaN for fewer than two seeds.
    """
    values = np.asarray(values, dtype=np.float64)
    if not len(values):
        return Interval(math.nan, math.nan, math.nan, LEVEL)
    mean = float(values.mean())
    if len(values) < FEWEST:
        return Interval(mean, math.nan, math.nan, LEVEL)
    half = student_quantile(len(values) - 1, LEVEL) * float(values.std(ddof=1)) / math.sqrt(len(values))
    low, high = np.clip([mean - half, mean + half], *bounds)
    return Interval(mean, float(low), float(high), LEVEL)


def mean_difference(differences: ArrayLike) -> Interval:
    """Return the mean of paired differences, one for each seed, with Student's interval.

    Args:
        differences: One difference (n,) for each seed.

    Returns:
        The mean and its interval. The ends are NaN for fewer than two seeds, and for differences without spread: a few
        equal differences do not show that other seeds have the same one.
    """
    found = mean_over_seeds(differences)
    return found if has_spread(differences) else Interval(found.estimate, math.nan, math.nan, LEVEL)


def has_spread(values: ArrayLike) -> bool:
    """Return True if values (n,) differ by more than rounding; False for no value."""
    values = np.asarray(values, dtype=np.float64)
    return len(values) > 0 and bool(np.ptp(values) > ROUNDING)


def mean_over_questions(scores: Sequence[NDArray[np.float64]]) -> Interval:
    """Return the mean of scores (N,) of each seed over questions, with the percentile interval of a bootstrap.

    It is about other questions for the same runs; the seeds of a question stay together.
    """
    if not len(scores):
        return Interval(math.nan, math.nan, math.nan, LEVEL)
    by_question = np.mean(scores, axis=0)
    means = bootstrap_means(by_question, resamples=RESAMPLES, seed=SEED)
    return interval_of(by_question.mean(), means)


def difference_of_means(first: ArrayLike, second: ArrayLike) -> Interval:
    """Return the difference of the means of two groups of unpaired runs, with Welch's interval (1947).

    Args:
        first: One number (n,) for each run of the first group.
        second: One number (m,) for each run of the group that is subtracted.

    Returns:
        The difference and its interval. All are NaN for a group of fewer than two values, and for values that are not
        finite, such as pass@32 of a test with fewer samples. The ends are NaN for two groups without spread.
    """
    groups = [np.asarray(each, dtype=np.float64) for each in (first, second)]
    if min(map(len, groups)) < FEWEST or not all(np.isfinite(group).all() for group in groups):
        return Interval(math.nan, math.nan, math.nan, LEVEL)
    difference = float(groups[0].mean() - groups[1].mean())
    if not any(map(has_spread, groups)):
        return Interval(difference, math.nan, math.nan, LEVEL)
    errors = [group.var(ddof=1) / len(group) for group in groups]
    freedom = sum(errors) ** 2 / sum(e**2 / (len(g) - 1) for e, g in zip(errors, groups, strict=True))
    half = student_quantile(freedom, LEVEL) * math.sqrt(sum(errors))
    return Interval(difference, difference - half, difference + half, LEVEL)


# Probability with which the smallest detectable effect is found.
POWER = 0.8
# Number of standard deviations at which the noncentral t distribution is integrated; errors are below 1e-4.
SPREADS = 1001


def share_of_seeds(successes: int, seeds: int, level: float = LEVEL) -> Interval:
    """Return the share of successful seeds with the exact interval.

    Args:
        successes: Number of seeds that succeeded.
        seeds: Number of all seeds.
        level: Probability with which the interval holds the true share, at least.

    Returns:
        ``successes / seeds`` and its interval; NaN without a seed.

    Raises:
        ValueError: If there are more successes than seeds, or fewer than 0.

    Reference:
        Clopper and Pearson 1934: the ends are the shares at which the observed number, or one further out, has the
        probability (1 - level) / 2.
    """
    if not 0 <= successes <= seeds:
        raise ValueError(f"successes must be from 0 to {seeds} seeds; got {successes}")
    if not seeds:
        return Interval(math.nan, math.nan, math.nan, level)
    tail = (1 - level) / 2

    def at_least(share: float, count: int) -> float:
        """Return the probability of at least ``count`` successes."""
        return math.fsum(math.comb(seeds, n) * share**n * (1 - share) ** (seeds - n) for n in range(count, seeds + 1))

    # Both probabilities increase with the share.
    low = 0.0 if successes == 0 else _root(lambda share: at_least(share, successes) - tail)
    high = 1.0 if successes == seeds else _root(lambda share: at_least(share, successes + 1) - (1 - tail))
    return Interval(successes / seeds, low, high, level)


def _root(increasing: Callable[[float], float]) -> float:
    """Return where a function that increases from below 0 to above 0 on [0, 1] is 0."""
    low = 0.0
    high = 1.0
    # 60 halvings of an interval of length 1 reach the precision of float64.
    for _ in range(60):
        middle = (low + high) / 2
        if increasing(middle) < 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def paired_p_value(differences: ArrayLike) -> float:
    """Return the two-sided p-value of Student's paired t-test.

    Args:
        differences: One difference (n,) for each seed.

    Returns:
        The p-value of "the mean difference is 0". NaN for fewer than two seeds and for differences without spread,
        from which the test cannot estimate an error.
    """
    values = np.asarray(differences, dtype=np.float64)
    if len(values) < FEWEST or not has_spread(values):
        return math.nan
    mean = float(values.mean())
    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    freedom = len(values) - 1
    squared = (mean / error) ** 2
    # P(|T| > t) is the regularized incomplete beta function at n / (n + t^2).
    return float(betainc(freedom / 2, 0.5, 0, freedom / (freedom + squared), regularized=True))


def smallest_detectable_effect(differences: ArrayLike, level: float = LEVEL, power: float = POWER) -> float:
    """Return the true mean difference that one paired t-test of as many seeds would find.

    The test is a single one: Holm's correction for several methods needs a larger difference for the same power.

    Args:
        differences: One difference (n,) for each seed, from which the spread is taken.
        level: Level of the interval that must not contain 0.
        power: Probability with which the difference is found, if the spread is the true one.

    Returns:
        ``detectable_size(n - 1) s / sqrt(n)``, with s the standard deviation of the differences; NaN for fewer than
        two seeds and for differences without spread. A smaller difference may exist and not be seen.
    """
    values = np.asarray(differences, dtype=np.float64)
    if len(values) < FEWEST or not has_spread(values):
        return math.nan
    return detectable_size(len(values) - 1, level, power) * float(values.std(ddof=1)) / math.sqrt(len(values))


@cache
def detectable_size(freedom: int, level: float = LEVEL, power: float = POWER) -> float:
    """Return the mean, in units of its true standard error, that a two-sided t-test finds with some probability.

    Args:
        freedom: Degrees of freedom, at least 1.
        level: Level of the interval that must not contain 0.
        power: Probability with which the mean is found, above 1 - level.
    """
    critical = student_quantile(freedom, level)
    # T = (Z + size) / S has the noncentral t distribution. S^2 is chi-squared over its degrees of freedom.
    spread = np.linspace(0.0, 1.0 + 8.0 / math.sqrt(freedom), SPREADS)
    density = spread ** (freedom - 1) * np.exp(-freedom * spread**2 / 2)
    weights = density / np.trapezoid(density, spread)

    def found(size: float) -> float:
        """Return the probability that T is beyond one of the critical values."""
        beyond = _normal_cdf(size - critical * spread) + _normal_cdf(-size - critical * spread)
        return float(np.trapezoid(weights * beyond, spread))

    # The test practically never misses a mean of ten critical values, at any number of degrees of freedom.
    largest = 10.0 * critical
    return largest * _root(lambda share: found(share * largest) - power)


def _normal_cdf(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.array([NormalDist().cdf(value) for value in values])
