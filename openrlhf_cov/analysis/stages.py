"""How early a run spends its entropy and makes its gain (paper, section 2.1; pure)."""

import math
from dataclasses import dataclass

import numpy as np

from openrlhf_cov.analysis.law import LawPoints
from openrlhf_cov.analysis.regression import Floats

EARLY = (1 / 12, 1 / 3)
"""Shares of a run: the paper's 200 and 800 of 2400 gradient steps."""
AVERAGED = 1 / 50
"""Share of the points whose mean is the level at a place; one point at least."""


@dataclass(frozen=True)
class EarlyShares:
    """Shares, at each of ``EARLY``, of the fall of H and of the gain of R from the first to the last point; NaN where
    H did not fall, or R did not rise, or the run has no point near that place."""

    drop: tuple[float, ...]
    gain: tuple[float, ...]


def early_shares(points: LawPoints) -> EarlyShares:
    """Levels are means of ``AVERAGED`` of the points, at the start, before each place, and at the end."""
    nothing = (math.nan,) * len(EARLY)
    if len(points) < 2:
        return EarlyShares(nothing, nothing)
    count = max(1, round(AVERAGED * len(points)))
    first, last = points.steps[0], points.steps[-1]
    places = [int(np.searchsorted(points.steps, first + share * (last - first), "right")) for share in EARLY]
    return EarlyShares(_shares(-points.entropy, places, count), _shares(points.reward, places, count))


def _shares(values: Floats, places: list[int], count: int) -> tuple[float, ...]:
    """``places`` are the numbers of values up to each; one of the first ``count`` alone has nothing to say."""
    start, gain = values[:count].mean(), values[-count:].mean() - values[:count].mean()
    known = [values[max(0, end - count) : end].mean() if end > count else math.nan for end in places]
    return tuple(float((level - start) / gain) if gain > 0 else math.nan for level in known)
