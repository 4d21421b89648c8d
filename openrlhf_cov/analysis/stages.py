"""Measure how early a run spends its entropy and gains its reward (paper, section 2.1; pure)."""

import math
from dataclasses import dataclass

import numpy as np

from openrlhf_cov.analysis.law import LawPoints
from openrlhf_cov.analysis.regression import Floats

# Shares of a run: the paper's 200 and 800 of 2400 gradient steps.
EARLY = (1 / 12, 1 / 3)
# A level is the mean of this share of the points, at least of one point.
AVERAGED = 1 / 50


@dataclass(frozen=True)
class EarlyShares:
    """Shares of the fall of H and of the gain of R from the first to the last point, at each place of ``EARLY``.

    A share is NaN where H did not fall or R did not rise by more than the noise of a step explains, where the curve
    had moved the other way by that place, and where the run has no point near that place.
    """

    drop: tuple[float, ...]
    gain: tuple[float, ...]


def early_shares(points: LawPoints) -> EarlyShares:
    """Return the early shares; levels are means of ``AVERAGED`` of the points before each place and at both ends."""
    nothing = (math.nan,) * len(EARLY)
    if len(points) < 2:
        return EarlyShares(nothing, nothing)
    count = max(1, round(AVERAGED * len(points)))
    first = points.steps[0]
    last = points.steps[-1]
    places = []
    for share in EARLY:
        way = share * (last - first)
        place = int(np.searchsorted(points.steps, first + way, "right"))
        # A point is near a place if it lies in the second half of the way to it.
        is_near = points.steps[place - 1] - first >= way / 2
        places.append(place if is_near else 0)
    return EarlyShares(_shares(-points.entropy, places, count), _shares(points.reward, places, count))


def _shares(values: Floats, places: list[int], count: int) -> tuple[float, ...]:
    """Return the shares of the gain of ``values`` (n,).

    Args:
        values: The values of the points.
        places: The number of values up to each place; 0 where no point is near it.
    """
    start = values[:count].mean()
    gain = values[-count:].mean() - start
    # The median of |N(0, 2)|, the difference of two neighbors with unit noise, is 0.954.
    noise = float(np.median(np.abs(np.diff(values)))) / 0.954
    # The difference of two means of ``count`` values has this standard error.
    if gain <= noise * math.sqrt(2 / count):
        return (math.nan,) * len(places)
    # A place among the first ``count`` values has no level of its own.
    levels = [values[max(0, end - count) : end].mean() if end > count else math.nan for end in places]
    shares = [float((level - start) / gain) for level in levels]
    return tuple(share if share >= 0 else math.nan for share in shares)
