"""Statistics over the unmasked entries of a tensor (pure)."""

from torch import Tensor


def masked_sum(values: Tensor, mask: Tensor) -> Tensor:
    """Sum of the entries where ``mask`` is non-zero, a 0-d tensor; masked entries never count, not even NaN ones."""
    return values.masked_fill(~mask.bool(), 0.0).sum()


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of the entries where ``mask`` is non-zero, a 0-d tensor; 0 if there are none."""
    return masked_sum(values, mask) / mask.bool().sum().clamp(min=1)
