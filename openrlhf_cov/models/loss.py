"""The policy loss that replaces upstream's in a run with a method."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from openrlhf_cov.models.config import CovConfig
from openrlhf_cov.models.method import Plan, TokenBatch
from openrlhf_cov.models.window import MicroBatch


class MethodLoss(nn.Module):
    """The methods of a run, with the call signature and the 5-tuple of upstream's ``PolicyLoss``.

    loss = policy_loss(log_probs, old_log_probs, advantages', ...) + aggregate(penalty)

    ``policy_loss`` is upstream's own object; it brings the PPO clip (opened as a method was published, see
    ``openrlhf_cov.cli.arguments``), the dual clip, the aggregation (token-mean or per sequence) and the rollout
    correction. Importance weights of the rollout correction multiply the policy-gradient part only, never a penalty:
    it holds the new policy near the old one, whichever engine sampled the token. A surrogate with the coefficient k is
    upstream's with advantages' * k / ratio, whose value is -k * advantages' and whose gradient is that of the method.

    ``plans`` are those of the call, one for each method that makes one; no gradient flows through them. A window over
    the optimizer step makes them (``--cov_scope global``), and the caller sets them before each call; or the call
    itself, from its own tokens, as in the published code (``micro_batch``), with draws that depend on ``start_step``.
    """

    def __init__(self, config: CovConfig, *, policy_loss: nn.Module, aggregate: Callable[..., Tensor]) -> None:
        super().__init__()
        self.config = config
        self.policy_loss: Any = policy_loss
        self.aggregate = aggregate
        self.plans: Sequence[Plan] | None = None
        self.seen: Tensor | None = None
        """Advantages (B, A) that upstream's loss saw in the last call."""
        self._seed = 0
        self._generator: torch.Generator | None = None

    def start_step(self, config: CovConfig, seed: int, global_step: int, rank: int) -> None:
        """Take the settings of one global step, and make its draws a function of (seed, global step, rank) alone."""
        self.config = config
        self._seed = int(np.random.SeedSequence((seed, global_step, rank)).generate_state(1, np.uint64)[0])
        self._generator = None

    @property
    def ppo_clip(self) -> tuple[float, float]:
        """(eps_low, eps_high) of the PPO clip in force."""
        return self.policy_loss.clip_eps_low, self.policy_loss.clip_eps_high

    @property
    def selected(self) -> Tensor | None:
        """Mask (B, A) of the tokens that the first plan of the last call acts on; None without a plan."""
        return self.plans[0].tokens if self.plans else None

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
        batch = TokenBatch(log_probs, old_log_probs, advantages, action_mask)
        planning = [method for method in self.config.methods if method.plan]
        if self.config.cov_scope == "micro_batch":
            alone = MicroBatch(batch, self.ppo_clip, self._generator_on(log_probs.device))
            making = [method.plan for method in self.config.methods if method.plan]
            self.plans = [plan for make in making for plan in make(self.config, alone)]
        elif planning and not self._planned(len(planning), action_mask.shape):
            raise RuntimeError("with cov_scope global, set `plans`, of tensors (B, A), before each call of the loss")
        self.seen = advantages
        for plan in self.plans or ():
            self.seen = plan.transformed(self.seen)
        self.seen = self.seen * self._surrogate(batch, self.seen)
        loss, *rest = self.policy_loss(
            log_probs, old_log_probs, self.seen, action_mask, rollout_log_probs, **normalizers
        )
        for method, plan in zip(planning, self.plans or (), strict=True):
            if method.penalty:
                penalty = torch.where(plan.tokens, method.penalty(self.config, batch), 0.0)
                by_token = self.policy_loss.token_level_loss
                loss = loss + self.aggregate(penalty, action_mask, token_level_loss=by_token, **normalizers)
        return loss, *rest

    def _surrogate(self, batch: TokenBatch, advantages: Tensor) -> Tensor | float:
        """k / ratio of the run's surrogate; 1 for PPO's."""
        surrogate = self.config.surrogate
        if surrogate is None or surrogate.coefficient is None:
            return 1.0
        ratio = batch.ratio
        return surrogate.coefficient(self.config, ratio, advantages) / ratio

    def _planned(self, count: int, shape: torch.Size) -> bool:
        return self.plans is not None and [plan.tokens.shape for plan in self.plans] == [shape] * count

    def _generator_on(self, device: torch.device) -> torch.Generator:
        if self._generator is None:
            self._generator = torch.Generator(device).manual_seed(self._seed)
        return self._generator
