"""Floats as integers in the same order, and the quota of a selection (pure)."""

import torch
from torch import Tensor


def ordered_bits(values: Tensor) -> Tensor:
    """Return integers that have the order of floats.

    Args:
        values: Tensor of any shape, compared as float32. -0.0 counts as 0.0, and NaN lies beyond the infinities.

    Returns:
        int32 tensor of the same shape.
    """
    bits = (values.float() + 0.0).view(torch.int32)  # + 0.0 makes -0.0 equal to 0.0
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def quota(count: Tensor, fraction: float) -> Tensor:
    """Return max(1, floor(fraction * count)), how many of ``count`` values a selection takes, without a device sync.

    The product is taken in float64, like the published ``int(N * ratio)``.

    Args:
        count: Number of values, a 0-d tensor.
        fraction: Fraction of the values in [0, 1].

    Returns:
        0-d int64 tensor on the device of ``count``.
    """
    return (count.double() * fraction).floor().long().clamp(min=1)
