"""Predictions of how much the entropy falls in a step, from the tokens of its rollout (pure).

Every prediction is of -dH / eta: the fall of the mean entropy for each unit of an unknown step size. They are compared
with the measured fall by rank correlation.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class EntropyDrop:
    """Predictions of the fall of the entropy, 0-d float64 tensors: means over the action tokens of a rollout.

    Attributes:
        theorem1: Cov(log p, p A), policy gradient (Theorem 1 of arXiv 2505.22617).
        theorem2: Cov(log p, A), natural policy gradient (Theorem 2).
        discriminator: mean(A (S - E)) with S = p (H + log p) and its expectation E = sum p^2 (H + log p) at the
            token's own state: the exact rate of a policy gradient if states shared no parameters.
        natural: mean(A (H + log p)), the same for a natural gradient. It includes the drift.
        drift: (m_S - m_F) mean(H), with m_S = mean(max(A, 0)) and m_F = mean(max(-A, 0)). More positive than negative
            mass lowers the entropy.
    """

    theorem1: Tensor
    theorem2: Tensor
    discriminator: Tensor
    natural: Tensor
    drift: Tensor


def predicted_drop(
    log_probs: Tensor, entropy: Tensor, discriminator_mean: Tensor, advantages: Tensor, action_mask: Tensor
) -> EntropyDrop:
    """Return the predictions for one rollout.

    Args:
        log_probs: Log-probs (B, A) of the sampled tokens under the policy that sampled them.
        entropy: Entropy (B, A) of that policy at each token, in nats.
        discriminator_mean: E (B, A), as of ``openrlhf_cov.models.token_head.discriminator_means``.
        advantages: Advantages (B, A) of the estimator, before any weight of a method.
        action_mask: True (B, A) for the action tokens; at least one.

    Returns:
        The predictions. A theorem's covariance has its centre at the mean of all action tokens, so a constant that is
        added to all advantages changes nothing in ``theorem2``; the other predictions have the centre of each state.
    """
    mask = action_mask.bool()
    # (N,) of the N action tokens. In float64: the covariances are small differences of large sums.
    log_p = log_probs[mask].double()
    nats = entropy[mask].double()
    advantage = advantages[mask].double()
    p = log_p.exp()
    # The entropy discriminator S of each sampled token, positive where -log p is below the entropy of the state.
    score = p * (nats + log_p)
    return EntropyDrop(
        theorem1=_covariance(log_p, p * advantage),
        theorem2=_covariance(log_p, advantage),
        discriminator=(advantage * (score - discriminator_mean[mask].double())).mean(),
        natural=(advantage * (nats + log_p)).mean(),
        drift=advantage.mean() * nats.mean(),
    )


def _covariance(first: Tensor, second: Tensor) -> Tensor:
    return torch.mean((first - first.mean()) * (second - second.mean()))
