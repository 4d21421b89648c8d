"""Does the entropy change as the covariance says? Theorems 1 and 2 and table 1 of the paper, over a run (pure)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openrlhf_cov.analysis.regression import RESAMPLES, Design, Floats, Regression, thinned
from openrlhf_cov.analysis.table import Table
from openrlhf_cov.utils.estimates import LEVEL, Interval, correlation, interval_of
from openrlhf_cov.utils.metric_table import family

# The ranks and the places of values (n,), see ``_mid_ranks``.
Ranks = tuple[Floats, NDArray[np.intp]]
# Pairs below which there is no interval.
MIN_PAIRS = 10
# Steps below which a mean has no interval: of 12 with autocorrelation 0.5 it would be wider than three times the range
# of the values in one series of seven, of 20 in one of thirty.
MIN_STEPS = 20

# Theorem -> column of the predicted change of entropy, up to a constant, and column of the covariance behind it.
PREDICTIONS = {1: ("entropy/delta_theorem1", "cov/prob_weighted_mean"), 2: ("entropy/delta_theorem2", "cov/mean")}

# Columns of table 1: the mean covariance of the top 0.02 %, 0.2 %, 2 %, 20 % and 50 % of the tokens, and of all.
BANDS = (*family("cov/top_"), "cov/mean")
# Table 1: Qwen2.5-7B, first step.
PAPER_BANDS = dict(zip(BANDS, (5.654, 3.112, 1.385, 0.351, 0.152, 0.003), strict=True))
# Ends of the stages of training, as shares of the run: the paper's 200 and 800 of 2400 gradient steps.
STAGES = (1 / 12, 1 / 3, 1.0)

# Prompts with a share of correct responses next to 0.125, 0.5 and 0.875.
ACCURACY_GROUPS = ("low", "mid", "high")
# Beginnings of the columns of these groups: covariance of (log pi, pi A) and of (log pi, A) within a prompt, response
# by response, and ``cov`` of its tokens.
WEIGHTED_ACCURACY = "cov/group_weighted_acc_"
RESPONSE_ACCURACY = "cov/acc_"
TOKEN_ACCURACY = "cov/token_acc_"
# Eq. 8, over all prompts.
GROUP_COVARIANCE = "cov/group_weighted_mean"


@dataclass(frozen=True)
class TheoryCheck:
    """The change of entropy against the prediction of a theorem, over ``pairs`` of a step and the one after it.

    ``correlation`` is Spearman's: the prediction is known up to a constant. ``sign_agreement`` is the share of pairs
    in which prediction and change have the same sign; ``chance_agreement`` what it would be if the two were
    independent with the shares of signs that they have, which is high where both are mostly negative.
    ``positive_cov_frac`` is the share of steps with a covariance above 0, all of them in the paper.
    """

    theorem: int
    pairs: int
    correlation: Interval
    sign_agreement: Interval
    chance_agreement: float
    positive_cov_frac: float
    predicted: Floats
    changes: Floats


def check_theorem(table: Table, theorem: int, *, resamples: int = RESAMPLES) -> TheoryCheck:
    """Return how the change of the entropy follows the prediction of a theorem.

    Theorem 1 is dH = -eta Cov(log pi, pi A), theorem 2 dH = -eta Cov(log pi, A), both first order, tabular softmax.
    The prediction of step t is paired with ``entropy/delta`` of step t + 1, where the log has both. Differs from the
    paper, which shows two curves of the same shape: -dH and covariance both decay over a run, so smooth curves
    correlate whatever the cause. Here single steps count, in which the change of prompts is most of dH; a correlation
    well below 1 is to be expected, one of 0 or less speaks against the theorem.

    Args:
        table: Training metrics of a run.
        theorem: 1 or 2.
        resamples: Resamples of the interval of the correlation.
    """
    prediction, covariance = PREDICTIONS[theorem]
    predicted, changes = pairs_of(table, prediction, "entropy/delta")
    covariances = table.column(covariance)
    covariances = covariances[~np.isnan(covariances)]
    agree = np.sign(predicted) == np.sign(changes)
    # Shares of falls and of rises, in the predictions and in the changes.
    signs = [
        np.array([(each < 0).mean(), (each > 0).mean()]) if len(each) else np.nan for each in (predicted, changes)
    ]
    return TheoryCheck(
        theorem=theorem,
        pairs=len(predicted),
        correlation=rank_correlation(predicted, changes, resamples=resamples),
        sign_agreement=share_interval(agree),
        chance_agreement=float(np.sum(signs[0] * signs[1])),
        positive_cov_frac=float((covariances > 0).mean()) if len(covariances) else math.nan,
        predicted=predicted,
        changes=changes,
    )


def check_group_covariance(table: Table) -> Interval | None:
    """Return the rank correlation of eq. 8 in a step with -dH of the next one (paper, Fig. 8); None without a pair."""
    covariances, changes = pairs_of(table, GROUP_COVARIANCE, "entropy/delta")
    if not len(changes):
        return None
    return rank_correlation(covariances, -changes)


def pairs_of(table: Table, first: str, second: str) -> tuple[Floats, Floats]:
    """Return one column of a step and another one of the step after it, (n,) each, wherever the log has both.

    Args:
        table: Training metrics of a run.
        first: Column of the earlier step.
        second: Column of the later step.
    """
    # A step that was not logged, as with --logger.logging_steps, breaks the pair.
    follows = np.flatnonzero(np.diff(table.steps) == 1)
    x = table.column(first)[follows]
    y = table.column(second)[follows + 1]
    both = ~(np.isnan(x) | np.isnan(y))
    return x[both], y[both]


def rank_correlation(x: Floats, y: Floats, *, resamples: int = RESAMPLES) -> Interval:
    """Return Spearman's correlation of two series, with an interval that allows for autocorrelation.

    The error of the estimate is the mean of its influence values, a series of its own, whose plausible means are those
    of ``Regression.draws``; the interval is taken on Fisher's scale, atanh. Over more than ``MAX_POINTS`` pairs,
    influences are averaged over consecutive ones.

    Args:
        x: Values (n,) in the order of time.
        y: Values (n,) of the same steps.
        resamples: Resamples of the interval.

    Returns:
        The correlation. Its interval is NaN for fewer than ``MIN_PAIRS`` pairs, and all is NaN for a constant series.
    """
    ranks = _mid_ranks(x), _mid_ranks(y)
    estimate = correlation(ranks[0][0], ranks[1][0])
    if len(x) < MIN_PAIRS or not math.isfinite(estimate):
        return Interval(estimate, math.nan, math.nan, LEVEL)
    # Fisher's scale ends here: atanh(1) is infinite.
    if abs(estimate) > 1 - 1e-12:
        return Interval(estimate, estimate, estimate, LEVEL)
    # d atanh(rho) = d rho / (1 - rho^2): the errors on Fisher's scale.
    errors = _mean_errors(_influence(*ranks), resamples) / (1 - estimate**2)
    ends = interval_of(math.atanh(estimate), math.atanh(estimate) + errors)
    return Interval(estimate, math.tanh(ends.low), math.tanh(ends.high), LEVEL)


def _influence(ranks_of_x: Ranks, ranks_of_y: Ranks) -> Floats:
    """Return the influence (n,) of each pair on Spearman's rho: 12 (uv + E[V; X >= x] + E[U; Y >= y]), centred.

    u and v are the ranks, from -1/2 to 1/2; the expectations are what the pair does to the ranks of the others.
    """
    u, place_of_u = ranks_of_x
    v, place_of_v = ranks_of_y
    influence = u * v + _mean_above(place_of_u, v) + _mean_above(place_of_v, u)
    return 12 * (influence - influence.mean())


def _mid_ranks(values: Floats) -> Ranks:
    """Return the ranks (n,) of values, and the place (n,) of each value among the distinct ones.

    Ranks lie between -1/2 and 1/2. Equal values share the mean of their ranks.
    """
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return ((counts.cumsum() - counts / 2) / len(values))[place] - 0.5, place


def _mean_above(place: NDArray[np.intp], values: Floats) -> Floats:
    """Return for each rank (n,) the sum of the values of equal or higher rank over n; equal ranks count half."""
    sums = np.bincount(place, weights=values)
    return (sums[::-1].cumsum()[::-1] - sums / 2)[place] / len(place)


def mean_interval(series: Floats, *, resamples: int = RESAMPLES) -> Interval:
    """Return the mean of a series, with an interval that allows for autocorrelation.

    The interval of fewer than ``MIN_STEPS`` values is NaN.

    Args:
        series: Values (n,) in the order of time.
        resamples: Resamples of the interval.
    """
    if len(series) < MIN_STEPS:
        return Interval(_mean(series), math.nan, math.nan, LEVEL)
    estimate = float(series.mean())
    return interval_of(estimate, estimate + _mean_errors(series, resamples))


def share_interval(hits: ArrayLike) -> Interval:
    """Return the share of the steps that are hits, with Wilson's interval (1927); NaN ends below ``MIN_PAIRS`` steps.

    In the place of the number of steps stands that of as many independent ones as make the share as certain.

    Args:
        hits: Booleans (n,) in the order of time.
    """
    series = np.asarray(hits, dtype=np.float64)
    if len(series) < MIN_PAIRS:
        return Interval(_mean(series), math.nan, math.nan, LEVEL)
    share = float(series.mean())
    regression = _mean_regression(series)
    error = regression.score_covariance[0, 0] / len(regression.design)
    # p (1 - p) / n is the variance of a share of n independent steps.
    points = min(len(series), share * (1 - share) / error) if error else len(series)
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    middle = (share + z**2 / (2 * points)) / (1 + z**2 / points)
    width = z / (1 + z**2 / points) * math.sqrt(share * (1 - share) / points + (z / (2 * points)) ** 2)
    return Interval(share, max(0.0, middle - width), min(1.0, middle + width), LEVEL)


def _mean_regression(series: Floats) -> Regression:
    series = thinned(series)
    return Regression.least_squares(Design(np.ones((len(series), 1))), series)


def _mean_errors(series: Floats, resamples: int) -> Floats:
    """Return plausible means (resamples,) of a series, minus its own mean."""
    regression = _mean_regression(series)
    return regression.draws(resamples=resamples).coefficients[:, 0] - regression.coefficients[0]


@dataclass(frozen=True)
class StageBands:
    """Mean covariance per band over the steps from ``first_step`` to ``last_step``; NaN for a band never logged."""

    first_step: int
    last_step: int
    means: Mapping[str, float]


def covariance_bands(table: Table, stages: Sequence[float] = STAGES) -> list[StageBands]:
    """Return table 1 over training: the first step, as the paper has it, then each stage of the run without it.

    Steps without a covariance (frozen policy) are no part of the run. Empty where nothing was logged.

    Args:
        table: Training metrics of a run.
        stages: Ends of the stages, as ascending shares of the run.
    """
    columns = {name: table.column(name) for name in BANDS}
    logged = np.flatnonzero(~np.isnan(columns["cov/mean"]))
    # The small number keeps a share from gaining a step by rounding.
    ends = [1, *(max(1, math.ceil(share * len(logged) - 1e-9)) for share in stages)] if len(logged) else []
    spans = [(start, end) for start, end in zip([0, *ends], ends, strict=False) if end > start]
    return [
        StageBands(
            first_step=int(table.steps[logged[start]]),
            last_step=int(table.steps[logged[end - 1]]),
            means={name: _mean(values[logged[start:end]]) for name, values in columns.items()},
        )
        for start, end in spans
    ]


@dataclass(frozen=True)
class AccuracyCovariance:
    """Covariance by the accuracy of prompts (paper, Fig. 8), means over the steps that have such prompts.

    ``means`` is by group, ``positive_frac`` the share of its steps with a covariance above 0. ``easy_minus_hard`` is
    the mean of high minus low over the steps with both: above 0 in the paper.
    """

    means: Mapping[str, Interval]
    positive_frac: Mapping[str, float]
    easy_minus_hard: Interval


def covariance_by_accuracy(table: Table, prefix: str = WEIGHTED_ACCURACY) -> AccuracyCovariance:
    """Return the covariances of hard, medium and easy prompts, and how far apart they are.

    Args:
        table: Training metrics of a run.
        prefix: Beginning of the columns, ``<prefix>low``, ``<prefix>mid`` and ``<prefix>high``; by default those of
            eq. 8 of the paper.
    """
    columns = {group: table.column(prefix + group) for group in ACCURACY_GROUPS}
    series = {group: values[~np.isnan(values)] for group, values in columns.items()}
    apart = columns["high"] - columns["low"]
    return AccuracyCovariance(
        means={group: mean_interval(values) for group, values in series.items()},
        positive_frac={group: _mean(values > 0) for group, values in series.items()},
        easy_minus_hard=mean_interval(apart[~np.isnan(apart)]),
    )


def _mean(values: Floats | NDArray[np.bool_]) -> float:
    found = values[~np.isnan(values)]
    return float(found.mean()) if len(found) else math.nan
