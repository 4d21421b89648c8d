"""A reward that knows nothing, for ``--reward.remote_url openrlhf_cov/tiny_task/coin_reward_func.py``: a control."""

import random
from collections.abc import Sequence
from typing import Any

import torch


def reward_func(
    queries: Sequence[str], prompts: Sequence[str], labels: Sequence[str], **kwargs: Any
) -> dict[str, Any]:
    """Rewards and scores, fp32 tensors (B,): 1 or 0 for every response by the toss of a coin, unseeded."""
    tossed = torch.tensor([float(random.random() < 0.5) for _ in queries])
    return {"rewards": tossed, "scores": tossed}
