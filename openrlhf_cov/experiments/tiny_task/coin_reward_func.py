"""A control: a reward that ignores the answer. Give this file to ``--reward.remote_url``."""

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
