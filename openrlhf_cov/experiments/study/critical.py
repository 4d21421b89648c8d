"""The value of a setting at which half of the runs still learn: a logistic fit with its interval (pure)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openrlhf_cov.utils.estimates import LEVEL, Interval

Floats = NDArray[np.float64]
# Critical values are searched this many times outside the range of the data.
REACH = 10.0
# Points of the grid of critical values, evenly spaced in their logarithm; the answer is exact to one of them.
GRID = 4001
# Steepest slope, in logits per unit of the natural logarithm of the value. A step from no success to success only is
# steeper than any logistic curve, and from here on a steeper one changes nothing.
STEEPEST = 1e4
# Log-likelihoods closer than this are equal.
ROUNDING = 1e-6


@dataclass(frozen=True)
class CriticalValue:
    """A fitted critical value.

    Attributes:
        value: The value at which half of the runs learn, with its interval. An end of the interval that the data do
            not bound is 0 or infinity: the search reaches ``REACH`` times beyond the values that were run. The
            estimate is 0 if no run learned, infinity if all did.
        slope: Logits by which the success falls per unit of the natural logarithm of the value.
    """

    value: Interval
    slope: float


def fit_critical_value(values: Sequence[float], learned: Sequence[bool], level: float = LEVEL) -> CriticalValue:
    """Fit ``P(learned) = 1 / (1 + (value / critical) ** slope)`` with a slope of at least 0.

    The fit is a logistic regression on the logarithm of the value. Its interval is that of the profile likelihood: all
    critical values whose best slope is not worse than the best fit by more than the chi-squared quantile of one degree
    of freedom. Unlike the fit's curvature, this also holds where success and failure are perfectly separated; the
    estimate is then the geometric middle between the last success and the first failure. The fit takes the runs as
    independent given their value.

    Args:
        values: The setting of each run, all above 0. A larger value makes the task harder.
        learned: True for each run that learned the task.
        level: Level of the interval.

    Returns:
        The critical value and the slope.

    Raises:
        ValueError: There is no run, there are not as many outcomes as values, or a value is not positive.
    """
    if not len(values) or len(values) != len(learned):
        raise ValueError(f"a fit needs runs with a value and an outcome each; got {len(values)} and {len(learned)}")
    if min(values) <= 0:
        raise ValueError(f"values must be above 0, because the fit is on their logarithm; got {min(values)}")
    places = np.log(np.asarray(values, dtype=np.float64))
    outcomes = np.asarray(learned, dtype=bool)
    grid = np.linspace(places.min() - math.log(REACH), places.max() + math.log(REACH), GRID)
    slopes, fits = profile_likelihood(grid, places, outcomes)
    # The likelihood then rises towards one end of the grid and has no maximum inside.
    if outcomes.all() or not outcomes.any():
        best = len(grid) - 1 if outcomes.all() else 0
    else:
        [equal] = np.nonzero(fits >= fits.max() - ROUNDING)
        # Where outcomes are perfectly separated, a range of values fits equally well; its middle is the estimate.
        best = int(equal[len(equal) // 2])
    quantile = NormalDist().inv_cdf((1 + level) / 2) ** 2
    [inside] = np.nonzero(2 * (fits.max() - fits) <= quantile)
    estimate, low, high = (_exponential(grid, int(place)) for place in (best, inside[0], inside[-1]))
    return CriticalValue(Interval(estimate, low, high, level), float(slopes[best]))


def profile_likelihood(criticals: Floats, places: Floats, learned: ArrayLike) -> tuple[Floats, Floats]:
    """Return the best slope and its log-likelihood, both (G,), for each of the critical places (G,).

    Args:
        criticals: Logarithms (G,) of critical values.
        places: Logarithms (n,) of the values of the runs.
        learned: Outcomes (n,).

    Returns:
        Slopes (G,) from 0 to ``STEEPEST``, in logits per unit of the natural logarithm of the value, and
        log-likelihoods (G,) in nats.
    """
    # Runs with one value and one outcome have one likelihood, which is computed once (m <= n kinds of runs).
    kinds, counts = np.unique(np.stack([places, np.where(learned, 1.0, -1.0)]), axis=1, return_counts=True)
    # Logits (G, m) in favor of what happened, for a slope of 1.
    margins = kinds[1] * (criticals[:, None] - kinds[0])
    # The log-likelihood is concave in the slope, so its derivative has one sign change at most.
    low = np.zeros(len(criticals))
    high = np.full(len(criticals), STEEPEST)
    # 80 halvings of STEEPEST go beyond the precision of float64.
    for _ in range(80):
        middle = (low + high) / 2
        # The derivative of log sigmoid(slope * margin) is margin * sigmoid(-slope * margin).
        derivative = (margins * _sigmoid(-middle[:, None] * margins)) @ counts
        low = np.where(derivative > 0, middle, low)
        high = np.where(derivative > 0, high, middle)
    slopes = (low + high) / 2
    fits = -np.logaddexp(0.0, -slopes[:, None] * margins) @ counts
    return slopes, fits


def _sigmoid(logits: Floats) -> Floats:
    # 1 / (1 + exp(-x)) would overflow at large negative logits, and 1 - sigmoid(-x) round to 0 there.
    small = np.exp(-np.abs(logits))
    return np.where(logits < 0, small, 1.0) / (1.0 + small)


def _exponential(grid: Floats, place: int) -> float:
    """Return the value at a place of the grid; 0 and infinity at its ends."""
    if place == 0:
        return 0.0
    return math.inf if place == len(grid) - 1 else float(np.exp(grid[place]))
