"""Samples of a rank by a few numbers."""

import torch

from openrlhf_cov.trainer.records import TrainSample


def sample_of(number, length, **changes):
    """Return a sample of ``length`` tokens, the first of which is the prompt; ``changes`` replace fields."""
    zeros = torch.zeros(length - 1)
    values = dict(
        sample_id=number, score=1.0, abstained=False, tokens=100 * number + torch.arange(length),
        action_mask=torch.ones(length - 1, dtype=torch.bool), log_probs=zeros, entropy=zeros, advantages=zeros,
        returns=zeros,
    )  # fmt: skip
    return TrainSample(**values | changes)
