"""What a single method selects, without the trainer around it."""

import torch

from openrlhf_cov.models.method import TokenBatch
from openrlhf_cov.models.window import ALONE, LocalWindow, Window, WindowItem, plan_step


def window_of(batches, keys, ppo_clip=(0.2, 0.2), ranks=ALONE):
    """The window of micro-batches whose keys are ``keys``, one tensor (B, A) each."""
    return Window([WindowItem(*each) for each in zip(batches, keys, strict=True)], ppo_clip, ranks)


def select_step(batches, keys, config, ppo_clip, ranks=ALONE):
    """Masks (B, A), one per micro-batch: the tokens that the first method of ``config`` acts on in this step."""
    return [plans[0].tokens for plans in plan_step(config, window_of(batches, keys, ppo_clip, ranks))]


class Given(LocalWindow):
    """A micro-batch of these covariances (B, A) and of tokens that PPO clips."""

    def __init__(self, cov, mask, clipped=None, generator=None):
        super().__init__(TokenBatch(cov, cov, cov, mask), (0.2, 0.2), generator or torch.Generator())
        self.covariance = lambda: [cov]
        self.ppo_clipped = lambda: [torch.zeros_like(mask, dtype=torch.bool) if clipped is None else clipped]


def select_given(config, cov, mask, clipped=None, generator=None):
    """Mask (B, A) of the tokens that the first method of ``config`` acts on in such a micro-batch."""
    ((plan, *_),) = plan_step(config, Given(cov, mask, clipped, generator))
    return plan.tokens
