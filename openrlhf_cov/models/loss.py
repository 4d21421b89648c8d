"""The policy loss of every run: upstream's PPO loss with the methods of the run around it, as a pure function."""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.method import Plan, TokenBatch, transformed
from openrlhf_cov.models.slots import UNCLIPPED, TokenPenalty
from openrlhf_cov.models.window import LocalWindow


@dataclass(frozen=True)
class LossRecord:
    """The record of one call of the loss on a micro-batch; tensors (B, A) without gradient."""

    batch: TokenBatch
    # A', times k / ratio of a surrogate: what upstream's loss saw.
    advantages: Tensor
    # One of each of the ``token_slots`` of the settings.
    plans: Sequence[Plan]
    # (eps_low, eps_high) of the PPO clip in force.
    ppo_clip: tuple[float, float]
    # With GSPO, the log-probs that its ratio of a sequence is to.
    sequence_old: Tensor | None = None
    # k of a surrogate; None: PPO's, the ratio.
    coefficient: Tensor | None = None
    # Number of the update that the micro-batch belongs to.
    update: int = 0
    # Mask of the action tokens whose gradient a surrogate takes; None without one.
    removed: Tensor | None = None
    # Ratio above which tokens of negative advantages have no gradient, None without it.
    dual_clip: float | None = None

    @property
    def selected(self) -> Tensor:
        """Mask (B, A) of the action tokens that the first plan acts on; of none without a plan."""
        mask = self.batch.action_mask.bool()
        return self.plans[0].tokens & mask if self.plans else torch.zeros_like(mask)


@dataclass(frozen=True)
class PolicyLossResult:
    """The results of ``policy_loss`` for one micro-batch; 0-d tensors."""

    # The loss to be differentiated.
    loss: Tensor
    # Share of the action tokens whose gradient the clip removes, without gradient.
    clip_frac: Tensor
    # Approximate KL divergence of the policy from the one before the step.
    ppo_kl: Tensor
    # With a rollout correction: KL divergence from the rollout policy, and the share of tokens that it filters.
    rollout_kl: Tensor | None
    filtered_frac: Tensor | None
    record: LossRecord


def policy_loss(
    config: CovConfig,
    ppo_loss: Any,
    aggregate: Callable[..., Tensor],
    batch: TokenBatch,
    plans: Sequence[Plan],
    *,
    update: int = 0,
    **normalizers: Any,
) -> PolicyLossResult:
    """Compute the loss of one micro-batch with the methods of the run.

    loss = ppo_loss(log_probs, old_log_probs, advantages', ...) + aggregate(penalty)

    ``ppo_loss`` brings the PPO clip, the dual clip, the aggregation (token-mean or per sequence) and the rollout
    correction. The importance weights of the rollout correction multiply the policy-gradient part only, never a
    penalty: a penalty holds the new policy near the old one, whichever engine sampled the token. A surrogate with the
    coefficient k becomes PPO with the advantages A' k / ratio, whose value is -k A' and whose gradient is that of the
    method; the PPO clip and the dual clip are open for it, whatever those of ``ppo_loss`` are. Without a method the
    loss is upstream's loss of upstream's arguments. No gradient flows through the plans.

    Args:
        config: The settings of the step.
        ppo_loss: Upstream's ``PolicyLoss``.
        aggregate: Upstream's ``aggregate_loss``.
        batch: Tensors (B, A); its log-probs carry the gradient.
        plans: One plan of each of ``config.token_slots``.
        update: Number of the update, which the record keeps.
        normalizers: Upstream's ``dp_size``, ``batch_num_tokens`` and ``global_batch_size``.

    Raises:
        RuntimeError: The plans do not fit the methods or the batch.
    """
    slots = config.token_slots
    if [plan.tokens.shape for plan in plans] != [batch.action_mask.shape] * len(slots):
        raise RuntimeError(f"got {len(plans)} plans, the methods make {len(slots)}; each needs tensors (B, A)")
    mask = batch.action_mask.bool()
    advantages = transformed(batch.advantages, plans)

    # The ratio may be to the policy of the engine. A penalty is toward the old policy of the trainer in any case.
    penalised = batch
    if config.ratio_is_to_rollout and batch.rollout_log_probs is not None:
        batch = replace(batch, old_log_probs=batch.rollout_log_probs)

    # A surrogate replaces PPO's coefficient, the ratio, by its own.
    surrogate = config.surrogate
    coefficient = None
    removed = None
    if surrogate:
        ppo_loss = unclipped(ppo_loss)
        coefficient = surrogate.slot.coefficient(config, replace(batch, advantages=advantages))
        coefficient = coefficient.masked_fill(batch.cut, 0.0)  # upstream's loss has no gradient there
        removed = (coefficient == 0) & (advantages != 0) & mask
        advantages = (advantages * (coefficient / batch.ratio)).masked_fill(~mask, 0.0)

    loss, clip_frac, ppo_kl, rollout_kl, filtered_frac = ppo_loss(
        batch.log_probs, batch.old_log_probs, advantages, batch.action_mask, batch.rollout_log_probs, **normalizers
    )
    if removed is not None:  # the clip of PPO is open, so upstream would count 0
        clip_frac = removed.sum() / batch.action_mask.sum().clamp(min=1)

    for slot, plan in zip(slots, plans, strict=True):
        if isinstance(slot, TokenPenalty):
            penalty = torch.where(plan.tokens, slot.penalty(config, penalised, plan), 0.0)
            loss = loss + aggregate(
                penalty, batch.action_mask, token_level_loss=ppo_loss.token_level_loss, **normalizers
            )
    if not normalizers and not mask.any():
        # Upstream divides by the tokens of this micro-batch, and 0 / 0 would reach all weights.
        loss = batch.log_probs.masked_fill(~mask, 0.0).sum()
    record = LossRecord(
        batch=replace(batch, log_probs=batch.log_probs.detach()),
        advantages=advantages,
        plans=plans,
        ppo_clip=clip_of(ppo_loss),
        sequence_old=_sequence_old(ppo_loss, batch),
        coefficient=coefficient,
        update=update,
        removed=removed,
        dual_clip=ppo_loss.dual_clip,
    )
    return PolicyLossResult(loss, clip_frac, ppo_kl, rollout_kl, filtered_frac, record)


def unclipped(ppo_loss: Any) -> Any:
    """Return upstream's ``PolicyLoss`` with an open PPO clip and without a dual clip; the given one is not changed."""
    if clip_of(ppo_loss) == UNCLIPPED and ppo_loss.dual_clip is None:
        return ppo_loss
    opened = copy(ppo_loss)
    opened.clip_eps_low, opened.clip_eps_high = UNCLIPPED
    opened.dual_clip = None
    return opened


def clip_of(ppo_loss: Any) -> tuple[float, float]:
    """Return (eps_low, eps_high) of upstream's ``PolicyLoss``."""
    return ppo_loss.clip_eps_low, ppo_loss.clip_eps_high


def plan_micro_batch(
    config: CovConfig,
    batch: TokenBatch,
    ppo_clip: tuple[float, float],
    generator: torch.Generator,
    tokens: int | None = None,
) -> list[Plan]:
    """Return the plans of ``--cov_scope micro_batch``, by which each method sees one micro-batch of one rank.

    Released code computes its statistics so.

    Args:
        config: Settings of the loss.
        batch: The micro-batch.
        ppo_clip: Lower and upper range of the PPO clip.
        generator: Source of random draws, on the device of the batch.
        tokens: See ``LocalWindow``.
    """
    window = LocalWindow(batch, ppo_clip, generator, tokens)
    return [plan for slot in config.token_slots for plan in slot.plan(config, window)]


def draws_of_step(seed: int, global_step: int, rank: int, device: torch.device | str) -> torch.Generator:
    """Return the generator of ``plan_micro_batch``, a function of (seed, global step, rank) alone.

    Args:
        seed: Seed of the run.
        global_step: Number of the global step.
        rank: Number of the data-parallel rank, so that ranks draw independently.
        device: Device of the generator, which must be that of the micro-batches.
    """
    state = np.random.SeedSequence((seed, global_step, rank)).generate_state(1, np.uint64)
    return torch.Generator(device).manual_seed(int(state[0]))


def _sequence_old(ppo_loss: Any, batch: TokenBatch) -> Tensor | None:
    """Return the log-probs that GSPO's ratio of a sequence is to; None without GSPO.

    Upstream compares with the policy that sampled where it corrects for that policy.
    """
    if ppo_loss.policy_loss_type != "gspo":
        return None
    return batch.old_log_probs if ppo_loss.is_correction_level == "off" else batch.rollout_log_probs
