"""The methods behind verl's registry of policy losses: verl itself where it is installed, else a stub of it."""

import json
import logging
import sys
from pathlib import Path

import pytest
import torch
import verl_stub
from active import ACTIVE, active
from openrlhf.models.loss import PolicyLoss, aggregate_loss
from rank_group import RankGroup
from verl_runs import config_for, some_samples, trained_by_verl

from openrlhf_cov.integrations import verl as integration
from openrlhf_cov.models.loss import policy_loss
from openrlhf_cov.models.method import TokenBatch
from openrlhf_cov.models.methods import METHODS
from openrlhf_cov.models.planning import PlanningStep, PolicySeen, WindowPart, plan_window

SETTINGS = ACTIVE | {"dppo": {"dppo_anchor": "old"}, "clip_cov": {"clip_cov_ratio": 0.05, "clip_cov_lb": 0.0}}
IN_VERL = (
    "kl_cov clip_cov random_drop cw_grpo positive_weight entropic repo_r cispo gspo_token dppo sapo cegppo gmpo"
    " adaptive_clip"
).split()


@pytest.fixture(autouse=True)
def verl(monkeypatch):
    verl_stub.install(monkeypatch)
    from verl.trainer.ppo import core_algos
    from verl.workers.engine.base import BaseEngine

    train_batch = BaseEngine.train_batch
    losses = dict(core_algos.POLICY_LOSS_REGISTRY)
    yield core_algos
    BaseEngine.train_batch = train_batch
    core_algos.POLICY_LOSS_REGISTRY.clear()
    core_algos.POLICY_LOSS_REGISTRY.update(losses)


@pytest.fixture
def samples():
    return some_samples()


def expected_gradient(name, samples, **changes):
    """The same step in one micro-batch, by OpenRLHF's loss."""
    old, now, advantages, mask = samples
    policy = now.clone().requires_grad_()
    methods = active(name, **changes)
    clip = methods.moved_clip or methods.ppo_clip or (0.2, 0.2)
    part = WindowPart(torch.arange(len(old)), old, advantages, mask)
    step = PlanningStep(methods, 0, 1, clip, torch.zeros(()))
    plans = plan_window(step, [part], [PolicySeen(now)])[0] if methods.plans_globally else []
    batch = TokenBatch(policy, old, advantages, mask, rollout_log_probs=old)
    ppo_loss = PolicyLoss(*clip, token_level_loss=methods.aggregation is None)
    sizes = {"batch_num_tokens": mask.sum(), "global_batch_size": len(mask)}
    policy_loss(methods, ppo_loss, aggregate_loss, batch, plans, **sizes).loss.backward()
    return policy.grad


@pytest.mark.parametrize("micro_batch", [8, 2])
@pytest.mark.parametrize("name", IN_VERL)
def test_gradients_of_a_step_are_those_of_our_loss(name, micro_batch, samples):
    settings = SETTINGS.get(name, {})
    integration.register("ours", method=name, method_settings=settings)
    mode = active(name).aggregation or "token-mean"
    gradient, passes, metrics = trained_by_verl("ours", samples, micro_batch, loss_agg_mode=mode)
    extra = {key: value for key, value in settings.items() if key not in ACTIVE.get(name, {})}
    assert torch.allclose(gradient, expected_gradient(name, samples, **extra), atol=1e-6)
    # Methods that plan see all micro-batches in a first pass without gradient.
    assert passes == ([True, False] if METHODS[name].token_slots else [False])
    assert all("actor/cov/selected_frac" in each for each in metrics)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kl_cov", "cw_grpo"])
def test_gradients_of_two_ranks_are_those_of_one(name, samples, ranks):
    lines = ranks(name, SETTINGS.get(name, {}))
    halves = [torch.tensor(json.loads(line)) for line in lines]
    assert torch.allclose(torch.cat(halves), expected_gradient(name, samples), atol=1e-6)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    command = [sys.executable, str(Path(__file__).parents[1] / "helpers" / "verl_rank.py")]
    group = RankGroup(command, 2, tmp_path_factory.mktemp("ranks"))
    yield group
    group.end()


def test_one_token_of_the_step_is_selected_whatever_the_micro_batches(samples):
    # 37 tokens: the share of 0.001 is less than a token, so the quota is one token of the whole step.
    integration.register("ours", method="kl_cov", method_settings={"kl_cov_ratio": 0.001})
    _, _, metrics = trained_by_verl("ours", samples, micro_batch=2)
    tokens = [int(samples[3][first : first + 2].sum()) for first in range(0, 8, 2)]
    selected = [each["actor/cov/selected_frac"] * count for each, count in zip(metrics, tokens, strict=True)]
    assert sum(selected) == pytest.approx(1)


def test_without_the_step_the_statistics_are_of_the_micro_batch_and_a_warning_says_so(samples, caplog):
    loss = integration.VerlLoss(integration.choose("kl_cov", {"kl_cov_ratio": 0.001}))
    old, now, advantages, mask = samples
    config = config_for("ours", global_batch_info={"dp_size": 1, "batch_num_tokens": int(mask.sum())})
    with caplog.at_level(logging.WARNING):
        for places in torch.arange(8).split(2):
            batch = (old[places], now[places], advantages[places], mask[places])
            _, metrics = loss(*batch, config=config)
            assert metrics["actor/cov/selected_frac"] * mask[places].sum() == pytest.approx(1)
    assert sum("each micro-batch" in message for message in caplog.messages) == 1


def test_other_losses_of_verl_train_as_before(samples):
    integration.register("ours", method="kl_cov")
    old, now, advantages, mask = samples
    gradient, passes, _ = trained_by_verl("vanilla", samples)
    policy = now.clone().requires_grad_()
    ppo_loss = PolicyLoss(0.2, 0.2, dual_clip=3.0)
    ppo_loss(policy, old, advantages, mask, batch_num_tokens=mask.sum())[0].backward()
    assert torch.allclose(gradient, policy.grad, atol=1e-6)
    assert passes == [False]


@pytest.mark.parametrize("other", ["mask", "advantages"])
def test_micro_batches_that_differ_from_the_first_pass_stop_the_run(other, samples):
    loss = integration.register("ours", method="kl_cov")
    old, now, advantages, mask = samples
    config = config_for("ours", global_batch_info={"dp_size": 1, "batch_num_tokens": int(mask.sum())})
    loss.start_recording()
    loss(old[:4], now[:4], advantages[:4], mask[:4], config=config)
    loss.plan()
    changed = {"mask": (advantages[:4], mask[4:]), "advantages": (advantages[4:], mask[:4])}[other]
    with pytest.raises(RuntimeError, match="other micro-batches"):
        loss(old[:4], now[:4], *changed, config=config)


def test_a_clip_beside_a_method_without_one_is_refused(samples):
    integration.register("ours", method="cispo")
    with pytest.raises(ValueError, match=r"clip_ratio_high=0\.28"):
        trained_by_verl("ours", samples, clip_ratio_high=0.28)


def test_a_dual_clip_beside_the_clip_of_a_method_is_refused(samples):
    # The published clip of KL-Cov has none. With a clip of verl, its dual clip acts as well.
    integration.register("ours", method="kl_cov")
    with pytest.raises(ValueError, match=r"clip_ratio_c=10"):
        trained_by_verl("ours", samples, clip_ratio_c=10.0)
    trained_by_verl("ours", samples, clip_ratio_c=10.0, clip_ratio_high=0.28)


REFUSED = {
    "qae": ({}, "adv_estimator"),
    "steer": ({}, "entropies"),
    "stare": ({}, "entropies"),
    "lp_reg": ({}, "logits"),
    "adaptive_entropy": ({"entropy_bonus": 0.1}, "entropy_coeff"),
    "dppo": ({}, "dppo_anchor='rollout'"),
    "repo_r": ({"entropy_target": 0.3}, "entropy_target"),
    "kl_cov": ({"kl_cov_ratio": "0.001:0.01:5"}, "schedule"),
    "clip_cov": ({"cov_scope": "micro_batch"}, "cov_scope"),
    "positive_weight": ({}, "changes nothing"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_verl_does_not_show_a_policy_loss_is_refused(name):
    settings, reason = REFUSED[name]
    with pytest.raises(ValueError, match=r"^[^\n]*$") as refused:
        integration.register("ours", method=name, method_settings=settings)
    assert reason in str(refused.value)
