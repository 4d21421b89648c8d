"""Forecasts of the end of a run from its beginning, by the entropy law and by a sigmoid in compute (pure).

The law R = -a exp(H) + b (arXiv 2505.22617) says what reward an entropy is worth. It forecasts the end of a run only
with the entropy there. The sigmoid R = R_0 + (A - R_0) / (1 + (C_mid / C) ** B) (ScaleRL, arXiv 2510.13786) is a curve
in compute C, here the number of steps.
"""

import math
from dataclasses import dataclass

import numpy as np

from openrlhf_cov.analysis.law import FEWEST_POINTS, LawPoints
from openrlhf_cov.analysis.regression import Floats

# The end of a run: the mean reward of this share of its last steps.
END_SHARE = 0.1
# Rewards of the embedded tasks are from 0 to 1, so no forecast is outside.
LOWEST = 0.0
HIGHEST = 1.0
# Grid of the sigmoid's exponent B, and of C_mid from the first step to ``REACH`` times the length of the run.
EXPONENTS = np.geomspace(0.25, 16.0, 25)
MIDDLES = 60
REACH = 4.0


@dataclass(frozen=True)
class EndForecast:
    """Forecasts of the mean reward at the end of a run, and what it was.

    Attributes:
        observed: Mean reward of the last ``END_SHARE`` of the steps.
        law: The law at the mean of exp(H) over these steps. It is told the entropy of the end, which the others are
            not.
        ceiling: The law at an entropy of 0, which needs nothing from the end.
        sigmoid: The sigmoid at the mean of these steps.
        last: The mean reward of the last tenth of the known steps.
    """

    observed: float
    law: float
    ceiling: float
    sigmoid: float
    last: float

    def error(self, name: str) -> float:
        """Return the absolute error of one of the forecasts."""
        return abs(getattr(self, name) - self.observed)


def forecast_end(points: LawPoints, share: float) -> EndForecast:
    """Return forecasts of the end of a run from the first part of it.

    Args:
        points: Steps, entropies and rewards of the whole run.
        share: Share of the points that is known, in (0, 1 - END_SHARE].

    Raises:
        ValueError: The share is out of range, fewer than ``FEWEST_POINTS`` points are known, or the entropy of the
            known points does not vary.
    """
    if not 0.0 < share <= 1.0 - END_SHARE:
        raise ValueError(f"the share of known points must be above 0 and at most {1 - END_SHARE:g}; got {share}")
    # The small number keeps a point from being lost to rounding: 0.29 * 100 is 28.999999999999996.
    count = int(share * len(points) + 1e-9)
    if count < FEWEST_POINTS:
        raise ValueError(f"a forecast needs at least {FEWEST_POINTS} known points; got {count}")
    known = points[:count]
    end = points[-max(1, int(END_SHARE * len(points))) :]
    x = np.exp(known.entropy)
    if not np.ptp(x):
        raise ValueError("the entropy of the known points does not vary")
    slope, intercept = np.polyfit(x, known.reward, 1)
    sigmoid = fit_sigmoid(known.steps, known.reward, last_step=float(points.steps[-1]))
    return EndForecast(
        observed=float(end.reward.mean()),
        law=_possible(intercept + slope * float(np.exp(end.entropy).mean())),
        ceiling=_possible(intercept + slope),
        sigmoid=_possible(float(sigmoid.at(end.steps).mean())),
        last=float(known.reward[-max(1, count // 10) :].mean()),
    )


@dataclass(frozen=True)
class Sigmoid:
    """R = start + (end - start) / (1 + (middle / C) ** exponent), which rises or falls from ``start`` to ``end``."""

    start: float
    end: float
    middle: float
    exponent: float

    def at(self, compute: Floats) -> Floats:
        """Return the values (n,) at these amounts of compute (n,), all above 0."""
        return self.start + (self.end - self.start) * _rise(compute, self.middle, self.exponent)


def fit_sigmoid(compute: Floats, reward: Floats, last_step: float) -> Sigmoid:
    """Return the sigmoid with the smallest squared error whose two levels are possible rewards.

    The exponent and the middle are taken from a grid. For each pair the levels are the solution of a linear problem.
    A level that is outside of [0, 1] is set to the nearer end, and the other level is solved again.

    Args:
        compute: Steps (n,), all above 0.
        reward: Rewards (n,).
        last_step: The last step of the run, which bounds the middle: a curve whose middle is much later than the run
            is a power law.
    """
    # A grid instead of a descent: over points that hardly bend, a descent ends wherever it started.
    middles = np.geomspace(max(1.0, float(compute[0])), REACH * last_step, MIDDLES)
    exponent, middle = (each.ravel() for each in np.meshgrid(EXPONENTS, middles, indexing="ij"))
    rise = _rise(compute, middle[:, None], exponent[:, None])  # (G, n)
    start, end = _levels(rise, reward)
    errors = ((start[:, None] + (end - start)[:, None] * rise - reward) ** 2).sum(1)
    best = int(errors.argmin())
    return Sigmoid(float(start[best]), float(end[best]), float(middle[best]), float(exponent[best]))


def _rise(compute: Floats, middle: Floats | float, exponent: Floats | float) -> Floats:
    return 1.0 / (1.0 + (middle / compute) ** exponent)


def _levels(rise: Floats, reward: Floats) -> tuple[Floats, Floats]:
    """Return the best start and end (G,) of each curve: R = start * (1 - rise) + end * rise, both from 0 to 1."""
    fall = 1.0 - rise
    ff = (fall * fall).sum(1)
    fr = (fall * rise).sum(1)
    rr = (rise * rise).sum(1)
    fy = fall @ reward
    ry = rise @ reward
    # A curve that hardly bends over the known points has no two levels; the small number keeps the solution finite.
    determinant = np.maximum(ff * rr - fr**2, 1e-12)
    start = np.clip((fy * rr - ry * fr) / determinant, LOWEST, HIGHEST)
    end = np.clip((ry - start * fr) / np.maximum(rr, 1e-12), LOWEST, HIGHEST)
    # With the end at a bound, the best start is another one.
    start = np.clip((fy - end * fr) / np.maximum(ff, 1e-12), LOWEST, HIGHEST)
    return start, end


def _possible(reward: float) -> float:
    return math.nan if math.isnan(reward) else min(max(reward, LOWEST), HIGHEST)
