"""The policy that produced the rollouts, over all action tokens of a global step (pure; nothing carries gradient).

Every rank sees its own tokens. What needs all of them, the centre of the covariance and the responses of a prompt,
goes in as the sums of all ranks: ``token_sums`` and ``group_sums`` add up, ``rollout_metrics`` takes the totals.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from openrlhf_cov.models.covariance import TokenMeans, token_covariance
from openrlhf_cov.models.method import CORRECT
from openrlhf_cov.models.ranking import FIXED_POINT, fixed_point_sum, fixed_point_sums, means_of
from openrlhf_cov.utils.masked import masked_sum
from openrlhf_cov.utils.metrics import Distribution, LogHistogram, Mean, Metric, TopHistogram

ENTROPY_HISTOGRAM = LogHistogram(-16.0, 4.0)
"""Entropies from 1.1e-7 to 55 nats."""

ENTROPY_LEVELS = {"entropy/p10": 0.1, "entropy/p50": 0.5, "entropy/p90": 0.9}

TOP_FRACTIONS = {
    "cov/top_2e-4": 2e-4,
    "cov/top_2e-3": 2e-3,
    "cov/top_2e-2": 2e-2,
    "cov/top_0.2": 0.2,
    "cov/top_0.5": 0.5,
}
"""Table 1 of the paper."""


@dataclass(frozen=True)
class Rollout:
    """Samples of one global step that lie on one rank, padded on the right: (B, A), and (B,) per response."""

    log_probs: Tensor
    """Of the policy before the first update."""
    entropy: Tensor
    advantages: Tensor
    action_mask: Tensor
    scores: Tensor
    """(B,), NaN where a response has no score."""
    sample_ids: Tensor
    """(B,) int64; the K responses to prompt p are numbered p * K ... p * K + K - 1."""

    @property
    def prob_weighted(self) -> Tensor:
        """pi * A, (B, A)."""
        return self.log_probs.exp() * self.advantages

    def token_covariance(self, sums: Tensor) -> Tensor:
        """Paper eq. 10, (B, A), centred by the ``token_sums`` of all ranks."""
        return token_covariance(self.log_probs, self.advantages, self.action_mask, means_of(sums[:3]))


def token_sums(rollout: Rollout) -> Tensor:
    """int64 (7,): ``fixed_point_sums`` of (log pi, A) and of (log pi, pi * A), ``fixed_point_sum`` of the entropy."""
    mask = rollout.action_mask
    return torch.cat(
        [
            fixed_point_sums(rollout.log_probs, rollout.advantages, mask),
            fixed_point_sums(rollout.log_probs, rollout.prob_weighted, mask),
            fixed_point_sum(rollout.entropy, mask).view(1),
        ]
    )


def mean_entropy(sums: Tensor) -> Tensor:
    """Mean entropy of all tokens from the added ``token_sums`` of all ranks, 0-d float64; the same for any placement.

    NaN without a token.
    """
    return sums[6].double() / FIXED_POINT / sums[2]


def response_means(rollout: Rollout) -> tuple[Tensor, Tensor, Tensor]:
    """Per response, float64 (B,): length-normalised log-prob (paper eq. 9), mean advantage, 1 if it has a token."""
    mask = rollout.action_mask.bool()
    tokens = mask.sum(1)
    values = torch.stack([rollout.log_probs, rollout.advantages]).double().masked_fill(~mask, 0.0)
    log_prob, advantage = values.sum(2) / tokens.clamp(min=1)
    return log_prob, advantage, (tokens > 0).double()


def group_sums(rollout: Rollout, samples_per_prompt: int, groups: int) -> Tensor:
    """float64 (groups, 4) per prompt: responses with a token, sums of their log-probs and advantages, correct ones."""
    log_prob, advantage, counted = response_means(rollout)
    rows = torch.stack([counted, log_prob, advantage, (rollout.scores > CORRECT).double()], dim=1)
    sums = torch.zeros(groups, 4, dtype=torch.float64, device=rows.device)
    return sums.index_add_(0, rollout.sample_ids // samples_per_prompt, rows)


def accuracy_levels(samples_per_prompt: int) -> dict[str, int]:
    """{"low" | "mid" | "high": number of correct responses} nearest to accuracies 0.125, 0.5 and 0.875 (paper Fig. 8).

    All right and all wrong are left out: such prompts have no advantage. With one sample per prompt nothing is left.
    """
    if samples_per_prompt < 2:
        return {"low": -1, "mid": -1, "high": -1}
    low = max(1, math.ceil(samples_per_prompt / 8 - 0.5))
    return {"low": low, "mid": samples_per_prompt // 2, "high": samples_per_prompt - low}


@torch.no_grad()
def rollout_metrics(rollout: Rollout, sums: Tensor, groups: Tensor, samples_per_prompt: int) -> list[Metric]:
    """Entropy and covariance statistics of one rank; ``docs/metrics.md`` defines each name.

    ``sums`` (7,) and ``groups`` (G, 4) are ``token_sums`` and ``group_sums`` added over all ranks. The same names come
    back for any data.
    """
    cov = rollout.token_covariance(sums)
    return [
        *entropy_metrics(rollout.entropy, rollout.action_mask, rollout.scores),
        *covariance_metrics(rollout, cov, means_of(sums[3:6])),
        *accuracy_metrics(rollout, cov, groups, samples_per_prompt),
    ]


def entropy_metrics(entropy: Tensor, action_mask: Tensor, scores: Tensor) -> list[Metric]:
    """Mean, quantiles, and means over correct and other responses; (B, A), (B, A) and (B,)."""
    mask = action_mask.bool()
    correct = mask & (scores > CORRECT)[:, None]
    wrong = mask & (scores <= CORRECT)[:, None]
    return [
        Mean("entropy/mean", masked_sum(entropy.double(), mask), mask.sum()),
        Distribution(ENTROPY_LEVELS, ENTROPY_HISTOGRAM, entropy.clamp(min=0).log(), mask),
        Mean("entropy/correct", masked_sum(entropy.double(), correct), correct.sum()),
        Mean("entropy/wrong", masked_sum(entropy.double(), wrong), wrong.sum()),
    ]


def selection_metrics(entropy: Tensor, action_mask: Tensor, selected: Tensor) -> list[Metric]:
    """Entropies of the tokens that an update of the step selected, and of the others; all (B, A)."""
    mask = action_mask.bool()
    picked, others = mask & selected, mask & ~selected
    return [
        Mean("entropy/selected", masked_sum(entropy.double(), picked), picked.sum()),
        Mean("entropy/unselected", masked_sum(entropy.double(), others), others.sum()),
    ]


def covariance_metrics(rollout: Rollout, cov: Tensor, weighted_means: TokenMeans) -> list[Metric]:
    """The distribution of ``cov`` (B, A), and Cov(log pi, pi * A) centred by ``weighted_means``."""
    mask = rollout.action_mask.bool()
    weighted = token_covariance(rollout.log_probs, rollout.prob_weighted, mask, weighted_means)
    tokens = mask.sum()
    return [
        Mean("cov/mean", masked_sum(cov.double(), mask), tokens),
        Mean("cov/prob_weighted_mean", masked_sum(weighted.double(), mask), tokens),
        Mean("cov/positive_frac", ((cov > 0) & mask).sum(), tokens),
        Distribution(TOP_FRACTIONS, TopHistogram(), cov, mask),
    ]


def accuracy_metrics(rollout: Rollout, cov: Tensor, groups: Tensor, samples_per_prompt: int) -> list[Metric]:
    """Covariance of the prompts of three accuracies, response by response and token by token.

    ``groups`` (G, 4) are the ``group_sums`` of all ranks. A response weighs 1 / n of its prompt's n, so that the
    weights of a prompt add up to one wherever its responses lie.
    """
    log_prob, advantage, counted = response_means(rollout)
    count, log_prob_sum, advantage_sum, correct = groups[rollout.sample_ids // samples_per_prompt].T
    count = count.clamp(min=1)
    within = (log_prob - log_prob_sum / count) * (advantage - advantage_sum / count)
    mask = rollout.action_mask.bool()
    metrics: list[Metric] = []
    for level, number in accuracy_levels(samples_per_prompt).items():
        member = correct == number
        weight = counted * member / count
        tokens = mask & member[:, None]
        metrics.append(Mean(f"cov/acc_{level}", (weight * within).sum(), weight.sum()))
        metrics.append(Mean(f"cov/token_acc_{level}", masked_sum(cov.double(), tokens), tokens.sum()))
    return metrics
