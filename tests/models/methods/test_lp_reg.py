import math

import pytest
import torch
from example import gradients, window_of_example

from openrlhf_cov.models.config import CovConfig
from openrlhf_cov.models.method import Plan, TokenBatch
from openrlhf_cov.models.methods.lp_reg import METHOD, penalty, plan


def test_gradients_of_the_example():
    # of the two wrong tokens the one of the lowest log-prob, -0.9, has the proxy -0.6: d = 0.3, its penalty
    # e^0.3 - 0.3 - 1 = 0.049859, with the gradient 1 - e^0.3 = -0.349859, both over 5; nothing is clipped in [0, 10]
    value, gradient = gradients(CovConfig(method="lp_reg", lp_reg_frac=0.5, allow_large_cov_ratio=True))
    assert value == pytest.approx(-0.252389, abs=1e-6)
    assert gradient == pytest.approx([-0.221034, -0.121306, -0.298365, 0.244281, 0.064092], abs=1e-6)


def picked(frac, proxies):
    window = window_of_example()
    window.proxies = [torch.tensor(proxies, dtype=torch.float64)]
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
    window.batches[0].advantages.abs_()
    (found,) = plan(CovConfig(method="lp_reg"), window)
    assert not found.tokens.any()


def test_a_policy_that_ran_away_is_held_by_a_finite_penalty():
    log_probs = torch.tensor([[-200.0]], requires_grad=True)
    batch = TokenBatch(log_probs, *torch.zeros(2, 1, 1), torch.ones(1, 1))
    found = penalty(
        CovConfig(method="lp_reg", lp_reg_coef=2.0), batch, Plan(torch.ones(1, 1) > 0, reference=-torch.ones(1, 1))
    )
    assert found.item() == pytest.approx(2 * (math.exp(20) - 21))  # d is cut at 20


@pytest.mark.parametrize("size", ["ds.ring_attn_size", "ds.tensor_parallel_size"])
def test_ranks_that_share_a_row_are_refused(size):
    assert f"--{size}" in METHOD.refuses(CovConfig(method="lp_reg"), {size: 2})
    assert METHOD.refuses(CovConfig(method="lp_reg"), {size: 1}) is None


def test_a_dual_clip_would_take_the_gradient_of_what_is_held():
    assert "--actor.dual_clip 3" in METHOD.refuses(CovConfig(method="lp_reg"), {"actor.dual_clip": 3.0})


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        ({"lp_reg_frac": 0.0}, "--lp_reg_frac"),
        ({"lp_reg_frac": 1.0}, "--lp_reg_frac"),
        ({"lp_reg_frac": 0.5}, r"--lp_reg_frac 0\.5 selects 50\.0% .* --allow_large_cov_ratio"),  # 0.5 % is 0.005
        ({"lp_reg_min_p": 2.0}, "--lp_reg_min_p"),
        ({"lp_reg_coef": -1.0}, "--lp_reg_coef"),
        ({"lp_reg_coef": math.nan}, "--lp_reg_coef"),
    ],
)
def test_a_setting_out_of_range_is_named(settings, flag):
    with pytest.raises(ValueError, match=flag):
        CovConfig(method="lp_reg", **settings)
