"""Floats as integers in the same order, and the quota of a selection (pure)."""

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
