import pytest
import torch
from active import active
from example import gradients, window_of_example, worked_out

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.methods.entropy_advantage import plan


def test_gradients_of_the_example():
    # min(0.4 H, |A| / 2) = 0.2, 0.5, 0.5, 0.08, 0.4, so A' = 1.2, 1.5, 1.5, -0.92, -0.6; ratio * A' / 5 where PPO does
    # not clip: 1.105171 * 1.2 / 5 ...
    config = CovConfig(method="entropy_advantage")
    assert gradients(config) == worked_out(-0.510462, [-0.265241, -0.181959, 0, 0.224738, 0])


def test_the_bonus_is_not_of_padding_and_never_flips_a_sign():
    window = window_of_example()
    (found,) = plan(CovConfig(entropy_advantage_coef=1e6, entropy_advantage_kappa=1.5), window)
    assert found.add[1, 2] == 0  # an entropy of 9 stands there
    assert found.add.flatten()[:5].tolist() == pytest.approx([1 / 1.5] * 5)
    assert torch.equal((window.items[0].batch.advantages + found.add).sign(), window.items[0].batch.advantages.sign())


def test_an_advantage_of_0_stays_0():
    window = window_of_example()
    window.items[0].batch.advantages.zero_()
    (found,) = plan(active("entropy_advantage"), window)
    assert not found.add.any()
    assert not found.tokens.any()
