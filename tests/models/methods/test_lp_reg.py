import pytest
import torch
from example import gradients, window_of_example, worked_out

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.method import Plan, TokenBatch
from openrlhf_cov.models.methods.lp_reg import penalty, plan


def test_gradients_of_the_example():
    # of the two wrong tokens the one of the lowest log-prob, -0.9, has the proxy -0.6: d = 0.3, its penalty
    # e^0.3 - 0.3 - 1 = 0.049859, with the gradient 1 - e^0.3 = -0.349859, both over 5; nothing is clipped in [0, 10]
    config = CovConfig(method="lp_reg", lp_reg_frac=0.5, allow_large_cov_ratio=True)
    assert gradients(config) == worked_out(-0.252389, [-0.221034, -0.121306, -0.298365, 0.244281, 0.064092])


def picked(frac, proxies):
    window = window_of_example()
    window.items[0].proxy.copy_(torch.tensor(proxies, dtype=torch.float64))
    (found,) = plan(CovConfig(method="lp_reg", lp_reg_frac=frac, allow_large_cov_ratio=True), window)
    return found.tokens.tolist()


NONE = [False] * 3


def test_the_least_probable_wrong_tokens_are_held_if_they_are_no_noise():
    assert picked(0.01, [[9.0] * 3, [0.0] * 3]) == [NONE, [False, True, False]]  # at least one; padding never
    assert picked(0.99, [[9.0] * 3, [0.0] * 3]) == [NONE, [False, True, False]]  # floor(0.99 * 2) = 1
    assert picked(0.5, [[9.0] * 3, [0.0, -0.9, 0.0]]) == [NONE, NONE]  # the proxy is no higher than the policy
    assert picked(0.5, [[9.0] * 3, [0.0, -1e4, 0.0]]) == [NONE, NONE]  # noise


def test_without_a_wrong_token_nothing_is_held():
    window = window_of_example()
    window.items[0].batch.advantages.abs_()
    (found,) = plan(CovConfig(method="lp_reg"), window)
    assert not found.tokens.any()


@pytest.mark.parametrize(
    ("distance", "value", "gradient"),
    [
        (0.3, 0.049859, -0.349859),  # e^0.3 - 0.3 - 1, and 1 - e^0.3
        (2.6, 9.863738, -12.463738),  # e^2.6 = 13.463738: the estimator is just below its cut at 10
        (2.63, 10.0, 0.0),  # e^2.63 = 13.873770 gives 10.243770
        (199.0, 10.0, 0.0),  # e^199 is beyond float32
        (-0.5, 0.106531, 0.393469),  # e^-0.5 = 0.606531
        (-12.0, 10.0, 0.0),  # e^-12 + 12 - 1 is above 11
    ],
)
def test_the_estimator_is_cut_at_10_as_in_the_released_code(distance, value, gradient):
    log_probs = torch.tensor([[-1.0 - distance]], requires_grad=True)
    batch = TokenBatch(log_probs, *torch.zeros(2, 1, 1), torch.ones(1, 1))
    held = Plan(torch.ones(1, 1) > 0, reference=-torch.ones(1, 1))
    found = penalty(CovConfig(method="lp_reg", lp_reg_coef=2.0), batch, held)
    found.sum().backward()
    assert found.item() == pytest.approx(2 * value, rel=1e-4)
    assert log_probs.grad.item() == pytest.approx(2 * gradient, rel=1e-4)
