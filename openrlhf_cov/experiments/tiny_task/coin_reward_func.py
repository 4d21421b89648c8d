"""A control: a reward that ignores the answer. Give this file to ``--reward.remote_url``."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

from openrlhf_cov.config import RewardConfig


def reward_func(
    queries: Sequence[str], prompts: Sequence[str], labels: Sequence[str], **kwargs: Any
) -> dict[str, Any]:
    """Return 1 or 0 for every response by the toss of a coin, unseeded.

    Args:
        queries: Prompts with their responses, B of them.
        prompts: Not used, as are the labels: the reward ignores the answer.
        labels: Not used.
        kwargs: Not used.

    Returns:
        ``rewards`` and ``scores``, equal fp32 tensors (B,).
    """
    tossed = torch.tensor([float(random.random() < 0.5) for _ in queries])
    return {"rewards": tossed, "scores": tossed}


def make_reward_func(config: RewardConfig) -> Callable[..., dict[str, Any]]:
    """Return ``reward_func``, so that the control takes the flags of the reward in whose place it stands.

    Args:
        config: Not used.
    """
    return reward_func
