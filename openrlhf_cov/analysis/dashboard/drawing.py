"""What a chart draws of a long noisy series, and the numbers on its axes (pure)."""

import math

import numpy as np

from openrlhf_cov.analysis.regression import Floats, running_mean

SMOOTH_SHARE, SMOOTH_LEAST = 20, 5
"""A smoothed value is the mean of a window of a twentieth of the points, at least five."""


def smoothed(values: Floats) -> Floats:
    """Running mean (n,), centered; at both ends of what there is of the window."""
    half = max(SMOOTH_LEAST, len(values) // SMOOTH_SHARE) // 2
    return running_mean(values, 2 * half + 1, np.arange(len(values)))


def thinned_for(x: Floats, y: Floats, columns: int) -> tuple[Floats, Floats]:
    """At most ``2 * columns`` points: of each column the lowest and the highest value, so that no spike is lost."""
    if len(x) <= 2 * columns:
        return x, y
    first = np.unique(np.linspace(0, len(x), columns, endpoint=False).astype(np.intp))
    low, high = np.minimum.reduceat(y, first), np.maximum.reduceat(y, first)
    return np.repeat(x[first], 2), np.stack([low, high], axis=1).ravel()


def ticks(low: float, high: float, most: int, whole: bool = False) -> list[float]:
    """1 to ``most`` round numbers within [low, high], 1, 2, 2.5, 4 or 5 times a power of ten apart.

    ``whole``: integers alone; the ends of the range must be.
    """
    if not high > low:
        return [low]
    raw = (high - low) / max(1, most)
    power = 10.0 ** math.floor(math.log10(raw))
    steps = [power * times for times in (1, 2, 2.5, 4, 5, 10, 20, 25)]
    if whole:
        steps = [step for step in (1.0, 2.0, 5.0, *steps) if step >= 1 and step == int(step)]
    for least in (2, 1):
        for step in steps:
            first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
            if least <= last - first + 1 <= most:
                return [float(f"{place * step:.15g}") for place in range(first, last + 1)]
    return [low if whole else (low + high) / 2]


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """Numbers above 0 for a logarithmic axis over [low, high]: powers of ten, and 2 and 5 times them, if they fit."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        found = [factor * 10.0**power for power in powers for factor in factors]
        found = [tick for tick in found if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
        if 2 <= len(found) <= most:
            return found
    if len(found) > most:
        return found[:: math.ceil(len(found) / most)]
    return ticks(low, high, most)


def label(value: float) -> str:
    """A number for an axis or a title: three to four digits, 1.2e-05, 16.4k, 3M."""
    size = abs(value)
    if not math.isfinite(size):
        return "-"
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= unit:
            return f"{value / (1e3 if letter == 'k' else unit):.3g}{letter}"
    if size >= 1e3 or size == 0:
        return f"{value:.0f}"
    return f"{value:.3g}" if size >= 1e-4 else f"{value:.1e}"


def labels(values: list[float]) -> list[str]:
    """The numbers of an axis, with the same number of decimals where they are of one size."""
    largest = max(map(abs, values), default=0.0)
    if not 1e-3 <= largest < 1e4:
        return [label(value) for value in values]
    decimals = max((len(f"{value:.6f}".rstrip("0").partition(".")[2]) for value in values), default=0)
    return [f"{value:.{decimals}f}" for value in values]


def sparkline(values: Floats, width: int) -> str:
    """The series in ``width`` characters or fewer, from its lowest (▁) to its highest value (█)."""
    if not len(values):
        return ""
    first = np.unique(np.linspace(0, len(values), min(width, len(values)), endpoint=False).astype(np.intp))
    means = np.add.reduceat(values, first) / np.diff([*first, len(values)])
    low, span = means.min(), np.ptp(means)
    bars = "▁▂▃▄▅▆▇█"
    places = np.zeros(len(means)) if not span else (means - low) / span * (len(bars) - 1)
    return "".join(bars[int(place + 0.5)] for place in places)
