"""Curves short enough to draw: long series keep their extremes and gaps, stacks their means (pure)."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openrlhf_cov.analysis.regression import Floats, running_mean, thinned

MAX_DRAWN = 1200
"""Points of a curve, the lowest and highest of some 600 parts: a panel has no more columns of pixels."""
MAX_BARS = 120
"""Steps of a stack."""
MAX_DOTS = 1000
"""Dots of a cloud."""
SMOOTHED = 1 / 30
"""The running mean is over this share of the points."""
USUAL_GAPS = 10
"""A curve is interrupted where it has no point for this many times the usual distance, and for VISIBLE of the run."""
VISIBLE = 1 / 200


@dataclass(frozen=True, eq=False)
class Series:
    """A curve: ``steps``, ``values`` and ``mean`` (n,), in the order of time.

    ``mean`` is the centred running mean over ``window`` logged steps, and equal to ``values`` where ``window`` is 1.
    ``values`` and ``mean`` are NaN where the curve is interrupted, which is nowhere at an end.
    """

    steps: Floats
    values: Floats
    mean: Floats
    window: int

    def __len__(self) -> int:
        return len(self.steps)


def to_series(
    steps: ArrayLike, values: ArrayLike, *, most: int = MAX_DRAWN, smoothed: float = SMOOTHED
) -> Series | None:
    """The curve of a column by step, of at most ``most`` points and gaps, with its extremes; None without a value.

    A value that is missing now and then is bridged, a long gap is not. ``smoothed`` is the share of the points in the
    running mean.
    """
    steps, values = np.asarray(steps, dtype=np.float64), np.asarray(values, dtype=np.float64)
    there = np.flatnonzero(~np.isnan(values))
    if not len(there):
        return None
    if len(there) < len(steps):
        steps, values = steps[there], values[there]
    window = max(1, int(len(steps) * smoothed) // 2 * 2 + 1)
    gaps = _gaps(steps)
    chosen = extremes(values, most - len(gaps))
    mean = running_mean(values, window, chosen)
    places = np.searchsorted(chosen, gaps + 1)
    middles = (steps[gaps] + steps[gaps + 1]) / 2
    return Series(
        steps=np.insert(steps[chosen], places, middles),
        values=np.insert(values[chosen], places, np.nan),
        mean=np.insert(mean, places, np.nan),
        window=window,
    )


def extremes(values: Floats, most: int) -> NDArray[np.intp]:
    """Places, ascending, of the first and last value and of the lowest and highest in each of equal parts."""
    if len(values) <= most:
        return np.arange(len(values))
    starts = np.linspace(0, len(values), max(1, (most - 2) // 2) + 1).astype(np.intp)
    parts = [(start, values[start:end]) for start, end in pairwise(starts)]
    found = [start + place for start, part in parts for place in (part.argmin(), part.argmax())]
    return np.unique([0, *found, len(values) - 1])


def spread_out(count: int, most: int = MAX_DOTS) -> NDArray[np.intp]:
    """Places of at most ``most`` of ``count`` dots, in equal distances, the first and the last one among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.intp))


def stacked(steps: ArrayLike, columns: Mapping[str, Floats], most: int = MAX_BARS) -> tuple[Floats, dict[str, Floats]]:
    """Middle step (m,) of equal parts of the run, and the mean of each column there; NaN where there is no value."""
    means = {}
    for name, values in columns.items():
        there = ~np.isnan(values)
        shares, sums = thinned(there.astype(np.float64), most), thinned(np.where(there, values, 0.0), most)
        means[name] = np.divide(sums, shares, out=np.full(len(shares), np.nan), where=shares > 0)
    return thinned(np.asarray(steps, dtype=np.float64), most), means


def _gaps(steps: Floats) -> NDArray[np.intp]:
    """Places after which nothing was logged for long."""
    if len(steps) < 3:
        return np.zeros(0, dtype=np.intp)
    apart = np.diff(steps)
    return np.flatnonzero(apart > max(USUAL_GAPS * np.median(apart), VISIBLE * (steps[-1] - steps[0])))
