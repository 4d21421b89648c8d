"""Judging responses: what estimators have in common (pure)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.models.method import CORRECT, Groups, StepRewards

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from openrlhf_cov.models.cov_config import CovConfig

# Beside the standard deviation of a group's rewards, as upstream has it.
EPSILON = 1e-9


def group_normalised(rewards: Tensor) -> Tensor:
    """Return GRPO's advantages (G, K) of rewards (G, K): less the group's mean, over its sample standard deviation.

    0 in a group of equal rewards, where rounding of the mean over that of the deviation may be anything.
    """
    if rewards.shape[1] < 2:  # a single reward has no deviation
        return rewards.new_zeros(rewards.shape)
    advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + EPSILON)
    return advantages.masked_fill(are_equal(rewards), 0.0)


def are_equal(rewards: Tensor) -> Tensor:
    """Return the mask (G, 1) of the groups whose rewards (G, K) are all the same."""
    return (rewards == rewards[:, :1]).all(1, keepdim=True)


def right(rewards: Tensor) -> Tensor:
    """Return the mask of the correct responses, of the shape of their rewards."""
    return rewards > CORRECT


def about_the_mean(rewards: Tensor) -> Tensor:
    """Return the rewards (G, K) less the mean of their group; exactly 0 in groups of equal rewards."""
    return (rewards - rewards.mean(1, keepdim=True)).masked_fill(are_equal(rewards), 0.0)


def about_the_others(rewards: Tensor) -> Tensor:
    """Return the rewards (G, K) less the mean of the others of their group; exactly 0 in groups of equal rewards."""
    others = (rewards.sum(1, keepdim=True) - rewards) / (rewards.shape[1] - 1)
    return (rewards - others).masked_fill(are_equal(rewards), 0.0)


def needs_several_responses(method_flag: str, flags: Mapping[str, Any]) -> str | None:
    """Return why an estimator that compares the responses to a prompt refuses the flags; None if it does not.

    Args:
        method_flag: The flag and value that choose the method, for the message.
        flags: See ``Method.refuses``.
    """
    count = flags["rollout.n_samples_per_prompt"]
    if count > 1:
        return None
    return f"--rollout.n_samples_per_prompt {count}: {method_flag} compares the responses to a prompt; give at least 2"


def is_two_valued(rewards: Tensor) -> bool:
    """Return True if all correct responses have the same reward, and all other responses have the same reward."""
    return all(len(of_kind.unique()) <= 1 for of_kind in (rewards[right(rewards)], rewards[~right(rewards)]))


def by_graded_responses(
    estimate: Callable[..., Tensor], rewards: Tensor, graded: Tensor, *others: Tensor, single: float = 0.0
) -> Tensor:
    """Apply an estimator to the graded responses of each prompt.

    Prompts with equally many graded responses are estimated together.

    Args:
        estimate: Rewards (G, n) of G prompts, and as much of each of ``others``, -> values (G, n).
        rewards: (G, K).
        graded: bool (G, K).
        others: Further numbers (G, K) of the responses, which ``estimate`` takes.
        single: Value of a response that is the only graded one of several responses to its prompt.

    Returns:
        The values (G, K); NaN for responses that are not graded.
    """
    if graded.all():
        return estimate(rewards, *others)
    # Prompts with n graded responses each are one rectangle (G_n, n), so an estimator needs no mask.
    found = rewards.new_full(rewards.shape, math.nan)
    counts = graded.sum(1)
    for count in counts.unique().tolist():
        chosen = (counts == count)[:, None] & graded
        if count > 1 or count == rewards.shape[1]:
            found[chosen] = estimate(*(each[chosen].view(-1, count) for each in (rewards, *others))).flatten()
        else:
            found[chosen] = single
    return found


def group_deviations(rewards: Tensor, graded: Tensor) -> Tensor:
    """Return the sample standard deviation of the graded rewards of each prompt, for all its responses (G, K).

    Args:
        rewards: (G, K), K responses to each of G prompts.
        graded: False where the reward function abstained, bool (G, K). A prompt with fewer than two graded responses
            has a deviation of 0.
    """
    deviations = by_graded_responses(lambda found: found.std(1, keepdim=True).expand_as(found), rewards, graded)
    # NaN for responses that are not graded; the deviation of a prompt is the same for all its graded ones.
    return deviations.nan_to_num(0.0).amax(1, keepdim=True).expand_as(rewards)


# --algo.advantage.estimator -> advantages (G, K) of the rewards (G, K) of G prompts. Other estimators keep the reward.
# Equal rewards give exactly 0: rounding would have a sign, by which methods select tokens.
BY_GROUP: dict[str, Callable[[Tensor], Tensor]] = {
    "group_norm": group_normalised,
    "rloo": about_the_others,
    "reinforce_baseline": about_the_mean,
    "dr_grpo": about_the_mean,
}


def step_rewards(rewards: Tensor, graded: Tensor) -> StepRewards:
    """Return the graded rewards that are compared with other rewards, each with the mean reward of its prompt.

    The only graded one of several responses to a prompt is left out, as it is left out of training.

    Args:
        rewards: (G, K), K responses to each of G prompts.
        graded: False where the reward function abstained, bool (G, K).
    """
    counts = graded.sum(1, keepdim=True)
    means = rewards.masked_fill(~graded, 0.0).sum(1, keepdim=True) / counts.clamp(min=1)
    compared = graded & ((counts > 1) | (rewards.shape[1] == 1))
    return StepRewards(rewards[compared], means.expand_as(rewards)[compared])


def mean_log_probs(log_probs: Tensor, action_mask: Tensor) -> Tensor:
    """Return the mean log-prob (B,) of the action tokens of each response, float64; 0 without a token.

    The mean is the length-normalised log-prob of the response.

    Args:
        log_probs: Log-probs (B, A).
        action_mask: Mask (B, A) of the action tokens.
    """
    mask = action_mask.bool()
    return log_probs.double().masked_fill(~mask, 0.0).sum(1) / mask.sum(1).clamp(min=1)


def response_advantages(
    rewards: Tensor,
    graded: Tensor,
    estimator: str,
    config: CovConfig,
    entropy: float,
    log_probs: Tensor | None = None,
) -> Tensor:
    """Compare the reward of each response with those of the other responses to its prompt.

    Args:
        rewards: (G, K), K responses to each of G prompts.
        graded: False where the reward function abstained, bool (G, K).
        estimator: Value of ``--algo.advantage.estimator``. An estimator of ``config.methods`` takes its place.
        config: The settings of the step.
        entropy: Mean entropy of all action tokens, nats.
        log_probs: ``mean_log_probs`` of the responses (G, K) under the policy before the updates of the step, for an
            estimator that takes them.

    Returns:
        The advantages (G, K), NaN for responses that are left out.

    Raises:
        RunStopped: An estimator for correct and incorrect responses meets other rewards.
    """
    method = config.estimator
    if method is not None:
        if method.slot.two_valued and not is_two_valued(rewards[graded]):
            raise RunStopped(
                f"{method.flag}: all correct responses must have one reward, above {CORRECT}, and all others another "
                f"one; got {', '.join(f'{value:g}' for value in rewards[graded].unique()[:5])}; use rewards without "
                "shaping"
            )
        estimate = method.slot.estimate
        step = step_rewards(rewards, graded)

        def of_graded(found: Tensor, found_log_probs: Tensor | None = None) -> Tensor:
            return estimate(config, Groups(found, entropy, found_log_probs, step))

        others = [] if log_probs is None else [log_probs]
        # A method leaves out a response that has nothing to be compared with, also its KL penalty.
        return by_graded_responses(of_graded, rewards, graded, *others, single=math.nan)
    if estimator in BY_GROUP:
        return by_graded_responses(BY_GROUP[estimator], rewards, graded)
    if estimator == "flash_reinforce":  # its group is the whole step
        rewards = rewards - rewards[graded].mean()
    return rewards.masked_fill(~graded, math.nan)
