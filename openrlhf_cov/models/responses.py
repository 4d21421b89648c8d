"""Judging responses: what estimators have in common (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from openrlhf_cov.models.method import CORRECT, Plan

if TYPE_CHECKING:
    from torch import Tensor

    from openrlhf_cov.models.window import Window

EPSILON = 1e-9
"""Beside the standard deviation of a group's rewards, as upstream has it."""


def group_normalised(rewards: Tensor) -> Tensor:
    """GRPO's advantages (G, K) of rewards (G, K): about the mean of a group, over its sample standard deviation."""
    return (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + EPSILON)


def right(rewards: Tensor) -> Tensor:
    """Mask of the responses that are right."""
    return rewards > CORRECT


def is_two_valued(rewards: Tensor) -> bool:
    """True if all right responses have one reward, and all others one."""
    return all(len(of_kind.unique()) <= 1 for of_kind in (rewards[right(rewards)], rewards[~right(rewards)]))


def without_left_out(window: Window) -> list[Plan]:
    """Tokens of responses that an estimator left out, those of advantage 0, are dropped from the mean, too.

    Others weigh N / N_kept, both of the whole optimizer step, so that the mean is over those kept.
    """
    kept = [mask & (batch.advantages != 0) for mask, batch in zip(window.masks, window.batches, strict=True)]
    weight = window.count / window.total(kept).clamp(min=1)
    return [Plan(mask & ~tokens, drops=True, weight=weight) for mask, tokens in zip(window.masks, kept, strict=True)]


def several_samples(method: str, flags: Mapping[str, Any]) -> str | None:
    """Why a group of one response is not enough, None if there are more."""
    n = flags["rollout.n_samples_per_prompt"]
    return None if n > 1 else f"--method {method} compares a group's responses: --rollout.n_samples_per_prompt is {n}"


def mean_of_tokens(method: str, flags: Mapping[str, Any]) -> str | None:
    """Why a mean over the responses kept does not go with the aggregation, None if it does."""
    mode = flags["actor.loss_agg_mode"]
    if mode == "token-mean":
        return None
    return f"--method {method} takes the mean over the tokens kept: --actor.loss_agg_mode token-mean, got {mode}"
