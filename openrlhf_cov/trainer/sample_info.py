"""What we hand from the controller to the replay buffers beside upstream's fields: entries of ``Experience.info``."""

from typing import Any

import torch
from torch import Tensor

SAMPLE_ID = "sample_id"
"""Number of the sample within its rollout, given by the controller."""
ENTROPY = "entropy"
"""Entropies of a sample's tokens under the policy that scored it."""

PROXY = "proxy"
"""Log-probs of a sample's tokens among the probable ones of that policy; there if a method asks for them."""

ABSTAINED = "reward/abstained_frac"
"""1 for a sample whose reward function abstained, else 0; its mean is the metric of this name."""


def abstentions(info: dict[str, Any], count: int) -> Tensor:
    """Return a mask (B,) of the samples whose reward function abstained; ``count`` is B."""
    if ABSTAINED not in info:
        return torch.zeros(count, dtype=torch.bool)
    flags = info[ABSTAINED]
    if isinstance(flags, list):
        flags = torch.stack([torch.as_tensor(flag).flatten() for flag in flags])
    return torch.as_tensor(flags).flatten() > 0


def sample_ids(info: dict[str, Any]) -> Tensor:
    """(B,) int64; upstream batches entries of ``info`` into a tensor or a list of tensors."""
    ids = info[SAMPLE_ID]
    return (torch.stack([i.flatten() for i in ids]) if isinstance(ids, list) else ids).flatten().long()
