"""Statistics over the unmasked entries of a tensor (pure)."""

from torch import Tensor


def masked_sum(values: Tensor, mask: Tensor) -> Tensor:
    """Return the sum of the unmasked entries, a 0-d tensor. Masked entries never count, not even NaN ones.

    Args:
        values: Tensor of any shape.
        mask: Tensor of a shape that broadcasts to that of ``values``; 0 masks an entry.
    """
    return values.masked_fill(~mask.bool(), 0.0).sum()


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of the unmasked entries, a 0-d tensor; 0 if there are none.

    Args:
        values: Tensor of any shape.
        mask: Tensor of the same shape; 0 masks an entry.
    """
    return masked_sum(values, mask) / mask.bool().sum().clamp(min=1)
