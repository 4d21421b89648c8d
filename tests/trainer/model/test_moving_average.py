"""The moving average of the weights of the policy."""

import torch
from torch import nn

from openrlhf_cov.trainer.model.moving_average import MovingAverage

BETA = 0.992


class Weights(nn.Module):
    """A model with some weights."""

    def __init__(self, values, dtype=torch.float32):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(values, dtype=dtype))


def test_small_changes_add_up_in_bf16():
    """bf16 has 8 significant bits: from 1 to 2 its numbers are 1/128 apart.

    The policy moves from 1 to 1 + 1/64, two of these steps. After n updates the average is 1 + (1 - 0.992**n) / 64.
    For n = 400 it is 1 + (1 - exp(400 * ln 0.992)) / 64 = 1 + 0.9598 / 64 = 1.0150, which rounds to 1 + 2/128. After
    the first update it is 1 + 0.008/64, which rounds to 1. Kept in bf16 it would round to 1 after every update.
    """
    model = Weights([1.0, 1.0], torch.bfloat16)
    average = MovingAverage(model, BETA)
    policy = Weights([1.0, 1 + 1 / 64], torch.bfloat16)
    average.update(policy)
    assert model.weight.tolist() == [1.0, 1.0]
    for _ in range(399):
        average.update(policy)
    assert model.weight.dtype == torch.bfloat16
    assert model.weight.tolist() == [1.0, 1 + 1 / 64]


def test_an_average_of_equal_weights_is_the_weight():
    """0.008 times a weight, rounded to bf16, would add up to another weight in many updates."""
    values = [0.3, -0.7, 1e-3]
    model = Weights(values, torch.bfloat16)
    before = model.weight.clone()
    average = MovingAverage(model, BETA)
    for _ in range(500):
        average.update(Weights(values, torch.bfloat16))
    assert torch.equal(model.weight, before)


def test_weights_without_gradient_stay():
    model = Weights([1.0])
    policy = Weights([3.0]).requires_grad_(False)
    average = MovingAverage(model, 0.5)
    average.update(policy)
    assert model.weight.item() == 1.0
    policy.requires_grad_(True)
    average.update(policy)
    assert model.weight.item() == 2.0  # half of 1 and half of 3


def test_a_rank_of_zero3_averages_its_shards():
    """The weight itself is empty between two passes, and DeepSpeed drops changes of a gathered one."""
    model = Weights([])
    policy = Weights([])
    model.weight.ds_tensor = torch.tensor([1.0, 2.0])
    policy.weight.ds_tensor = torch.tensor([3.0, 2.0])
    average = MovingAverage(model, 0.75)
    average.update(policy)
    assert model.weight.ds_tensor.tolist() == [1.5, 2.0]  # 0.75 * 1 + 0.25 * 3
    average.update(policy)
    assert model.weight.ds_tensor.tolist() == [1.875, 2.0]  # 0.75 * 1.5 + 0.25 * 3
