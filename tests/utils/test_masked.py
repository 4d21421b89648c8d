import math

import pytest
import torch

from openrlhf_cov.utils.masked import masked_mean, masked_sum

VALUES = torch.tensor([[1.0, 2.5, math.nan], [-4.0, math.inf, 1e30]])


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_sum_and_mean_by_hand(dtype):
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]]).to(dtype)
    assert masked_sum(VALUES, mask).item() == -0.5  # 1 + 2.5 - 4
    assert masked_mean(VALUES, mask).item() == pytest.approx(-0.5 / 3)


def test_of_nothing_they_are_zero():
    mask = torch.zeros(2, 3)
    assert masked_sum(VALUES, mask).item() == 0.0
    assert masked_mean(VALUES, mask).item() == 0.0


def test_gradient_reaches_the_unmasked_entries_only():
    values = torch.tensor([1.0, 2.0, math.nan], requires_grad=True)
    masked_mean(values, torch.tensor([1, 1, 0])).backward()
    assert values.grad.tolist() == [0.5, 0.5, 0.0]
