from example import gradients, window_of_example, worked_out

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.methods.erc import plan


def test_gradients_of_the_example():
    # 0.5 / 0.48 = 1.041667, 1.5 / 1.6 = 0.9375, 1, 0.2 / 0.25 = 0.8, 1: the second and the fourth leave 0.95 ... 1.05;
    # PPO clips the third and the fifth. Value: (-1.105171 - 1.28 + 0.8) / 5
    assert gradients(CovConfig(method="erc")) == worked_out(-0.317034, [-0.221034, 0, 0, 0, 0])


def test_before_the_first_update_no_token_is_dropped():
    window = window_of_example()
    (item,) = window.items
    item.old_entropy[0, 0] = -1e-7  # a certain token: rounding
    item.entropy.copy_(item.old_entropy)
    (found,) = plan(CovConfig(), window)
    assert not found.tokens.any()
