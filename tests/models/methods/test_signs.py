"""PSR, NSR and W-REINFORCE."""

import math

import pytest
import torch
from active import ESTIMATORS
from example import LOG_PROBS, MASK, OLD, gradients
from method_loss import MethodLoss
from openrlhf.models import PolicyLoss, aggregate_loss
from planned import window_of

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.method import Groups, TokenBatch
from openrlhf_cov.models.methods import METHODS
from openrlhf_cov.models.window import plan_step

REWARDS = [[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]


def groups_of(rewards, entropy=0.5):
    return Groups(rewards, entropy, torch.full(rewards.shape, -0.5))


def estimated(name, rewards, **settings):
    return METHODS[name].slot.estimate(CovConfig(method=name, **settings), groups_of(torch.tensor(rewards))).tolist()


@pytest.mark.parametrize("wrong", [0.0, -1.0])
def test_advantages_of_right_and_wrong_responses(wrong):
    rewards = [[value or wrong for value in row] for row in REWARDS]
    assert estimated("w_reinforce", rewards, w_reinforce_lambda=0.5) == [[0.5, -1.0, 0.5], [-1.0] * 3]
    left_out = math.nan
    assert str(estimated("psr", rewards)) == str([[1.0, left_out, 1.0], [left_out] * 3])
    assert str(estimated("nsr", rewards)) == str([[left_out, -1.0, left_out], [-1.0] * 3])


@pytest.mark.parametrize("name", ESTIMATORS)
def test_rewards_of_whole_numbers_are_rewards(name):
    rewards = torch.tensor(REWARDS).repeat(1, 2)  # pass@k needs more than k of a prompt
    whole, real = (estimated(name, rewards.to(kind).tolist()) for kind in (torch.int64, torch.float32))
    assert str(whole) == str(real)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_record_says_of_which_signs_advantages_are(name):
    # 1 to 7 of 8 responses are right, at entropies below, in and above Entrocraft's band of 0.6 to 0.7 nats
    rewards, config = torch.ones(7, 8).tril(), CovConfig(method=name)
    groups = torch.cat([METHODS[name].slot.estimate(config, groups_of(rewards, nats)) for nats in (0.1, 0.65, 2.0)])
    positive, negative = ((sign * groups > 0).any(1) for sign in (1, -1))
    if not (positive.any() and negative.any()):
        expected = "positive" if positive.any() else "negative"
    else:
        expected = "some_positive" if (positive & ~negative).any() else "both"
    assert METHODS[name].slot.signs == expected


# the example, its first sequence right: advantages 1, and the second's 0 as they are left out; and the other way round
@pytest.mark.parametrize(
    ("name", "advantages", "gradient"),
    [
        ("psr", [1.0, 0.0], [-1.105171 / 3, -0.606531 / 3, 0, 0, 0]),  # over 3 tokens; the third is above 1.28
        ("nsr", [0.0, -1.0], [0, 0, 0, 1.221403 / 2, 0]),  # over 2 tokens; the last is below 0.8
    ],
)
def test_the_mean_is_over_the_tokens_kept(name, advantages, gradient):
    log_probs, old = (torch.tensor(values, dtype=torch.float64) for values in (LOG_PROBS, OLD))
    batch = TokenBatch(log_probs, old, torch.tensor(advantages)[:, None].expand(2, 3).double(), torch.tensor(MASK))
    config = CovConfig(method=name)
    loss = MethodLoss(config, policy_loss=PolicyLoss(0.2, 0.28), aggregate=aggregate_loss)
    loss.expect(*plan_step(config, window_of([batch], [torch.arange(6).view(2, 3)])))
    value, *_ = loss(log_probs.requires_grad_(), old, batch.advantages, batch.action_mask)
    value.backward()
    assert log_probs.grad.flatten()[:-1].tolist() == pytest.approx(gradient, abs=1e-6)


def test_w_reinforce_keeps_all_of_them():
    # the example's advantages are given, 1 and -1
    assert gradients(CovConfig(method="w_reinforce")) == gradients(CovConfig())


def test_a_step_without_responses_of_the_kind_trains_on_none():
    batch = TokenBatch(*torch.zeros(3, 2, 3), torch.tensor(MASK))
    ((plan,),) = plan_step(CovConfig(method="psr"), window_of([batch], [torch.arange(6).view(2, 3)]))
    assert plan.tokens.tolist() == [[True, True, True], [True, True, False]]
    assert plan.weight.isfinite()
