"""Round numbers for an axis, and their labels (pure)."""

import math


def ticks(low: float, high: float, most: int, whole: bool = False) -> list[float]:
    """Return round numbers for an axis, 1, 2, 2.5, 4 or 5 times a power of ten apart.

    Args:
        low: Lower end of the axis.
        high: Upper end of the axis.
        most: Largest number of ticks.
        whole: True for integers alone; both ends must then be integers.

    Returns:
        1 to ``most`` numbers within [low, high], ascending.
    """
    if not high > low:
        return [low]
    raw = (high - low) / max(1, most)
    power = 10.0 ** math.floor(math.log10(raw))
    steps = [power * times for times in (1, 2, 2.5, 4, 5, 10, 20, 25)]
    if whole:
        steps = [step for step in (1.0, 2.0, 5.0, *steps) if step >= 1 and step == int(step)]
    # At least two ticks show the size of the axis; one is taken where no two fit.
    for least in (2, 1):
        for step in steps:
            # The tolerance keeps a tick that lies on an end of the axis and misses it by rounding.
            first = math.ceil(low / step - 1e-9)
            last = math.floor(high / step + 1e-9)
            if least <= last - first + 1 <= most:
                return [float(f"{place * step:.15g}") for place in range(first, last + 1)]
    return [low if whole else (low + high) / 2]


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """Return numbers for a logarithmic axis: powers of ten, and 2 and 5 or 3 times them, if they fit.

    Args:
        low: Lower end of the axis, above 0.
        high: Upper end of the axis.
        most: Largest number of ticks.
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        found = [factor * 10.0**power for power in powers for factor in factors]
        found = [tick for tick in found if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
        if 2 <= len(found) <= most:
            return found
    if len(found) > most:
        return found[:: math.ceil(len(found) / most)]
    # Within a part of a decade, ticks at equal distances are the only round ones.
    return ticks(low, high, most)


def label(value: float) -> str:
    """Return a number for an axis or a title: three to four digits, 1.2e-05, 16.4k, 3M."""
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
    """Return the numbers of an axis, with the same number of decimals where they are of one size."""
    largest = max(map(abs, values), default=0.0)
    if not 1e-3 <= largest < 1e4:
        return [label(value) for value in values]
    decimals = max((len(f"{value:.6f}".rstrip("0").partition(".")[2]) for value in values), default=0)
    return [f"{value:.{decimals}f}" for value in values]
