"""Statistics shared by benchmarks, runs and running logs (pure)."""

import math
from dataclasses import dataclass

import numpy as np

LEVEL = 0.95
SEED = 0
# Nats: a vocabulary of 5e21 tokens. What is above is another quantity, and its exponential is out of bounds.
HIGHEST_ENTROPY = 50.0
# Standard deviation of exp(H) in parts of its mean that is rounding, of numbers that were computed in float32.
SMALLEST_SPREAD = 1e-6


@dataclass(frozen=True)
class Interval:
    """A score and the percentile interval of its bootstrap, which holds the fraction ``level`` of the resamples."""

    estimate: float
    low: float
    high: float
    level: float


def interval_of(estimate: float, draws: np.ndarray, level: float = LEVEL) -> Interval:
    """Return the percentile interval of an estimate.

    Args:
        estimate: The estimate.
        draws: Resampled values (resamples,).
        level: Fraction of the draws inside the interval; its ends are interpolated between draws.

    Raises:
        ValueError: The level is not in (0, 1).
    """
    if not 0.0 < level < 1.0:
        raise ValueError(f"the level of an interval is a fraction in (0, 1), got {level}")
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(estimate), float(low), float(high), level)


def correlation(u: np.ndarray, v: np.ndarray) -> float:
    """Return Pearson's correlation of two series; NaN if one is constant.

    Args:
        u: Values (n,) whose mean is 0.
        v: Values (n,) whose mean is 0.
    """
    scale = math.sqrt((u**2).sum() * (v**2).sum())
    return float((u * v).sum() / scale) if scale else math.nan
