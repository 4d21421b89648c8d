"""Planning one optimizer step: the trainer and the lab show their micro-batches to the methods in one way."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.method import Plan, TokenBatch
from openrlhf_cov.models.ranking import token_keys
from openrlhf_cov.models.slots import Restraint
from openrlhf_cov.models.window import ALONE, Ranks, Window, WindowItem, plan_step

# (place of a micro-batch, whether entropies are asked for) -> log-probs and entropies (B, A) of the policy now.
ScoreNow = Callable[[int, bool], tuple[Tensor, Tensor | None]]


@dataclass(frozen=True)
class WindowPart:
    """One micro-batch of an optimizer step as it was sampled; tensors (B, A) unless stated otherwise."""

    # Numbers of the samples, int64 (B,), which break ties and seed draws.
    sample_ids: Tensor
    log_probs: Tensor
    advantages: Tensor
    action_mask: Tensor
    # Entropies in nats, where a method asks for entropies.
    entropy: Tensor | None = None
    # Log-probs among the probable tokens, where a method asks for them by ``proxy_min_p``.
    proxy: Tensor | None = None
    # Expectation of the entropy discriminator at each token, where a method needs it.
    discriminator_mean: Tensor | None = None


@dataclass(frozen=True)
class PlanningStep:
    """The settings that the windows of one global step share."""

    config: CovConfig
    seed: int
    # Number of the global step, from 0 in the trainer and from 1 in the lab and in TRL; in verl of the optimizer step,
    # from 1. It seeds the random choices of the methods, so another start would change the results of all runs.
    global_step: int
    # (eps_low, eps_high) of the PPO clip in force.
    ppo_clip: tuple[float, float]
    # Mean entropy of all tokens of the rollout, 0-d.
    rollout_entropy: Tensor
    ranks: Ranks = ALONE
    # Share of the prompts of the rollout with a response of positive advantage, 0-d, where the settings use it.
    positive_prompts: Tensor | None = None
    # Number of the pass over the rollout, from 0. Every pass draws its uniform samples anew.
    epoch: int = 0


@dataclass(frozen=True)
class PolicySeen:
    """The policy that the methods see on one micro-batch; tensors (B, A)."""

    log_probs: Tensor
    # Entropies in nats, where a method asks for entropies.
    entropy: Tensor | None = None


def policy_seen(config: CovConfig, parts: Sequence[WindowPart], moved: bool, score_now: ScoreNow) -> list[PolicySeen]:
    """Return the policy that the methods see on each micro-batch of a window.

    Until the first update of a step the values of the rollout are those of the current policy. After it they are used
    only where the settings ask for the old policy.

    Args:
        config: Settings of the loss.
        parts: The micro-batches of the window.
        moved: True after the first update of the step.
        score_now: Scores one micro-batch with the current policy; called at most once for each.
    """
    # Before the first update the scores of the rollout are those of the current policy, so no pass is needed.
    needs_log_probs = moved and config.asks_log_probs
    needs_entropy = moved and config.entropy_policy == "current"
    found = []
    for place, part in enumerate(parts):
        seen = PolicySeen(part.log_probs, part.entropy)
        if needs_log_probs or needs_entropy:
            log_probs_now, entropy_now = score_now(place, needs_entropy)
            seen = PolicySeen(
                log_probs_now if needs_log_probs else part.log_probs,
                entropy_now if needs_entropy else part.entropy,
            )
        found.append(seen)
    return found


def plan_window(step: PlanningStep, parts: Sequence[WindowPart], seen: Sequence[PolicySeen]) -> list[list[Plan]]:
    """Return the plans of each micro-batch of an optimizer step, one for each slot of ``config.token_slots``.

    The methods see all tokens of the step at once, those of other ranks included, so every rank must call this
    function together.

    Args:
        step: What the windows of the global step share.
        parts: The micro-batches of this rank, as they were sampled.
        seen: The policy that the methods see on each of these micro-batches.
    """
    # A method's log-probs may be those of the current policy; the old ones in the batch are always those of the
    # rollout.
    items = []
    for part, policy in zip(parts, seen, strict=True):
        keys_of_epoch = partial(token_keys, step.seed, step.global_step, part.sample_ids, part.action_mask.shape[1])
        item = WindowItem(
            TokenBatch(policy.log_probs, part.log_probs, part.advantages, part.action_mask),
            # Equal values are ordered alike in every pass, so that the same values select the same tokens.
            keys_of_epoch(0),
            # The first pass has the same keys for both.
            random_keys=keys_of_epoch(step.epoch) if step.epoch else None,
            entropy=policy.entropy,
            old_entropy=part.entropy,
            proxy=part.proxy,
            discriminator_mean=part.discriminator_mean,
        )
        items.append(item)
    window = Window(items, step.ppo_clip, step.ranks, step.rollout_entropy, step.positive_prompts)
    return plan_step(step.config, window)


def selected_by_covariance(config: CovConfig, plans: Sequence[Sequence[Plan]]) -> list[Tensor]:
    """Return the masks (B, A) of the tokens on which the methods by covariance act.

    Args:
        config: The settings by which the plans were made.
        plans: The plans of each micro-batch, as ``plan_window`` returns them.

    Returns:
        One mask for each micro-batch and method by covariance; a run has at most one such method.
    """
    chosen = [isinstance(slot, Restraint) and slot.by_covariance for slot in config.token_slots]
    return [plan.tokens for each in plans for plan, is_chosen in zip(each, chosen, strict=True) if is_chosen]
