"""Judging responses: what estimators have in common (pure)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openrlhf_cov.models.method import CORRECT

if TYPE_CHECKING:
    from torch import Tensor

EPSILON = 1e-9
"""Beside the standard deviation of a group's rewards, as upstream has it."""


def group_normalised(rewards: Tensor) -> Tensor:
    """GRPO's advantages (G, K) of rewards (G, K): about the mean of a group, over its sample standard deviation.

    0 in a group of equal rewards, where rounding of the mean over that of the deviation may be anything.
    """
    advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + EPSILON)
    return advantages.masked_fill(are_equal(rewards), 0.0)


def are_equal(rewards: Tensor) -> Tensor:
    """Mask (G, 1) of the groups whose rewards (G, K) are all the same."""
    return (rewards == rewards[:, :1]).all(1, keepdim=True)


def right(rewards: Tensor) -> Tensor:
    """Mask of the responses that are right."""
    return rewards > CORRECT


def is_two_valued(rewards: Tensor) -> bool:
    """True if all right responses have one reward, and all others one."""
    return all(len(of_kind.unique()) <= 1 for of_kind in (rewards[right(rewards)], rewards[~right(rewards)]))
