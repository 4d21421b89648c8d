"""Process rewards of an implicit process reward model: the maths of PRIME (pure).

The model scores a response by its log ratios to a reference, q_t = log pi_prm(y_t) - log pi_ref(y_t). In all shapes K
is the number of responses to a prompt, and A the number of predicted positions.

The command line imports this module without PyTorch, so functions that need PyTorch import it when they are called.

Reference:
    Cui et al., arXiv 2502.01456, sections 2.2 and 3.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

# Added to the largest return before a division by it, as in the released code.
EPSILON = 1e-6


def correctness_losses(log_ratios: Tensor, action_mask: Tensor, correct: Tensor, beta: float) -> Tensor:
    """Return the cross-entropy of sigmoid(beta * sum of q) against the correctness of each response.

    Args:
        log_ratios: q, (K, A); carries the gradient.
        action_mask: True where a token belongs to the response, (K, A).
        correct: 1 for a correct response, 0 for an incorrect one, (K,).
        beta: Scale of the log ratios.

    Returns:
        (K,). The value is log(1 + exp(z)) - correct * z with z = beta * sum of q, which does not overflow.
    """
    logits = beta * response_log_ratios(log_ratios, action_mask)
    # The form with clamp and abs has another gradient at z = 0, where every model starts.
    return logits.logaddexp(logits.new_zeros(())) - correct * logits


def response_log_ratios(log_ratios: Tensor, action_mask: Tensor) -> Tensor:
    """Return the sum of q over the tokens of each response, (K,).

    Args:
        log_ratios: q, (K, A).
        action_mask: True where a token belongs to the response, (K, A).
    """
    return log_ratios.masked_fill(~action_mask.bool(), 0.0).sum(1)


def process_rewards(log_ratios: Tensor, action_mask: Tensor, beta: float) -> Tensor:
    """Return beta * q of every token of a response but the last one, (K, A); 0 elsewhere.

    The last token carries the outcome reward.

    Args:
        log_ratios: q, the log ratios (K, A) to the reference.
        action_mask: True where a token belongs to the response, (K, A).
        beta: Scale of the log ratios.
    """
    from openrlhf_cov.models.returns import sums_to_the_end

    mask = action_mask.bool()
    is_last = mask & (sums_to_the_end(mask.long()) == 1)
    return (beta * log_ratios).masked_fill(~mask | is_last, 0.0)


def largest_return(rewards: Sequence[Tensor], graded: Sequence[Tensor]) -> float:
    """Return the largest absolute sum of process rewards from any token to the end of its response.

    Args:
        rewards: (K, A) of each prompt of a step.
        graded: True where the reward function did not abstain, (K,) of each prompt.
    """
    from openrlhf_cov.models.returns import sums_to_the_end

    largest = 0.0
    for of_prompt, counts in zip(rewards, graded, strict=True):
        returns = sums_to_the_end(of_prompt[counts]).abs()
        if returns.numel():
            largest = max(largest, float(returns.max()))
    return largest


def against_other_responses(rewards: Tensor, action_mask: Tensor, graded: Tensor) -> Tensor:
    """Return the process rewards of one prompt with a leave-one-out baseline.

    Args:
        rewards: (K, A).
        action_mask: (K, A).
        graded: True where the reward function did not abstain, (K,). Other responses are left out of the baseline.

    Returns:
        r_t * n / (n - 1) - (sum over the n graded responses of their mean reward) / (n - 1) on every token of a graded
        response, (K, A); 0 elsewhere, and everywhere if only one response is graded. A response's mean is over its
        tokens, so a long response weighs as much in the baseline as a short one.
    """
    count = int(graded.sum())
    if count < 2:
        return rewards.new_zeros(rewards.shape)
    # (K,); a response's own reward is part of the sum below, which the factor n / (n - 1) of its own reward undoes.
    means = rewards.sum(1) / action_mask.sum(1).clamp(min=1)
    baseline = means[graded.bool()].sum() / (count - 1)
    found = rewards * (count / (count - 1)) - baseline
    return found.masked_fill(~action_mask.bool() | ~graded.bool()[:, None], 0.0)


def outcomes_against_others(correct: Tensor) -> Tensor:
    """Return the outcome (G, K) of each response less the mean outcome of the other responses to its prompt."""
    count = correct.shape[1]
    if count < 2:
        return correct.new_zeros(correct.shape)
    return (correct * count - correct.sum(1, keepdim=True)) / (count - 1)


def ordered_pairs(totals: Tensor, correct: Tensor) -> tuple[float, int]:
    """Count the pairs of a correct and an incorrect response to one prompt whose order a model finds.

    Args:
        totals: Score of each graded response, (n,).
        correct: 1 or 0, (n,).

    Returns:
        The number of pairs whose correct response has the higher score, ties counting one half, and of all pairs.
    """
    # (C, 1) and (1, n - C), so that their difference has one entry for each pair.
    of_correct = totals[correct > 0][:, None]
    of_incorrect = totals[correct == 0][None, :]
    apart = of_correct - of_incorrect
    return float((apart > 0).sum() + 0.5 * (apart == 0).sum()), apart.numel()
