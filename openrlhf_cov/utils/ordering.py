"""What it takes to pick the largest: floats as integers in the same order, and how many to pick (pure)."""

import math
from fractions import Fraction

import torch
from torch import Tensor


def ordered_bits(values: Tensor) -> Tensor:
    """int32 in the order of the float32 ``values``; -0.0 counts as 0.0, NaN lies beyond the infinities."""
    bits = (values.float() + 0.0).view(torch.int32)  # + 0.0 makes -0.0 equal to 0.0
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def quota(count: Tensor, fraction: float) -> Tensor:
    """max(1, floor(fraction * count)), a 0-d int64 tensor like ``count``; no device sync.

    The product is taken in float64, like the published ``int(N * ratio)``.
    """
    return (count.double() * fraction).floor().long().clamp(min=1)


def ceil_share(count: int, fraction: float) -> int:
    """Return ceil(fraction * count), with ``fraction`` taken as the decimal number that the user wrote.

    A float64 product can exceed the exact one: 0.07 * 100 is 7.000000000000001, whose ceiling is 8 instead of 7.
    ``fraction`` must be finite.
    """
    return math.ceil(Fraction(str(float(fraction))) * count)


def floor_share(count: int, fraction: float) -> int:
    """Return floor(fraction * count) of the float64 product, as the published ``int(N * ratio)`` does.

    This can be one less than the exact floor: 0.29 * 100 gives 28. It is kept so that selections match published code.
    """
    return math.floor(count * fraction)
