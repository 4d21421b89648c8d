"""Weights by which TRL averages the losses of tokens, for terms that the methods add to its loss."""

from typing import Any

from torch import Tensor


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
        # ``dr_grpo``: a constant, so that long responses do not weigh less per token.
        count = len(mask) * args.max_completion_length
    # The other averages are taken within a micro-batch, and then over the micro-batches of an update.
    return mask.float() / count / accumulation
