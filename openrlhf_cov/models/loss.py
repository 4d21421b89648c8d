"""The policy loss of every run: upstream's, with the methods of the run around it, and the record of each call."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from openrlhf_cov.models.config import CovConfig
from openrlhf_cov.models.method import Method, Plan, TokenBatch, transformed
from openrlhf_cov.models.window import MicroBatch

MakePlans = Callable[[Tensor], Sequence[Plan]]
"""Log-probs (B, A) of an update's only micro-batch -> its plans."""


@dataclass(frozen=True)
class LossRecord:
    """What one call of the loss did with a micro-batch; tensors (B, A), without gradient."""

    batch: TokenBatch
    advantages: Tensor
    """A', times k / ratio of a surrogate: what upstream's loss saw."""
    plans: Sequence[Plan]
    """One for each method that makes one."""
    ppo_clip: tuple[float, float]
    """(eps_low, eps_high) of the PPO clip in force."""
    sequence_old: Tensor | None = None
    """With GSPO, the log-probs that its ratio of a sequence is to."""
    coefficient: Tensor | None = None
    """k of a surrogate; None: PPO's, the ratio."""
    update: int = 0
    """Number of the update that the micro-batch belongs to."""
    removed: Tensor | None = None
    """Mask of the action tokens whose gradient a surrogate takes; None without one."""
    dual_clip: float | None = None
    """Ratio above which tokens of negative advantages have no gradient, None without it."""

    @property
    def selected(self) -> Tensor:
        """Mask of the action tokens that the first plan acts on; of none without a plan."""
        mask = self.batch.action_mask.bool()
        return self.plans[0].tokens & mask if self.plans else torch.zeros_like(mask)


class MethodLoss(nn.Module):
    """The methods of a run, with the call signature and the 5-tuple of upstream's ``PolicyLoss``.

    loss = policy_loss(log_probs, old_log_probs, advantages', ...) + aggregate(penalty)

    ``policy_loss`` is upstream's own object; it brings the PPO clip (opened as a method was published, see
    ``openrlhf_cov.cli.arguments``), the dual clip, the aggregation (token-mean or per sequence) and the rollout
    correction. Importance weights of the rollout correction multiply the policy-gradient part only, never a penalty:
    it holds the new policy near the old one, whichever engine sampled the token. A surrogate with the coefficient k is
    upstream's with advantages' * k / ratio, whose value is -k * advantages' and whose gradient is that of the method.

    Without a method it is upstream's loss of upstream's arguments. The plans of a call come from a window over the
    optimizer step (``--cov_scope global``), and the caller hands them over by ``expect``; or the call makes them from
    its own tokens, as the published code does (``micro_batch``), with draws that depend on ``start_step``. No gradient
    flows through them. ``record`` is what the last call did; nothing else is kept between calls.
    """

    def __init__(self, config: CovConfig, *, policy_loss: nn.Module, aggregate: Callable[..., Tensor]) -> None:
        super().__init__()
        self.config = config
        self.policy_loss: Any = policy_loss
        self.aggregate = aggregate
        self.record: LossRecord | None = None
        self._expected: tuple[Sequence[Plan] | MakePlans, int] = ((), 0)
        self._seed = 0
        self._generator: torch.Generator | None = None

    def start_step(self, config: CovConfig, seed: int, global_step: int, rank: int) -> None:
        """Take the settings of one global step, and make its draws a function of (seed, global step, rank) alone."""
        self.config = config
        for method in config.methods:
            if method.clip:
                self.policy_loss.clip_eps_low, self.policy_loss.clip_eps_high = method.clip(config)
        self._seed = int(np.random.SeedSequence((seed, global_step, rank)).generate_state(1, np.uint64)[0])
        self._generator = None

    @property
    def ppo_clip(self) -> tuple[float, float]:
        """(eps_low, eps_high) of the PPO clip in force."""
        return self.policy_loss.clip_eps_low, self.policy_loss.clip_eps_high

    def expect(self, plans: Sequence[Plan] | MakePlans = (), update: int = 0) -> None:
        """The next call is about a micro-batch of this update; with ``cov_scope global`` these are its plans, or a
        function that makes them of the log-probs (B, A) of the call, where the step has no other micro-batch."""
        self._expected = plans, update

    def forward(
        self,
        log_probs: Tensor,
        old_log_probs: Tensor,
        advantages: Tensor,
        action_mask: Tensor,
        rollout_log_probs: Tensor | None = None,
        **normalizers,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
        """(loss, clip fraction, approximate KL to the old policy, KL to the rollout policy, share it filtered).

        Tensors are (B, A); ``normalizers`` are upstream's ``dp_size``, ``batch_num_tokens``, ``global_batch_size``.
        """
        batch = TokenBatch(log_probs, old_log_probs, advantages, action_mask, rollout_log_probs)
        methods = [method for method in self.config.methods if method.plan]
        plans, update = self._plans(methods, batch)
        advantages = transformed(advantages, plans)
        surrogate, coefficient, removed = self.config.surrogate, None, None
        if surrogate and surrogate.coefficient:
            coefficient = surrogate.coefficient(self.config, replace(batch, advantages=advantages))
            coefficient = coefficient.masked_fill(batch.cut, 0.0)  # upstream's loss has no gradient there
            removed = (coefficient == 0) & (advantages != 0) & action_mask.bool()
            advantages = (advantages * (coefficient / batch.ratio)).masked_fill(~action_mask.bool(), 0.0)
        self.record = LossRecord(
            batch=replace(batch, log_probs=log_probs.detach()),
            advantages=advantages,
            plans=plans,
            ppo_clip=self.ppo_clip,
            sequence_old=self._sequence_old(old_log_probs, rollout_log_probs),
            coefficient=coefficient,
            update=update,
            removed=removed,
            dual_clip=self.policy_loss.dual_clip,
        )
        loss, clipped, *rest = self.policy_loss(
            log_probs, old_log_probs, advantages, action_mask, rollout_log_probs, **normalizers
        )
        if removed is not None:  # its clip is open, so what upstream counts is 0
            clipped = removed.sum() / action_mask.sum().clamp(min=1)
        for method, plan in zip(methods, plans, strict=True):
            if method.penalty:
                penalty = torch.where(plan.tokens, method.penalty(self.config, batch, plan), 0.0)
                by_token = self.policy_loss.token_level_loss
                loss = loss + self.aggregate(penalty, action_mask, token_level_loss=by_token, **normalizers)
        return loss, clipped, *rest

    def _plans(self, methods: Sequence[Method], batch: TokenBatch) -> tuple[Sequence[Plan], int]:
        """The plans of this call and the number of its update."""
        (plans, update), self._expected = self._expected, ((), 0)
        if callable(plans):
            plans = plans(batch.log_probs.detach())
        if methods and self.config.cov_scope == "micro_batch":
            alone = MicroBatch(batch, self.ppo_clip, self._generator_on(batch.log_probs.device))
            making = [method.plan for method in methods if method.plan]
            plans = [plan for make in making for plan in make(self.config, alone)]
        if [plan.tokens.shape for plan in plans] != [batch.action_mask.shape] * len(methods):
            raise RuntimeError(
                "with cov_scope global, `expect` plans, of tensors (B, A), before each call of the loss"
            )
        return plans, update

    def _sequence_old(self, old_log_probs: Tensor, rollout_log_probs: Tensor | None) -> Tensor | None:
        if self.policy_loss.policy_loss_type != "gspo":
            return None  # its ratio is to the policy that sampled where upstream corrects for that one
        return old_log_probs if self.policy_loss.is_correction_level == "off" else rollout_log_probs

    def _generator_on(self, device: torch.device) -> torch.Generator:
        if self._generator is None:
            self._generator = torch.Generator(device).manual_seed(self._seed)
        return self._generator
