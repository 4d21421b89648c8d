"""Returns and generalised advantages of whole tensors at once (pure)."""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad


def sums_to_the_end(values: Tensor) -> Tensor:
    """Return every entry of ``values`` (B, A) plus all after it in its row, in float32, or float64 for float64 values.

    The last entry comes first, then one after the other without extra precision: bit for bit what the loop
    ``total = values[:, t] + total`` over the columns from the last to the first gives.
    """
    # NumPy's accumulate adds one entry after the other. torch.cumsum may accumulate with more precision.
    reversed_values = values.to(torch.promote_types(values.dtype, torch.float32)).flip(1)
    return torch.from_numpy(np.add.accumulate(reversed_values.numpy(), axis=1)).flip(1)


def discounted_returns(rewards: Tensor, gamma: float) -> Tensor:
    """Return the discounted returns G_t = r_t + gamma G_{t+1}, (B, A).

    Args:
        rewards: Rewards r (B, A), 0 outside of the response.
        gamma: Discount of later rewards, in [0, 1].
    """
    if gamma == 1.0:
        return sums_to_the_end(rewards)
    returns = torch.zeros_like(rewards)
    total = rewards.new_zeros(len(rewards))
    # One step per column, not per token: all rows at once.
    for column in reversed(range(rewards.shape[1])):
        total = rewards[:, column] + gamma * total
        returns[:, column] = total
    return returns


def generalised_advantages(values: Tensor, rewards: Tensor, gamma: float, lambd: float) -> Tensor:
    """Return the advantages of generalised advantage estimation (GAE).

    Args:
        values: Values (B, A) of the states, 0 outside of the response.
        rewards: Rewards (B, A), 0 outside of the response.
        gamma: Discount of later rewards.
        lambd: Decay lambda of later errors.

    Returns:
        Advantages (B, A).

    Reference:
        Schulman et al., arXiv 1506.02438: A_t = delta_t + gamma lambda A_{t+1}, with
        delta_t = r_t + gamma V_{t+1} - V_t.
    """
    # V_{t+1}, (B, A); 0 after the last token.
    following = pad(values[:, 1:], (0, 1))
    return discounted_returns(rewards + gamma * following - values, gamma * lambd)
