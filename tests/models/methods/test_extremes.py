"""What no method may depend on or fall over: the size of advantages, steps without tokens, tokens of probability 0."""

import math
from dataclasses import replace

import pytest
import torch
from active import PLANNED, SURROGATES, active
from example import window_of_example
from method_loss import MethodLoss
from openrlhf.models import PolicyLoss, aggregate_loss
from planned import window_of

from openrlhf_cov.models.method import TokenBatch, transformed
from openrlhf_cov.models.ranking import token_keys
from openrlhf_cov.models.window import Window, WindowItem, plan_step

ON_TOKENS = (*PLANNED, *SURROGATES)
SHAPE = (8, 12)
# Settings that are in units of the advantages by their definition, for those of a size.
IN_UNITS = {
    "clip_cov": lambda size: {"clip_cov_lb": 0.1 * size, "clip_cov_ub": 1e3 * size},
    "entropy_advantage": lambda size: {"entropy_advantage_coef": 0.4 * size},
    "steer": lambda size: {"steer_form": "linear"},  # the other form has a floor, as published
}


def window(size=1.0, change=lambda batch: batch):
    """A step of random tokens with advantages of this size."""
    generator = torch.Generator().manual_seed(3)
    old = -0.1 - 4 * torch.rand(SHAPE, generator=generator)
    log_probs = old + 0.1 * torch.randn(SHAPE, generator=generator)
    advantages = torch.randn(SHAPE[0], 1, generator=generator).expand(SHAPE) * size
    advantages = advantages.masked_fill(torch.arange(SHAPE[0])[:, None] == 4, 0.0)
    mask = torch.arange(SHAPE[1]) < torch.randint(3, SHAPE[1] + 1, (SHAPE[0], 1), generator=generator)
    entropies, changes = (torch.rand(SHAPE, generator=generator) for _ in range(2))
    batch = change(TokenBatch(log_probs, old, advantages, mask, old))
    keys = token_keys(1, 2, torch.arange(SHAPE[0]), SHAPE[1])
    item = WindowItem(
        batch,
        keys,
        entropy=entropies,
        old_entropy=entropies * (0.9 + 0.2 * changes).round(decimals=1),
        proxy=old + 0.2,
        discriminator_mean=0.3 * changes,
    )
    return Window([item], (0.2, 0.28), rollout_entropy=torch.tensor(0.1))


@pytest.mark.parametrize("value", [0.7, 1e-9, -3e7])
def test_the_mean_of_equal_values_is_the_value(value):
    """A float32 misses it; then a token of probability 0 with the mean advantage would have covariance -inf."""
    values = torch.full((7, 14285), value)  # 99,995 tokens
    mask = torch.ones_like(values, dtype=torch.bool)
    batch = TokenBatch(values, values, values, mask)
    mean = window_of([batch], [torch.zeros_like(values, dtype=torch.int64)]).mean([values])
    assert mean.dtype == torch.float64
    assert mean.to(values.dtype) == values[0, 0]


def outcome(config, window):
    """(plan or None, A', k): what a method makes of the step."""
    batch = window.items[0].batch
    plans = plan_step(config, window)[0] if config.plans_globally else []
    advantages = transformed(batch.advantages, plans)
    surrogate = config.surrogate
    k = surrogate.slot.coefficient(config, replace(batch, advantages=advantages)) if surrogate else torch.ones(SHAPE)
    return (plans[0] if plans else None), advantages, k


@pytest.mark.parametrize("name", ON_TOKENS)
def test_advantages_of_whole_numbers_are_numbers_like_others(name):
    def with_signs(kind):
        return lambda batch: replace(batch, advantages=batch.advantages.sign().to(kind))

    outcomes = [outcome(active(name), window(1.0, with_signs(kind)))[1:] for kind in (torch.int64, torch.float32)]
    assert all(torch.equal(whole, real) for whole, real in zip(*outcomes, strict=True))


@pytest.mark.parametrize("name", ["top_entropy", "psr", "nsr"])
def test_the_mean_over_kept_tokens_is_one_of_float64(name):
    step = window()
    plan, *_ = outcome(active(name), step)
    mask = step.items[0].mask
    assert float(plan.weight) == int(mask.sum()) / int((mask & ~plan.tokens).sum())


@pytest.mark.parametrize("name", ON_TOKENS)
@pytest.mark.parametrize("size", [1e-12, 1e-6, 1e6, 1e12])
def test_the_size_of_the_advantages_changes_nothing_but_theirs(name, size):
    configs = [replace(active(name), **IN_UNITS.get(name, lambda size: {})(each)) for each in (1.0, size)]
    (plan, expected, k), (found, scaled, other) = (
        outcome(config, window(each)) for config, each in zip(configs, (1.0, size), strict=True)
    )
    mask = window().items[0].mask
    torch.testing.assert_close((scaled.double() / size)[mask], expected.double()[mask], rtol=2e-5, atol=0)
    torch.testing.assert_close(other[mask], k[mask], rtol=1e-6, atol=0)
    if plan:
        assert plan.drops or plan.tokens[mask].any()
        assert torch.equal(found.tokens, plan.tokens)


@pytest.mark.parametrize("name", PLANNED)
def test_a_plan_of_a_step_without_a_token_is_finite(name):
    dead = window(change=lambda batch: replace(batch, action_mask=torch.zeros(SHAPE, dtype=torch.bool)))
    for settings in ({}, {"steer_form": "linear"} if name == "steer" else {}):
        plan, advantages, _ = outcome(replace(active(name), **settings), dead)
        assert not plan.tokens.any()
        for each in (plan.weight, plan.add, advantages):
            assert each is None or each.isfinite().all()


@pytest.mark.parametrize("name", ON_TOKENS)
def test_a_token_of_probability_0_without_an_advantage_harms_no_other(name):
    def impossible(batch):
        log_probs, advantages = batch.log_probs.clone(), batch.advantages.clone()
        log_probs[0, 0], advantages[0] = -math.inf, 0.0
        return replace(batch, log_probs=log_probs, advantages=advantages)

    config, step = active(name), window(change=impossible)
    plan, advantages, k = outcome(config, step)
    batch = step.items[0].batch
    for each in (plan and plan.weight, plan and plan.add, advantages, k):
        assert each is None or each.expand(SHAPE)[step.items[0].mask].isfinite().all()
    loss = MethodLoss(config, policy_loss=PolicyLoss(*(config.ppo_clip or (0.2, 0.28))), aggregate=aggregate_loss)
    loss.expect(*plan_step(config, step) if plan else ())
    log_probs = batch.log_probs.clone().requires_grad_()
    value, *_ = loss(log_probs, batch.old_log_probs, batch.advantages, batch.action_mask, batch.rollout_log_probs)
    value.backward()
    assert log_probs.grad.isfinite().all()
    assert log_probs.grad.any()


def test_a_covariance_about_the_mean_advantage_is_0_at_probability_0():
    step = window_of_example()
    step.items[0].batch.advantages.copy_(torch.tensor([[0.0, 1.0, -1.0], [0.0, 0.0, 0.0]]))
    step.items[0].batch.log_probs[0, 0] = -math.inf
    (cov,) = step.covariance()
    assert cov[0, 0] == 0
    assert cov.isfinite().all()


@pytest.mark.parametrize("name", SURROGATES)
@pytest.mark.parametrize("padding", [math.inf, -math.inf])
def test_padding_that_is_not_finite_changes_nothing(name, padding):
    def gradients(change):
        batch = window(change=change).items[0].batch
        loss = MethodLoss(active(name), policy_loss=PolicyLoss(math.inf, math.inf), aggregate=aggregate_loss)
        log_probs = batch.log_probs.clone().requires_grad_()
        value, *_ = loss(log_probs, batch.old_log_probs, batch.advantages, batch.action_mask, batch.old_log_probs)
        value.backward()
        return value, log_probs.grad

    def dirty(batch):
        return replace(batch, log_probs=batch.log_probs.masked_fill(~batch.action_mask, padding))

    for found, expected in zip(gradients(dirty), gradients(lambda batch: batch), strict=True):
        assert torch.equal(found, expected)
