import pytest
import torch
from example import gradients, worked_out

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.method import TokenBatch
from openrlhf_cov.models.methods.cegppo import METHOD


def cegppo(**settings):
    return CovConfig(method="cegppo", **settings)


@pytest.mark.parametrize(
    ("settings", "loss", "gradient"),
    [
        # the third is above 1.28: 1 * 1.28 / 5; the last below 0.8: 0.75 * 0.8 / 5; the others have their ratios / 5
        ({"cegppo_clip": (0.2, 0.28)}, -0.234060, [-0.221034, -0.121306, -0.256, 0.244281, 0.12]),
        # 1.2 / 5 and 0.5 * 0.8 / 5
        ({"cegppo_beta1": 0.5}, -0.258060, [-0.221034, -0.121306, -0.24, 0.244281, 0.08]),
    ],
)
def test_gradients_of_the_example(settings, loss, gradient):
    assert gradients(cegppo(**settings)) == worked_out(loss, gradient)


def test_without_shares_it_has_the_gradient_of_ppo():
    off = cegppo(cegppo_beta1=0.0, cegppo_beta2=0.0, cegppo_clip=(0.2, 0.28))
    assert gradients(off)[1] == gradients(CovConfig())[1]


def coefficients(ratios, advantages):
    row = torch.tensor([ratios], dtype=torch.float64).log()
    zero, sign = torch.zeros_like(row), torch.tensor([advantages], dtype=torch.float64)
    return METHOD.slot.coefficient(cegppo(), TokenBatch(row, zero, sign, zero + 1))[0].tolist()


def test_the_dual_clip_comes_after():
    # 12 with A < 0 is beyond 10, 9 is not; with A > 0 the upper border holds, 1.2
    assert coefficients([12.0, 9.0, 12.0], [-1.0, -1.0, 1.0]) == pytest.approx([0.0, 9.0, 1.2])


def test_the_other_side_of_a_border_is_inside():
    # A > 0 below the clip and A < 0 above it: PPO does not clip there
    assert coefficients([0.5, 2.0], [1.0, -1.0]) == pytest.approx([0.5, 2.0])
