"""What all methods that replace PPO's surrogate have in common."""

import math

import pytest
import torch
from active import SURROGATES
from method_loss import MethodLoss
from openrlhf.models import PolicyLoss, aggregate_loss

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.diagnostics import update_metrics
from openrlhf_cov.models.methods import METHODS


def batch(drift, seed=0, shape=(4, 12)):
    """Log-probs, old ones, advantages of responses, mask and those of an engine that differs by rounding."""
    generator = torch.Generator().manual_seed(seed)
    old = -3 * torch.rand(shape, generator=generator)
    log_probs = old + drift * torch.randn(shape, generator=generator)
    advantages = torch.randn(shape[0], 1, generator=generator).expand(shape)
    mask = (torch.arange(shape[1]) < torch.randint(1, shape[1] + 1, (shape[0], 1), generator=generator)).float()
    return log_probs, old, advantages, mask, old.clone()


def outcome(loss, tensors, **normalizers):
    """(the tuple of the loss, d loss / d log_probs)"""
    log_probs = tensors[0].clone().requires_grad_()
    result = loss(log_probs, *tensors[1:], **normalizers)
    result[0].backward()
    return result, log_probs.grad


def surrogate(name, **settings):
    policy_loss = PolicyLoss(math.inf, math.inf, token_level_loss=METHODS[name].slot.aggregation is None)
    return MethodLoss(CovConfig(method=name, **settings), policy_loss=policy_loss, aggregate=aggregate_loss)


@pytest.mark.parametrize("name", SURROGATES)
def test_where_the_policy_is_the_one_that_sampled_it_is_grpo_bit_for_bit(name):
    tensors = batch(drift=0.0)
    ppo = PolicyLoss(0.2, 0.28, token_level_loss=METHODS[name].slot.aggregation is None)
    (ours, gradient), (upstream, expected) = outcome(surrogate(name), tensors), outcome(ppo, tensors)
    assert torch.equal(ours[0], upstream[0])
    assert torch.equal(gradient, expected)


# Settings with which nothing is bounded.
OF_PPO = {
    "cispo": {"cispo_cap": 1e9},
    "cegppo": {"cegppo_beta1": 0.0, "cegppo_beta2": 0.0, "cegppo_clip": (1.0, 1e9), "cegppo_dual_clip": math.inf},
    "dppo": {"dppo_anchor": "old", "dppo_divergence": "kl", "dppo_delta": 1e9, "dppo_cap": 1e9},
}


@pytest.mark.parametrize("name", OF_PPO)
def test_without_bounds_it_is_grpo_without_its_clip_bit_for_bit(name):
    tensors = batch(drift=1.0)
    (ours, gradient), (upstream, expected) = (
        outcome(loss, tensors) for loss in (surrogate(name, **OF_PPO[name]), PolicyLoss(math.inf, math.inf))
    )
    assert torch.equal(ours[0], upstream[0])
    assert torch.equal(gradient, expected)


@pytest.mark.parametrize(("name", "settings"), [("gspo_token", {"gspo_token_clip": (0.2, 0.28)}), ("gmpo", {})])
def test_for_responses_of_one_token_a_ratio_of_the_sequence_has_the_gradient_of_ppo_bit_for_bit(name, settings):
    clip = (0.2, 0.28) if name == "gspo_token" else (1 - math.exp(-0.4), math.exp(0.4) - 1)  # a bound of log ratios
    log_probs, old, advantages, _, rollout = batch(drift=0.5, shape=(32, 1))
    tensors = log_probs, old, advantages, torch.ones(32, 1), rollout
    _, gradient = outcome(surrogate(name, **settings), tensors)
    _, expected = outcome(PolicyLoss(*clip, token_level_loss=False), tensors)
    assert (gradient == 0).any()
    assert torch.equal(gradient, expected)


@pytest.mark.parametrize("name", SURROGATES)
@pytest.mark.parametrize("padding", [50.0, -50.0])
def test_padding_changes_nothing(name, padding):
    tensors = batch(drift=0.7)
    mask = tensors[3].bool()
    dirty = [each.masked_fill(~mask, padding * scale) for each, scale in zip(tensors, (1, -1, 1e4, 0, 1), strict=True)]
    clean, other = outcome(surrogate(name), tensors), outcome(surrogate(name), dirty)
    assert torch.equal(clean[0][0], other[0][0])
    assert torch.equal(clean[0][1], other[0][1])
    assert torch.equal(clean[1], other[1])
    assert not other[1][~mask].any()


@pytest.mark.parametrize("name", SURROGATES)
@pytest.mark.parametrize("drift", [30.0, 300.0])
def test_a_policy_that_ran_away_gives_finite_numbers(name, drift):
    (result, gradient), loss = outcome(loss := surrogate(name), batch(drift)), loss
    assert result[0].isfinite()
    assert gradient.isfinite().all()
    assert all(math.isfinite(metric.total) for metric in update_metrics(loss.record) if hasattr(metric, "total"))


@pytest.mark.parametrize("name", SURROGATES)
def test_the_clip_fraction_is_the_share_of_tokens_whose_gradient_it_takes(name):
    tensors = batch(drift=1.0)
    loss = surrogate(name)
    result, gradient = outcome(loss, tensors)
    mask = tensors[3].bool()
    share = ((gradient == 0) & mask).sum() / mask.sum()
    assert result[1].item() == pytest.approx(share.item())
    (logged,) = (metric for metric in update_metrics(loss.record) if metric.name == "ppo/clip_frac")
    assert float(logged.total / logged.weight) == pytest.approx(share.item())
    assert bool(share > 0) is (name in ("gspo_token", "dppo", "gmpo"))  # the others keep every token's
