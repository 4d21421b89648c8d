"""Metrics of a policy update, token by token, of one micro-batch (pure; nothing here carries gradient)."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from openrlhf_cov.models.covariance import token_covariance
from openrlhf_cov.models.loss import LossRecord
from openrlhf_cov.models.method import LOG_RATIO_LIMIT, transformed
from openrlhf_cov.models.window import ppo_clipped
from openrlhf_cov.utils.masked import masked_sum
from openrlhf_cov.utils.metrics import Distribution, EffectiveShare, LogHistogram, Max, Mean, Metric, Sum

RATIO_HISTOGRAM = LogHistogram(-8.0, 8.0)


@torch.no_grad()
def update_metrics(record: LossRecord) -> list[Metric]:
    """Return metrics of selection, gradients and ratios of one micro-batch; ``docs/metrics.md`` defines each name.

    The same names come back for any data.
    """
    batch = record.batch
    selected = record.selected
    seen = record.advantages
    mask = batch.action_mask.bool()
    # About the means of this micro-batch: the metric describes what was trained on, and needs no collective.
    cov = token_covariance(batch.log_probs, batch.advantages, mask)
    by_sequence = record.sequence_old is not None
    # GSPO clips one ratio per sequence, to the policy that upstream compares with. All other losses clip per token.
    clipping = replace(
        batch, advantages=seen, old_log_probs=record.sequence_old if by_sequence else batch.old_log_probs
    )
    clipped = ppo_clipped(clipping, *record.ppo_clip, by_sequence) if record.removed is None else record.removed
    log_ratio = batch.log_ratio
    ratio = clipping.sequence_ratio if by_sequence else clipping.ratio
    limit = math.inf if record.dual_clip is None else record.dual_clip
    # Tokens without gradient: clipped ones, and those of negative advantage beyond the dual clip. Upstream also cuts
    # log ratios per token, but not those of a sequence.
    still = clipped | ((seen < 0) & (ratio > limit))
    still = still if by_sequence else still | batch.cut
    # -d loss / d log_prob of PPO, up to the normaliser.
    gradient = (ratio * seen).masked_fill(still | ~mask, 0.0)
    # k times the weights of the methods, without the advantage: 1 for every token of plain PPO on policy. Summands
    # belong to the advantage, so they are left out.
    weight = transformed(torch.ones_like(seen), [replace(plan, add=None) for plan in record.plans])
    coefficient = weight * (ratio if record.coefficient is None else record.coefficient).masked_fill(still, 0.0)
    # Tokens that a method dropped on purpose do not count as clipped by PPO.
    restrained = selected if record.plans and record.plans[0].restrains else torch.zeros_like(mask)
    tokens = mask.sum()
    picked = selected.sum()
    return [
        Sum("cov/selected_count", picked),
        Mean("cov/selected_frac", picked, tokens),
        Mean("cov/selected_mean", masked_sum(cov, selected), picked),
        Mean("cov/selected_ppo_kl", -masked_sum(log_ratio, selected), picked),
        Mean("cov/selected_abs_log_ratio", masked_sum(log_ratio.abs(), selected), picked),
        Mean("gradient/coefficient_mean", masked_sum(coefficient.double(), mask), tokens),
        EffectiveShare("gradient/effective_frac", weight, mask),
        Mean("gradient/zero_frac", ((coefficient == 0) & mask).sum(), tokens),
        Mean("gradient/untrained_frac", ((gradient == 0) & mask).sum(), tokens),
        Mean("gradient/positive_mass", gradient.clamp(min=0).sum(), tokens),
        Mean("gradient/negative_mass", -gradient.clamp(max=0).sum(), tokens),
        Mean("ppo/clip_frac", (clipped & ~restrained).sum(), tokens),
        Distribution({"ppo/ratio_p99": 0.99}, RATIO_HISTOGRAM, log_ratio, mask),
        Max("ppo/ratio_max", log_ratio.masked_fill(~mask, -math.inf).max().clamp(max=LOG_RATIO_LIMIT).exp()),
        *(
            Mean(f"method/{name}", masked_sum(values.double(), mask), tokens)
            for plan in record.plans
            for name, values in plan.numbers.items()
        ),
    ]


def empty_update_frac(selected_counts: Tensor) -> float:
    """Return the share of updates in which no token was selected, from counts (U,) over all ranks; NaN without one."""
    return (selected_counts == 0).double().mean().item()
