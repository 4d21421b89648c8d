"""TRL's loss as ``policy_loss`` expects a loss: its call, and its averages of the losses of tokens."""

from collections.abc import Callable
from typing import Any

from torch import Tensor


class TrlLoss:
    """TRL's loss of one micro-batch with the attributes and the call of OpenRLHF's ``PolicyLoss``.

    Args:
        loss: Advantages (B, A) of tokens -> TRL's loss.
        clip: (eps_low, eps_high) of the PPO clip.
        dual_clip: TRL's ``delta``.
    """

    policy_loss_type = "ppo"
    is_correction_level = "off"
    token_level_loss = True

    def __init__(self, loss: Callable[[Tensor], Tensor], clip: tuple[float, float], dual_clip: float | None) -> None:
        self.loss = loss
        self.clip_eps_low, self.clip_eps_high = clip
        self.dual_clip = dual_clip

    def __call__(self, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, *_: Any) -> tuple:
        """Return TRL's loss as the first of five values. TRL logs the others, clipped share and KL, itself."""
        nothing = log_probs.new_zeros(())
        return self.loss(advantages), nothing, nothing, None, None


def token_weights(mask: Tensor, loss_type: str, args: Any, tokens: Tensor, ranks: int) -> Tensor:
    """Return the weight (B, A) that TRL gives the loss of each token of a micro-batch.

    Args:
        mask: Completion tokens (B, A).
        loss_type: One of ``AVERAGES``.
        args: The ``GRPOConfig``.
        tokens: Number of completion tokens of the rollout on all ranks, TRL's ``num_items_in_batch``.
        ranks: Number of data-parallel ranks, over which gradients are averaged.
    """
    accumulation = args.gradient_accumulation_steps
    if loss_type == "dapo":
        # The share of one micro-batch in the tokens of a rollout, which has steps_per_generation of them on a rank.
        return mask.float() / (tokens.clamp(min=1) / ranks * accumulation / args.steps_per_generation)
    if loss_type == "grpo":
        count = mask.sum(1, keepdim=True).clamp(min=1) * len(mask)
    elif loss_type == "bnpo":
        count = mask.sum().clamp(min=1)
    else:
        count = len(mask) * args.max_completion_length
    return mask.float() / count / accumulation
