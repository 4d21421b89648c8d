"""The entropy law across runs: do they share their coefficients, and how do these move with model size (pure).

The paper finds a and b to be those of model and data, whatever the algorithm (arXiv:2505.22617, Fig. 6), and linear in
the logarithm of the number of non-embedding parameters (Fig. 7); it shows both by eye.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike

from openrlhf_cov.analysis.law import LawFit
from openrlhf_cov.analysis.regression import Floats, student_quantile
from openrlhf_cov.utils.estimates import LEVEL, SEED, Interval, interval_of


@dataclass(frozen=True)
class Difference:
    """Coefficients of run ``first`` minus those of run ``second``, by their place in the list."""

    first: int
    second: int
    a: Interval
    b: Interval
    ceiling: Interval


@dataclass(frozen=True)
class SameCoefficients:
    """Test of "all runs have one a and one b"; ``a`` and ``b`` are the common ones that fit them best.

    A large ``p_value`` is no proof that they are the same: the differences say how far apart they may be.
    """

    p_value: float
    statistic: float
    a: float
    b: float
    differences: tuple[Difference, ...]


def same_coefficients(fits: Sequence[LawFit]) -> SameCoefficients:
    """Test whether all runs have one a and one b.

    Wald test of equal lines (b, -a), W = sum over runs of (l_i - l)' V_i^-1 (l_i - l), l the best common line.
    V_i is the covariance of the plausible lines of run i. The null distribution is W of errors drawn from these, each
    run's own, so that few points and autocorrelation widen it; chi-squared with 2 (runs - 1) degrees of freedom is its
    limit. Runs are taken as independent: the same prompts in the same order make the differences look too certain.

    Args:
        fits: The fit of each run.

    Raises:
        ValueError: There are fewer than two runs, or the points of one lie on its line exactly.
    """
    if len(fits) < 2:
        raise ValueError(f"comparing coefficients needs at least two runs, got {len(fits)}")
    rng = np.random.default_rng(SEED)
    lines = np.array([[fit.b.estimate, -fit.a.estimate] for fit in fits])
    # Fits may have different numbers of draws.
    draws = min(len(fit.line_draws) for fit in fits)
    # a new order for each run: fits of one seed share their random numbers
    errors = [fit.line_draws[rng.permutation(len(fit.line_draws))[:draws]] for fit in fits]
    drawn = np.stack(errors, axis=1) - lines  # (draws, runs, 2)
    # About 0, not about their mean: the draws are errors of the fitted line.
    covariances = np.einsum("mri,mrj->rij", drawn, drawn) / draws
    if (np.linalg.matrix_rank(covariances) < 2).any():
        raise ValueError("a run without noise has no error to compare its coefficients with")
    # (runs, 2, 2): the inverse covariances of each run's line.
    weights = np.linalg.inv(covariances)
    common = _common(lines[None], weights)[0]
    statistic = _spread(lines[None], weights)[0]
    # One is added on both sides: a p-value of a finite number of draws is never 0.
    p_value = (1 + int((_spread(drawn, weights) >= statistic).sum())) / (1 + draws)
    differences = tuple(_differences(fits, lines, lines + drawn))
    return SameCoefficients(p_value, float(statistic), float(-common[1]), float(common[0]), differences)


def _common(lines: Floats, weights: Floats) -> Floats:
    """Return the lines (m, 2) with the least spread of the given lines (m, runs, 2) around them."""
    return np.linalg.solve(weights.sum(axis=0), np.einsum("rij,mrj->im", weights, lines)).T


def _spread(lines: Floats, weights: Floats) -> Floats:
    """Return the spread W (m,) of lines (m, runs, 2) around their common line."""
    apart = lines - _common(lines, weights)[:, None]
    return np.einsum("mri,rij,mrj->m", apart, weights, apart)


def _differences(fits: Sequence[LawFit], lines: Floats, drawn: Floats) -> Iterator[Difference]:
    for i, j in combinations(range(len(fits)), 2):
        apart = lines[i] - lines[j]
        drawn_apart = drawn[:, i] - drawn[:, j]
        yield Difference(
            first=i,
            second=j,
            a=interval_of(-apart[1], -drawn_apart[:, 1]),
            b=interval_of(apart[0], drawn_apart[:, 0]),
            ceiling=interval_of(apart.sum(), drawn_apart.sum(axis=1)),
        )


@dataclass(frozen=True)
class LogLine:
    """y = intercept + slope ln(size), by least squares; ``sd`` is the scatter of models around it (n - 2 degrees)."""

    log_sizes: Floats
    intercept: float
    slope: float
    sd: float

    @classmethod
    def through(cls, sizes: ArrayLike, values: ArrayLike) -> "LogLine":
        """Return the line through the values of models of several sizes.

        Args:
            sizes: Numbers of parameters (n,), above 0.
            values: A coefficient of each model (n,).

        Raises:
            ValueError: There are fewer than two different sizes, or a size is not positive.
        """
        sizes = np.asarray(sizes, dtype=np.float64)
        values = np.asarray(values, dtype=np.float64)
        if not (sizes > 0).all() or len(np.unique(sizes)) < 2:
            raise ValueError(f"a line in the size of models needs two different positive sizes, got {sizes.tolist()}")
        logs = np.log(sizes)
        slope, intercept = np.polyfit(logs, values, 1)
        left = len(logs) - 2
        # A line through two models leaves nothing to estimate their scatter from.
        sd = math.sqrt(((values - intercept - slope * logs) ** 2).sum() / left) if left else math.inf
        return cls(logs, float(intercept), float(slope), sd)

    def at(self, size: float) -> Interval:
        """Return the value for one more model of this size, with Student's prediction interval.

        The interval is infinite where the line goes through two models only.
        """
        log = math.log(size)
        estimate = self.intercept + self.slope * log
        n = len(self.log_sizes)
        mean = self.log_sizes.mean()
        if n == 2:
            return Interval(estimate, -math.inf, math.inf, LEVEL)
        # The 1 is the scatter of the new model itself. The rest is the error of the line, which grows with the
        # distance from the sizes that made it.
        leverage = 1 + 1 / n + (log - mean) ** 2 / ((self.log_sizes - mean) ** 2).sum()
        width = student_quantile(n - 2, LEVEL) * self.sd * math.sqrt(leverage)
        return Interval(estimate, estimate - width, estimate + width, LEVEL)


@dataclass(frozen=True)
class SizeTrend:
    """a, b and the ceiling against model size."""

    a: LogLine
    b: LogLine
    ceiling: LogLine


def against_size(sizes: ArrayLike, fits: Sequence[LawFit]) -> SizeTrend:
    """Return lines in the logarithm of the model size for a, b and the ceiling, for extrapolation.

    Runs weigh the same, as in the paper: models of one size differ by more than the error of a run's fit, and the
    scatter around the line counts both. The ceiling has its own line, the difference of the other two.

    Args:
        sizes: Non-embedding parameters of each run's model, (n,).
        fits: The fit of each run, n of them.

    Raises:
        ValueError: There is not one size per run, or as ``LogLine.through``.
    """
    if len(fits) != len(np.asarray(sizes)):
        raise ValueError(f"one size per run is needed, got {len(np.asarray(sizes))} for {len(fits)} runs")
    a, b, ceiling = ([getattr(fit, name).estimate for fit in fits] for name in ("a", "b", "ceiling"))
    return SizeTrend(LogLine.through(sizes, a), LogLine.through(sizes, b), LogLine.through(sizes, ceiling))
