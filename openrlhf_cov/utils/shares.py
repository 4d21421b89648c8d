"""Compute how many of ``count`` a fraction is, without PyTorch (pure)."""

import math
from fractions import Fraction


def ceil_share(count: int, fraction: float) -> int:
    """Return ceil(fraction * count), with ``fraction`` taken as the decimal number that the user wrote.

    A float64 product can exceed the exact one: 0.07 * 100 is 7.000000000000001, whose ceiling is 8 instead of 7.

    Args:
        count: The number of all items.
        fraction: The share of them, a finite number.
    """
    return math.ceil(Fraction(str(float(fraction))) * count)


def floor_share(count: int, fraction: float) -> int:
    """Return floor(fraction * count) of the float64 product, as the published ``int(N * ratio)`` does.

    This can be one less than the exact floor: 0.29 * 100 gives 28. It is kept so that selections match published code.

    Args:
        count: The number of all items.
        fraction: The share of them, a finite number.
    """
    return math.floor(count * fraction)
