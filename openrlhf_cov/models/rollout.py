"""Entropy and covariance of the policy that produced the rollout, over all action tokens of a global step.

The functions are pure, and nothing here carries gradient. Each rank calls them with its own tokens. The means of all
tokens, and those of the responses to one prompt, need the tokens of other ranks as well. So every rank computes
``token_sums`` and ``group_sums``, the caller adds them up over the ranks, and ``entropy_covariance_metrics`` takes the
totals.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from openrlhf_cov.models.covariance import TokenMeans, token_covariance
from openrlhf_cov.models.method import CORRECT
from openrlhf_cov.models.ranking import FIXED_POINT, fixed_point_sum, fixed_point_sums, means_of
from openrlhf_cov.utils.masked import masked_sum
from openrlhf_cov.utils.metric_table import POSITIONS
from openrlhf_cov.utils.metrics import Distribution, LogHistogram, Mean, Metric, TopHistogram

# Entropies from 1.1e-7 to 55 nats.
ENTROPY_HISTOGRAM = LogHistogram(-16.0, 4.0)

ENTROPY_LEVELS = {"entropy/p10": 0.1, "entropy/p50": 0.5, "entropy/p90": 0.9}

# Entries of ``token_sums``: the sums of (log pi, A) with the number of tokens last, those of (log pi, pi * A), and the
# sum of the entropy.
ADVANTAGE_SUMS = slice(0, 3)
TOKEN_COUNT = 2
WEIGHTED_SUMS = slice(3, 6)
ENTROPY_SUM = 6

# Table 1 of the paper.
TOP_FRACTIONS = {
    "cov/top_2e-4": 2e-4,
    "cov/top_2e-3": 2e-3,
    "cov/top_2e-2": 2e-2,
    "cov/top_0.2": 0.2,
    "cov/top_0.5": 0.5,
}


@dataclass(frozen=True)
class RolloutTokens:
    """Samples of one global step that lie on one rank, padded on the right: (B, A), and (B,) per response."""

    # Of the policy before the first update.
    log_probs: Tensor
    entropy: Tensor
    advantages: Tensor
    # Only of responses whose reward function did not abstain.
    action_mask: Tensor
    # (B,), NaN where a response has no score.
    scores: Tensor
    # (B,) int64; the K responses to prompt p are numbered p * K ... p * K + K - 1.
    sample_ids: Tensor
    # Log-probs among the probable tokens, where a method asks for them.
    proxy: Tensor | None = None
    # Expectation of the entropy discriminator at each token, where a method needs it.
    discriminator_mean: Tensor | None = None

    @property
    def prob_weighted(self) -> Tensor:
        """pi * A, (B, A)."""
        return self.log_probs.exp() * self.advantages

    def token_covariance(self, sums: Tensor) -> Tensor:
        """Return the covariance (B, A) of paper eq. 10, centred by the ``token_sums`` of all ranks."""
        return token_covariance(self.log_probs, self.advantages, self.action_mask, means_of(sums[ADVANTAGE_SUMS]))


def token_sums(rollout: RolloutTokens) -> Tensor:
    """Return the sums from which the means of all ranks follow, int64 (7,).

    They are ``fixed_point_sums`` of (log pi, A) and of (log pi, pi * A), and ``fixed_point_sum`` of the entropy; see
    ``ADVANTAGE_SUMS``, ``WEIGHTED_SUMS`` and ``ENTROPY_SUM``.
    """
    mask = rollout.action_mask
    return torch.cat(
        [
            fixed_point_sums(rollout.log_probs, rollout.advantages, mask),
            fixed_point_sums(rollout.log_probs, rollout.prob_weighted, mask),
            fixed_point_sum(rollout.entropy, mask).view(1),
        ]
    )


def mean_entropy(sums: Tensor) -> Tensor:
    """Return the mean entropy of all tokens, in nats, 0-d float64; NaN without a token. It is equal for any placement.

    Args:
        sums: ``token_sums`` (7,) added over all ranks.
    """
    return sums[ENTROPY_SUM].double() / FIXED_POINT / sums[TOKEN_COUNT]


@dataclass(frozen=True)
class Responses:
    """Means over the tokens of each response, float64 (B,); 0 where it has none."""

    # Length-normalised log pi(y|x), paper eq. 9.
    log_prob: Tensor
    advantage: Tensor
    entropy: Tensor
    # 1 where the response has a token, else 0.
    counted: Tensor

    @classmethod
    def of(cls, rollout: RolloutTokens) -> "Responses":
        mask = rollout.action_mask.bool()
        tokens = mask.sum(1)
        values = torch.stack([rollout.log_probs, rollout.advantages, rollout.entropy]).double().masked_fill(~mask, 0.0)
        # (3, B, A) to (3, B).
        log_prob, advantage, entropy = values.sum(2) / tokens.clamp(min=1)
        return cls(log_prob, advantage, entropy, (tokens > 0).double())

    @property
    def prob_weighted(self) -> Tensor:
        """pi(y|x) A(y|x) of paper eq. 8, (B,), pi = exp of the length-normalised log pi."""
        return self.log_prob.exp() * self.advantage * self.counted


def group_sums(rollout: RolloutTokens, samples_per_prompt: int, groups: int) -> Tensor:
    """Return sums over the responses to each prompt; the sums of several ranks add up.

    Args:
        rollout: Tokens of this rank.
        samples_per_prompt: Responses to a prompt.
        groups: Number of prompts of the step on all ranks.

    Returns:
        float64 (groups, 5): responses with a token, the sums of their log pi, A and pi A, and the correct responses.
    """
    means = Responses.of(rollout)
    columns = (means.counted, means.log_prob, means.advantage, means.prob_weighted, rollout.scores > CORRECT)
    # (B, 5), and below (groups, 5): the responses of a prompt may lie on several ranks.
    rows = torch.stack([column.double() for column in columns], dim=1)
    return _sums_by_prompt(rows, rollout, samples_per_prompt, groups)


def positive_sums(rollout: RolloutTokens, samples_per_prompt: int, groups: int) -> Tensor:
    """Return sums over the responses to each prompt that tell if it has a positive advantage; sums of ranks add up.

    An advantage of a response is the mean of those of its tokens.

    Args:
        rollout: Tokens of this rank.
        samples_per_prompt: Responses to a prompt.
        groups: Number of prompts of the step on all ranks.

    Returns:
        float64 (groups, 2): responses with a token, and the sum of their positive advantages.
    """
    means = Responses.of(rollout)
    rows = torch.stack([means.counted, means.advantage.clamp(min=0.0)], dim=1)
    return _sums_by_prompt(rows, rollout, samples_per_prompt, groups)


def _sums_by_prompt(rows: Tensor, rollout: RolloutTokens, samples_per_prompt: int, groups: int) -> Tensor:
    """Return the sums (groups, C) of the rows (B, C) of each prompt's responses, float64."""
    sums = torch.zeros(groups, rows.shape[1], dtype=torch.float64, device=rows.device)
    return sums.index_add_(0, rollout.sample_ids // samples_per_prompt, rows)


def positive_share(sums: Tensor) -> Tensor:
    """Return the share of prompts with a positive advantage, 0-d.

    Args:
        sums: ``positive_sums`` (groups, 2) added over all ranks.
    """
    return (sums[:, 1] > 0).sum().double() / (sums[:, 0] > 0).sum().clamp(min=1)


def accuracy_levels(samples_per_prompt: int) -> dict[str, int]:
    """Return the numbers of correct responses nearest to the accuracies 0.125, 0.5 and 0.875 (paper Fig. 8).

    Prompts with all responses correct, or none, are left out, because they have no advantage.

    Returns:
        ``low``, ``mid`` and ``high`` -> number of correct responses; -1, which no prompt has, for one response per
        prompt.
    """
    if samples_per_prompt < 2:
        return {"low": -1, "mid": -1, "high": -1}
    low = max(1, math.ceil(samples_per_prompt / 8 - 0.5))
    return {"low": low, "mid": samples_per_prompt // 2, "high": samples_per_prompt - low}


@torch.no_grad()
def entropy_covariance_metrics(
    rollout: RolloutTokens, sums: Tensor, groups: Tensor, samples_per_prompt: int
) -> list[Metric]:
    """Compute the entropy and covariance statistics of one rank; ``docs/metrics.md`` defines each name.

    Args:
        rollout: Tokens of this rank.
        sums: ``token_sums`` (7,) added over all ranks.
        groups: ``group_sums`` (G, 5) added over all ranks.
        samples_per_prompt: Responses to a prompt.

    Returns:
        Metrics with the same names for any data.
    """
    cov = rollout.token_covariance(sums)
    return [
        *entropy_metrics(rollout.entropy, rollout.action_mask, rollout.scores),
        *covariance_metrics(rollout, cov, means_of(sums[WEIGHTED_SUMS])),
        *prompt_metrics(rollout, cov, groups, samples_per_prompt),
    ]


def entropy_metrics(entropy: Tensor, action_mask: Tensor, scores: Tensor) -> list[Metric]:
    """Return the metrics of the entropy: mean, quantiles, and means by correctness and by position in the response.

    Args:
        entropy: Entropies (B, A), in nats.
        action_mask: Mask (B, A) of the action tokens.
        scores: Score (B,) of each response. A response with NaN is neither correct nor incorrect.
    """
    mask = action_mask.bool()
    correct = mask & (scores > CORRECT)[:, None]
    wrong = mask & (scores <= CORRECT)[:, None]
    return [
        Mean("entropy/mean", masked_sum(entropy.double(), mask), mask.sum()),
        Distribution(ENTROPY_LEVELS, ENTROPY_HISTOGRAM, entropy.clamp(min=0).log(), mask),
        Mean("entropy/correct", masked_sum(entropy.double(), correct), correct.sum()),
        Mean("entropy/wrong", masked_sum(entropy.double(), wrong), wrong.sum()),
        *position_metrics(entropy, mask),
    ]


def position_metrics(entropy: Tensor, mask: Tensor) -> list[Metric]:
    """Return the mean entropies of the first, second, ... action token of the responses, ``POSITIONS`` metrics.

    Args:
        entropy: Entropies (B, A), in nats.
        mask: Mask (B, A) of the action tokens, bool.
    """
    # Number of each action token within its response, from 0. Masked and later tokens go to a last place, which is not
    # read.
    place = (mask.cumsum(1) - 1).masked_fill(~mask, POSITIONS).clamp(max=POSITIONS).flatten()
    sums = torch.zeros(2, POSITIONS + 1, dtype=torch.float64, device=entropy.device)
    sums[0].index_add_(0, place, entropy.double().masked_fill(~mask, 0.0).flatten())
    sums[1].index_add_(0, place, torch.ones_like(place, dtype=torch.float64))
    return [Mean(f"entropy/position_{each}", *sums[:, each]) for each in range(POSITIONS)]


def selection_metrics(entropy: Tensor, action_mask: Tensor, selected: Tensor) -> list[Metric]:
    """Return the mean entropies of the tokens that an update of the step selected, and of the other action tokens.

    Args:
        entropy: Entropies (B, A), in nats.
        action_mask: Mask (B, A) of the action tokens.
        selected: Mask (B, A) of the selected tokens.
    """
    mask = action_mask.bool()
    picked = mask & selected
    others = mask & ~selected
    return [
        Mean("entropy/selected", masked_sum(entropy.double(), picked), picked.sum()),
        Mean("entropy/unselected", masked_sum(entropy.double(), others), others.sum()),
    ]


def covariance_metrics(rollout: RolloutTokens, cov: Tensor, weighted_means: TokenMeans) -> list[Metric]:
    """Return the metrics of the covariances of all tokens, and the mean of Cov(log pi, pi * A).

    Args:
        rollout: Tokens of this rank.
        cov: Covariance (B, A) of each token.
        weighted_means: Means of log pi and of pi * A over all ranks.
    """
    mask = rollout.action_mask.bool()
    weighted = token_covariance(rollout.log_probs, rollout.prob_weighted, mask, weighted_means)
    tokens = mask.sum()
    return [
        Mean("cov/mean", masked_sum(cov.double(), mask), tokens),
        Mean("cov/prob_weighted_mean", masked_sum(weighted.double(), mask), tokens),
        Mean("cov/positive_frac", ((cov > 0) & mask).sum(), tokens),
        Distribution(TOP_FRACTIONS, TopHistogram(), cov, mask),
    ]


def prompt_metrics(rollout: RolloutTokens, cov: Tensor, groups: Tensor, samples_per_prompt: int) -> list[Metric]:
    """Compute averages over responses and prompts: entropy (paper, eq. 5) and covariances within a prompt (eq. 8).

    The covariances are those of (log pi, A) and of (log pi, pi A), over all prompts and over the prompts of three
    accuracies; for the latter also token by token. A response weighs 1 / n of its prompt's n, so the weights of a
    prompt add up to one on whichever ranks its responses are. One sample per prompt has no covariance.

    Args:
        rollout: Tokens of this rank, B rows.
        cov: Covariance (B, A) of each token.
        groups: ``group_sums`` (G, 5) of all ranks.
        samples_per_prompt: Responses to a prompt.
    """
    means = Responses.of(rollout)
    counted = means.counted
    # (B,) each: the sums of the prompt that a response belongs to.
    count, log_prob, advantage, weighted, correct = groups[rollout.sample_ids // samples_per_prompt].T
    count = count.clamp(min=1)
    # Distance of the response from the mean of its prompt.
    apart = means.log_prob - log_prob / count
    within = apart * (means.advantage - advantage / count)
    prob_weighted = apart * (means.prob_weighted - weighted / count)
    # The weight of each response, (B,). One response of a prompt has no covariance with others.
    share = counted / count if samples_per_prompt > 1 else torch.zeros_like(counted)
    metrics: list[Metric] = [
        Mean("entropy/response_mean", means.entropy.sum(), counted.sum()),
        Mean("cov/group_mean", (share * within).sum(), share.sum()),
        Mean("cov/group_weighted_mean", (share * prob_weighted).sum(), share.sum()),
    ]
    mask = rollout.action_mask.bool()
    for level, number in accuracy_levels(samples_per_prompt).items():
        member = correct == number
        weight = share * member
        tokens = mask & member[:, None]
        metrics.append(Mean(f"cov/acc_{level}", (weight * within).sum(), weight.sum()))
        metrics.append(Mean(f"cov/group_weighted_acc_{level}", (weight * prob_weighted).sum(), weight.sum()))
        metrics.append(Mean(f"cov/token_acc_{level}", masked_sum(cov.double(), tokens), tokens.sum()))
    return metrics
