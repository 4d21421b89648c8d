"""The loss of another trainer as ``policy_loss`` expects a loss."""

from collections.abc import Callable
from typing import Any

from torch import Tensor


class TrainerLoss:
    """Another trainer's loss of one micro-batch with the attributes and the call of OpenRLHF's ``PolicyLoss``.

    Args:
        loss: Advantages (B, A) of tokens, and log-probs (B, A) that the ratio is to -> the loss of the trainer, which
            has the other tensors already.
        clip: (eps_low, eps_high) of the PPO clip.
        dual_clip: Ratio above which tokens of negative advantage have no gradient, None without it.
    """

    # Read by ``policy_loss``: ratios are those of tokens, a rollout correction is left to the trainer, and its
    # aggregation ignores ``token_level_loss``.
    policy_loss_type = "ppo"
    is_correction_level = "off"
    token_level_loss = True

    def __init__(
        self, loss: Callable[[Tensor, Tensor], Tensor], clip: tuple[float, float], dual_clip: float | None
    ) -> None:
        self.loss = loss
        self.clip_eps_low, self.clip_eps_high = clip
        self.dual_clip = dual_clip

    def __call__(self, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, *_: Any) -> tuple:
        """Return the loss as the first of five values. The trainer logs the others, clipped share and KL, itself."""
        nothing = log_probs.new_zeros(())
        return self.loss(advantages, old_log_probs), nothing, nothing, None, None
