"""The policy loss that replaces upstream's when ``--cov_type`` is not ``none``."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from openrlhf_cov.config import CovConfig
from openrlhf_cov.models.covariance import token_covariance
from openrlhf_cov.models.objectives import TokenBatch, get_method, ppo_clipped


class CovPolicyLoss(nn.Module):
    """Clip-Cov or KL-Cov with the call signature and the 5-tuple of upstream's ``PolicyLoss``.

    loss = policy_loss(log_probs, old_log_probs, advantages', ...) + aggregate(penalty)

    ``policy_loss`` is upstream's own object; it brings the PPO clip (the callers open it as published, see
    ``openrlhf_cov.cli.arguments``), the dual clip, the aggregation (token-mean or per sequence) and the rollout
    correction. Importance weights of the rollout correction multiply the policy-gradient part only, never the KL
    penalty: the penalty holds the new policy near the old one, whichever engine sampled the token.

    Covariance and selection carry no gradient. ``selected`` (B, A) masks the tokens of the call. With the scope
    ``global`` the caller sets it before each call (see ``openrlhf_cov.trainer.selection``); with ``micro_batch`` it is
    computed from the tokens of the call, as in the published code, and draws depend on ``start_step`` alone.
    """

    def __init__(self, config: CovConfig, *, policy_loss: nn.Module, aggregate: Callable[..., Tensor]) -> None:
        super().__init__()
        self.config = config
        self.policy_loss = policy_loss
        self.aggregate = aggregate
        self.method = get_method(config.cov_type)
        self.selected: Tensor | None = None
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
        if self.config.cov_scope == "micro_batch":
            self.selected = self._select(batch)
        elif self.selected is None or self.selected.shape != action_mask.shape:
            raise RuntimeError("with cov_scope global, set `selected` (B, A) before each call of the loss")
        terms = self.method.objective(batch, self.selected, self.config)
        loss, *rest = self.policy_loss(
            log_probs, old_log_probs, terms.advantages, action_mask, rollout_log_probs, **normalizers
        )
        if terms.penalty is not None:
            by_token = self.policy_loss.token_level_loss
            loss = loss + self.aggregate(terms.penalty, action_mask, token_level_loss=by_token, **normalizers)
        return loss, *rest

    def _select(self, batch: TokenBatch) -> Tensor:
        cov = token_covariance(batch.log_probs, batch.advantages, batch.action_mask)
        clipped = ppo_clipped(batch, *self.ppo_clip)
        return self.method.select(cov, batch.action_mask, clipped, self.config, self._generator_on(cov.device))

    def _generator_on(self, device: torch.device) -> torch.Generator:
        if self._generator is None:
            self._generator = torch.Generator(device).manual_seed(self._seed)
        return self._generator
