"""Covariance of log-probability and advantage, whose largest values drive the entropy (pure)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from openrlhf_cov.utils.masked import masked_mean


@dataclass(frozen=True)
class TokenMeans:
    """Means over action tokens, 0-d tensors: the centre of the covariance."""

    log_prob: Tensor
    advantage: Tensor

    @classmethod
    def of(cls, log_probs: Tensor, advantages: Tensor, action_mask: Tensor) -> "TokenMeans":
        """Return the means over the unmasked tokens of one set; 0 where every token is masked.

        Args:
            log_probs: Log-probs (B, A).
            advantages: Advantages (B, A).
            action_mask: Mask (B, A) of the action tokens.
        """
        return cls(masked_mean(log_probs, action_mask), masked_mean(advantages, action_mask))


def token_covariance(
    log_probs: Tensor, advantages: Tensor, action_mask: Tensor, means: TokenMeans | None = None
) -> Tensor:
    """Return the covariance contribution of every action token (paper, eq. 10), without gradient.

    cov[b, t] = (log_probs[b, t] - mean(log_probs)) * (advantages[b, t] - mean(advantages))

    Args:
        log_probs: Log-probs (B, A).
        advantages: Advantages (B, A).
        action_mask: Mask (B, A) of the action tokens.
        means: Means over a larger set of tokens; without them both means run over the unmasked tokens of this call,
            that is of one micro-batch, as in the published code.

    Returns:
        Covariances (B, A), 0 where ``action_mask`` is 0. A token whose advantage is the mean has 0, also where its
        probability is 0.
    """
    mask = action_mask.bool()
    log_probs = log_probs.detach()
    advantages = advantages.detach()
    means = means or TokenMeans.of(log_probs, advantages, mask)
    surplus = advantages - means.advantage
    # A token of probability 0 has log-prob -inf, and -inf * 0 would be NaN.
    return ((log_probs - means.log_prob) * surplus).masked_fill(~mask | (surplus == 0), 0.0)


def select_largest(priority: Tensor, places: Tensor, count: int) -> Tensor:
    """Return the mask (B, A) of the ``count`` largest of some entries of ``priority`` (B, A).

    Of equal entries those are taken that ``torch.topk`` takes of the entries, as in the published code.

    Args:
        priority: Values (B, A); an entry of -inf is never selected.
        places: Places (n,) of the entries among all B A, in ascending order.
        count: How many entries to select; fewer are selected if fewer are above -inf.
    """
    flat = priority.flatten()
    best = flat[places].topk(min(count, len(places)))
    selected = torch.zeros_like(flat, dtype=torch.bool)
    return selected.scatter(0, places[best.indices], best.values > -math.inf).view_as(priority)
