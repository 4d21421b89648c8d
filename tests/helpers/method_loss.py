"""``policy_loss`` behind the call of upstream's ``PolicyLoss``, as tests give it one micro-batch after another."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.loss import LossRecord, clip_of, draws_of_step, plan_micro_batch, policy_loss
from openrlhf_cov.models.method import Plan, TokenBatch

# Log-probs (B, A) of an update's only micro-batch -> its plans.
MakePlans = Callable[[Tensor], Sequence[Plan]]


class MethodLoss(nn.Module):
    """``policy_loss`` with the call signature and the 5-tuple of upstream's ``PolicyLoss``.

    Tests hand the plans over by ``expect`` before each call, or have them made from the micro-batch (``cov_scope
    micro_batch``). ``record`` is what the last call did.
    """

    def __init__(self, config: CovConfig, *, policy_loss: nn.Module, aggregate: Callable[..., Tensor]) -> None:
        super().__init__()
        self.config = config
        self.policy_loss: Any = policy_loss
        self.aggregate = aggregate
        self.record: LossRecord | None = None
        self._expected: tuple[Sequence[Plan] | MakePlans, int] = ((), 0)
        self._numbers = (0, 0, 0)
        self._generator: torch.Generator | None = None

    def start_step(self, config: CovConfig, seed: int, global_step: int, rank: int) -> None:
        """Take the settings of one global step, and make its draws a function of (seed, global step, rank) alone."""
        self.config = config
        self.policy_loss.clip_eps_low, self.policy_loss.clip_eps_high = config.clip_of_step(self.ppo_clip)
        self._numbers = (seed, global_step, rank)
        self._generator = None

    @property
    def ppo_clip(self) -> tuple[float, float]:
        """(eps_low, eps_high) of the PPO clip in force."""
        return clip_of(self.policy_loss)

    def expect(self, plans: Sequence[Plan] | MakePlans = (), update: int = 0) -> None:
        """Announce the plans and the update of the next call.

        Args:
            plans: The plans, or a function that makes them of the log-probs (B, A) of the call.
            update: The number of the update.
        """
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
        """Return (loss, clip fraction, approximate KL, KL to the rollout policy, share it filtered); inputs (B, A)."""
        batch = TokenBatch(log_probs, old_log_probs, advantages, action_mask, rollout_log_probs)
        (plans, update), self._expected = self._expected, ((), 0)
        if callable(plans):
            plans = plans(log_probs.detach())
        slots = self.config.token_slots
        if slots and self.config.cov_scope == "micro_batch":
            if self._generator is None:
                self._generator = draws_of_step(*self._numbers, log_probs.device)
            plans = plan_micro_batch(self.config, batch, self.ppo_clip, self._generator)
        elif len(plans) != len(slots):
            raise RuntimeError(
                "with cov_scope global, `expect` plans, of tensors (B, A), before each call of the loss"
            )
        result = policy_loss(self.config, self.policy_loss, self.aggregate, batch, plans, update=update, **normalizers)
        self.record = result.record
        return result.loss, result.clip_frac, result.ppo_kl, result.rollout_kl, result.filtered_frac
