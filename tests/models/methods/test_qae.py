import pytest
import torch

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.method import Groups
from openrlhf_cov.models.methods.qae import METHOD


def advantages(right, of=8, **settings):
    """(Of a right response, of a wrong one) in a group with so many right ones."""
    rewards = torch.tensor([[1.0] * right + [0.0] * (of - right)], dtype=torch.float64)
    found = METHOD.slot.estimate(CovConfig(method="qae", **settings), Groups(rewards, 0.5))[0]
    assert found[:right].unique().numel() <= 1
    assert found[right:].unique().numel() <= 1
    return (found[0].item() if right else None), (found[-1].item() if right < of else None)


# sample deviations of 8 rewards with 1, 4, 5, 6 right: sqrt(1/8) = 0.353553, sqrt(2/7) = 0.534522,
# sqrt(15/56) = 0.517549, sqrt(3/14) = 0.462910
@pytest.mark.parametrize(
    ("right", "expected"),
    [
        (1, (2.828419, 0.0)),  # 5/8 wrong or more: the quantile is 0, right ones alone train
        (4, (1.870825, 0.0)),
        (5, (0.0, -1.932180)),  # F(0) = 3/8 < 0.4: the quantile is 1, wrong ones alone train
        (6, (0.0, -2.160242)),
    ],
)
def test_one_sign_of_responses_trains_in_each_group(right, expected):
    assert advantages(right) == pytest.approx(expected, abs=1e-6)


def test_linear_is_the_released_code():
    # torch.quantile at 0.4 * 7 = 2.8 of 0, 0, 0, 1, ...: 0.8; (1 - 0.8) / 0.517550 and -0.8 / 0.517550
    assert advantages(5, qae_baseline="linear") == pytest.approx((0.386436, -1.545744), abs=1e-6)


@pytest.mark.parametrize("baseline", ["exact", "linear"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_one_response_alone_has_no_advantage(baseline, dtype):
    config = CovConfig(method="qae", qae_baseline=baseline)
    for reward in (0.0, 1.0):
        found = METHOD.slot.estimate(config, Groups(torch.tensor([[reward]], dtype=dtype), 0.5))
        assert (found.item(), found.dtype) == (0.0, dtype)


def test_a_larger_quantile_punishes_in_more_groups():
    # F(0) = 4/8 < 0.6: the quantile is 1
    assert advantages(4)[1] == 0.0
    assert advantages(4, qae_quantile=0.6)[0] == 0.0


def test_the_quantile_is_exact_where_the_product_is_not():
    # 0.07 * 100 is 7.000000000000001: of 100 with 7 wrong ones the 7th smallest is 0, not the 8th, 1
    assert advantages(93, of=100, qae_quantile=0.07)[1] == 0.0


def test_rewards_of_minus_one_and_one_have_the_same_advantages():
    rewards = torch.tensor([[1.0, 0, 0, 1, 0, 0, 0, 1]], dtype=torch.float64)
    config = CovConfig(method="qae")
    one, other = (METHOD.slot.estimate(config, Groups(each, 0.5)) for each in (rewards, 2 * rewards - 1))
    torch.testing.assert_close(one, other, rtol=1e-5, atol=0)
