"""The policy actor's own methods, on upstream's code with a stub model and strategy."""

import math
from types import SimpleNamespace

import pytest
import torch
from openrlhf.models import PolicyLoss, aggregate_loss
from torch import nn

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.models.config import CovConfig
from openrlhf_cov.models.loss import MethodLoss
from openrlhf_cov.settings import Schedule
from openrlhf_cov.trainer.ray import ppo_actor
from openrlhf_cov.trainer.ray.ppo_actor import CovPolicyActor
from openrlhf_cov.utils.metrics import MetricBuffer


def alone(tensor, op):
    return tensor


def policy_actor(**attributes):
    actor = object.__new__(CovPolicyActor)
    mesh = {"dp": SimpleNamespace(get_local_rank=lambda: 3)}
    strategy = SimpleNamespace(ring_attn_group=None, seed=42, ds_device_mesh=mesh, all_reduce=alone)
    vars(actor).update(strategy=strategy, metrics=MetricBuffer(), **attributes)
    return actor


def test_scoring_rollouts_keeps_their_entropies_until_they_are_taken(stub_actor):
    actor = policy_actor(actor=stub_actor(), entropies=[])
    action_mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    log_probs = actor.forward(torch.arange(5).expand(2, 5), action_mask, attention_mask=torch.ones(2, 5))
    assert log_probs.tolist() == [[-2.0, -3.0, 0.0], [-2.0, 0.0, 0.0]]
    # positions 0..3 carry entropy 0, 10, 20, 30; the last three of them are actions
    (entropies,) = actor.take_entropies()
    assert entropies.tolist() == [[10.0, 20.0, 30.0]] * 2
    assert actor.take_entropies() == []


ROLLOUTS = {"groups": list(range(999))}


def restored_actor(folder, rank=0, **states):
    actor = policy_actor(checkpoint_states={"global_step": 3} | states, restored="global_step3")
    actor.strategy.args = SimpleNamespace(ckpt=SimpleNamespace(path=str(folder)))
    actor.strategy.is_rank_0 = lambda: rank == 0
    return actor


@pytest.mark.parametrize("earlier_version", [False, True])
def test_a_restored_state_is_short_in_the_log_complete_and_from_the_first_rank(tmp_path, earlier_version):
    inside = {"data_loader_state_dict": ROLLOUTS, "optimizer": {"state": list(range(999))}} if earlier_version else {}
    if not earlier_version:
        (tmp_path / "_actor" / "global_step3").mkdir(parents=True)
        torch.save(ROLLOUTS, tmp_path / "_actor" / "global_step3" / "rollouts.pt")
    states = restored_actor(tmp_path, **inside).get_checkpoint_states()
    assert f"{states}" == "{'global_step': 3, 'data_loader_state_dict': <class 'dict'>}"
    assert states == {"global_step": 3, "data_loader_state_dict": ROLLOUTS}
    assert restored_actor(tmp_path, rank=1, **inside).get_checkpoint_states() == {"global_step": 3}


def test_a_checkpoint_without_the_state_of_the_rollouts_ends_the_run(tmp_path):
    with pytest.raises(RunStopped, match=r"rollouts.pt, .* cannot be read: No such file"):
        restored_actor(tmp_path).get_checkpoint_states()


def test_a_fresh_start_has_no_states(tmp_path):
    actor = policy_actor(checkpoint_states={})
    actor.strategy.is_rank_0 = lambda: True
    assert actor.get_checkpoint_states() == {}


class StubDiagnostics:
    """One step that logs given values, and what it was told."""

    def __init__(self, values):
        self.values = values

    def start(self, samples, device):
        self.started = list(samples)

    def finish(self, eta):
        return self.values | {"eta": eta}


@pytest.fixture
def fitting(stub_actor):
    """Function (config, updates, drift) -> an actor whose ``fit`` makes so many updates, at learning rate 0.5."""

    def make(config, updates=4, **values):
        model, buffer = stub_actor(), SimpleNamespace(items=["sample"], clear=lambda: buffer.items.clear())
        model.weight, model.model = nn.Parameter(torch.zeros(1)), SimpleNamespace(global_steps=10)

        def ppo_train(kl_ctl):
            model.model.global_steps += updates
            return {"policy_loss": kl_ctl, "actor_lr": 0.5}

        bad_updates = SimpleNamespace(total=0)
        trainer = SimpleNamespace(ppo_train=ppo_train, replay_buffer=buffer, global_step=0, bad_updates=bad_updates)
        diagnostics = StubDiagnostics(values)
        return policy_actor(actor=model, trainer=trainer, diagnostics=diagnostics, config=config, warned=set())

    return make


def test_fit_adds_our_metrics_to_upstreams_status(fitting):
    actor = fitting(CovConfig(), **{"cov/mean": 1.5})
    # eta: learning rate 0.5 times 4 updates
    assert actor.fit(0.25) == {
        "policy_loss": 0.25,
        "actor_lr": 0.5,
        "cov/mean": 1.5,
        "eta": 2.0,
        "ppo/skipped_updates": 0.0,
    }
    assert actor.diagnostics.started == ["sample"]
    assert actor.trainer.replay_buffer.items == []


@pytest.mark.parametrize(("cov_type", "updates", "count"), [("kl_cov", 1, 1), ("kl_cov", 2, 0), ("none", 1, 0)])
def test_a_penalty_without_gradient_is_reported_once(fitting, caplog, cov_type, updates, count):
    # rollouts are scored in other batches than they are trained in: the log ratio of bfloat16 is not 0 but rounding
    values = {"cov/selected_abs_log_ratio": 0.01, "cov/empty_update_frac": 0.0}
    actor = fitting(CovConfig(cov_type=cov_type), updates, **values)
    actor.strategy.is_rank_0 = lambda: True
    ppo_actor.logger.addHandler(caplog.handler)  # upstream's loggers do not propagate
    actor.fit()
    actor.fit()
    ppo_actor.logger.removeHandler(caplog.handler)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == count
    assert all("--train.max_epochs" in message for message in messages)


def clip_cov():
    config = CovConfig(cov_type="clip_cov", cov_scope="micro_batch", clip_cov_ratio=0.05)
    return MethodLoss(config, policy_loss=PolicyLoss(1.0, 1.0), aggregate=aggregate_loss)


def selection(loss):
    log_probs = torch.tensor([[0.0], [-4.0]]).expand(2, 100)
    advantages = torch.tensor([[1.0], [-1.0]]).expand(2, 100)  # covariance (±2)(±1) = 2: all in the band
    loss(log_probs, log_probs, advantages, action_mask=torch.ones(2, 100))
    return loss.selected.tolist()


def start_step(loss, config, global_step):
    """The trainer of an actor with that loss, after the actor was told the step."""
    actor = policy_actor(config=config, trainer=SimpleNamespace(actor_loss_fn=loss))
    actor.start_step(global_step)
    return actor.trainer


def test_a_step_seeds_the_selection_of_this_rank():
    loss, expected = clip_cov(), clip_cov()
    assert start_step(loss, loss.config, 7).global_step == 7
    expected.start_step(expected.config, 42, 7, 3)
    assert selection(loss) == selection(expected)


def test_a_step_takes_its_settings_from_the_schedules():
    loss = clip_cov()
    config = CovConfig(cov_type="clip_cov", clip_cov_ratio=Schedule(2**-7, 2**-9, 6))
    start_step(loss, config, 4)
    assert loss.config == CovConfig(cov_type="clip_cov", clip_cov_ratio=2**-8)  # 4/512 -> 1/512: 2/512
    start_step(loss, config, 0)
    assert loss.config.clip_cov_ratio == 2**-7


def test_a_step_of_the_baseline_has_nothing_to_seed():
    assert start_step(PolicyLoss(), CovConfig(), 7).global_step == 7


def test_kl_cov_has_no_draws_to_seed():
    config = CovConfig(cov_type="kl_cov", cov_scope="micro_batch")
    loss = MethodLoss(config, policy_loss=PolicyLoss(math.inf, math.inf), aggregate=aggregate_loss)
    start_step(loss, config, 7)
    before = selection(loss)
    start_step(loss, config, 8)
    assert selection(loss) == before
