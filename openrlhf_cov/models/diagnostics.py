"""What a policy update did, token by token: the metrics of one micro-batch (pure; nothing here carries gradient)."""

import math

import torch
from torch import Tensor

from openrlhf_cov.models.covariance import token_covariance
from openrlhf_cov.models.objectives import TokenBatch, ppo_clipped
from openrlhf_cov.utils.masked import masked_sum
from openrlhf_cov.utils.metrics import Max, Mean, Quantile


@torch.no_grad()
def update_metrics(
    batch: TokenBatch, selected: Tensor | None, eps_low: float, eps_high: float
) -> list[Mean | Max | Quantile]:
    """Covariance, selection and ratio statistics of one micro-batch; ``docs/metrics.md`` defines each name.

    ``selected`` (B, A) is the mask of the tokens a covariance method restrained, None where there is no such method;
    ``eps_low`` and ``eps_high`` are those of the PPO clip in force. The same names come back for any data.
    """
    mask = batch.action_mask.bool()
    selected = torch.zeros_like(mask) if selected is None else selected & mask
    cov = token_covariance(batch.log_probs, batch.advantages, mask)
    clipped = ppo_clipped(batch, eps_low, eps_high) & ~selected
    log_ratio = batch.log_probs - batch.old_log_probs
    tokens, picked = mask.sum(), selected.sum()
    return [
        Mean("cov/mean", masked_sum(cov, mask), tokens),
        Mean("cov/selected_frac", picked, tokens),
        Mean("cov/selected_mean", masked_sum(cov, selected), picked),
        Mean("ppo/clip_frac", clipped.sum(), tokens),
        Quantile("ppo/ratio_p99", log_ratio, mask, 0.99),
        Max("ppo/ratio_max", log_ratio.masked_fill(~mask, -math.inf).max().exp()),
    ]


def entropy_metrics(entropy: Tensor, action_mask: Tensor) -> list[Mean]:
    """Token-mean entropy in nats of one scored micro-batch; both tensors (B, A)."""
    return [Mean("entropy/mean", masked_sum(entropy, action_mask), action_mask.bool().sum())]
