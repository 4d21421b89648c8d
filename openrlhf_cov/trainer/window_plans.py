"""The plans of the methods for one optimizer step of the policy: when they are made, and from whose scores."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.loss import plan_micro_batch
from openrlhf_cov.models.method import Plan, TokenBatch
from openrlhf_cov.models.planning import PlanningStep, PolicySeen, plan_window, policy_seen, selected_by_covariance
from openrlhf_cov.trainer.metrics.observation import StepDiagnostics
from openrlhf_cov.trainer.model.policy import Policy
from openrlhf_cov.trainer.records import MicroBatch

# Global steps from one comparison of the selections by "old" and by "current" log-probs to the next.
OVERLAP_EVERY = 50


def window_plans(
    policy: Policy,
    planning: PlanningStep,
    diagnostics: StepDiagnostics,
    micro_batches: Sequence[MicroBatch],
    moved: bool,
    draws: torch.Generator,
) -> Callable[[int, TokenBatch], Sequence[Plan]]:
    """Return the function (number of a micro-batch, its tokens after the forward pass) -> its plans.

    Methods plan over the whole window before its first backward pass, which may need forward passes of their own. The
    training pass takes their place in a window of one micro-batch. With ``--cov_scope micro_batch`` each micro-batch
    is planned alone.

    Args:
        policy: See ``plan_with_policy``, as for the next three.
        planning: What the windows of the step have in common.
        diagnostics: The scores of the policy before its first update in this step, and metrics.
        micro_batches: The micro-batches of the window on this rank.
        moved: True if the policy was updated in this step.
        draws: Source of the random draws of ``--cov_scope micro_batch``.
    """
    config = planning.config
    plan = partial(plan_with_policy, policy, planning, diagnostics, micro_batches, moved)
    if not config.plans_globally:
        graded = [each.graded_mask for each in micro_batches]
        return lambda index, batch: plan_micro_batch(
            config,
            replace(batch, action_mask=graded[index]),
            planning.ppo_clip,
            draws,
            micro_batches[index].graded_tokens,
        )
    if moved and len(micro_batches) == 1 and can_plan_late(policy, config):
        return lambda index, batch: plan(batch.log_probs.detach())[index]
    plans = plan()
    return lambda index, batch: plans[index]


def can_plan_late(policy: Policy, config: CovConfig) -> bool:
    """Return True if methods may plan with the log-probs of the training pass instead of a pass of their own.

    They may if they need the current log-probs but no entropies, and if the training pass gives the log-probs of the
    policy itself, without dropout.
    """
    asks = config.plans_globally and config.asks_log_probs and config.entropy_policy != "current"
    return asks and not policy.draws_in_training


@torch.no_grad()
def plan_with_policy(
    policy: Policy,
    planning: PlanningStep,
    diagnostics: StepDiagnostics,
    micro_batches: Sequence[MicroBatch],
    moved: bool,
    log_probs: Tensor | None = None,
) -> list[list[Plan]]:
    """Return the plans of a window, one list per micro-batch.

    Args:
        policy: The policy, which scores the micro-batches again where the methods need its current log-probs.
        planning: What the windows of the step have in common.
        diagnostics: It has the scores of the policy before its first update in this step, and collects metrics.
        micro_batches: The micro-batches of the window on this rank.
        moved: True if the policy was updated in this step, so that these scores are no longer its own.
        log_probs: The policy's log-probs (B, A) of the only micro-batch, where the training pass gave them.
    """
    config = planning.config

    def score_now(place: int, with_entropy: bool) -> tuple[Tensor, Tensor | None]:
        each = micro_batches[place]
        scores = policy.score(each.tokens, each.action_mask, each.attention_mask, each.image_inputs, with_entropy)
        return scores.log_probs, scores.entropy

    with_entropy = config.entropy_policy is not None
    parts = [diagnostics.window_part(each, with_entropy) for each in micro_batches]
    if log_probs is None:
        seen = policy_seen(config, parts, moved, score_now)
    else:
        seen = [PolicySeen(log_probs, part.entropy) for part in parts]
    plans = plan_window(planning, parts, seen)

    # Every so often, measure how much the selection depends on whose log-probs the methods see.
    if moved and planning.global_step % OVERLAP_EVERY == 0 and any(each.by_covariance for each in config.methods):
        if config.asks_log_probs:
            other = [PolicySeen(part.log_probs, each.entropy) for part, each in zip(parts, seen, strict=True)]
        else:
            other = [PolicySeen(score_now(place, False)[0], each.entropy) for place, each in enumerate(seen)]
        by_other = plan_window(planning, parts, other)
        current, old = (plans, by_other) if config.asks_log_probs else (by_other, plans)
        diagnostics.compare(selected_by_covariance(config, current), selected_by_covariance(config, old))
    return plans
