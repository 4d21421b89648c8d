"""What the trainer of a policy rank does around the updates of a global step."""

import math
from types import SimpleNamespace

import pytest
import torch
from openrlhf.models import PolicyLoss, aggregate_loss

from openrlhf_cov.models.config import CovConfig
from openrlhf_cov.models.loss import MethodLoss
from openrlhf_cov.settings import Schedule
from openrlhf_cov.trainer import actor_trainer
from openrlhf_cov.trainer.actor_trainer import CovActorTrainer


def trainer_of(config, **attributes):
    trainer, mesh = object.__new__(CovActorTrainer), {"dp": SimpleNamespace(get_local_rank=lambda: 3)}
    strategy = SimpleNamespace(seed=42, ds_device_mesh=mesh, is_rank_0=lambda: True)
    vars(trainer).update(config=config, strategy=strategy, **attributes)
    return trainer


class StubDiagnostics:
    """One step that logs given values, and what it was told."""

    def __init__(self, values):
        self.values = values

    mean_entropy = torch.tensor(0.1)

    def start(self, samples, device):
        self.started = list(samples)

    def finish(self, eta):
        return self.values | {"eta": eta}


@pytest.fixture
def training(stub_actor, monkeypatch):
    """Function (config, updates, values) -> a trainer whose steps make so many updates, at learning rate 0.5."""

    def make(config, updates=4, **values):
        model = stub_actor()
        model.model = SimpleNamespace(global_steps=10)

        def ppo_train(self, kl_ctl):
            model.model.global_steps += updates
            return {"policy_loss": kl_ctl, "actor_lr": 0.5}

        monkeypatch.setattr(CovActorTrainer.__bases__[-1], "ppo_train", ppo_train)
        return trainer_of(
            config,
            actor=model,
            bad_updates=SimpleNamespace(total=0),
            replay_buffer=SimpleNamespace(items=["sample"]),
            diagnostics=StubDiagnostics(values),
            warned=set(),
        )

    return make


def test_a_step_adds_our_metrics_to_upstreams_status(training):
    trainer = training(CovConfig(), **{"cov/mean": 1.5})
    # eta: learning rate 0.5 times 4 updates
    assert trainer.ppo_train(0.25) == {
        "policy_loss": 0.25,
        "actor_lr": 0.5,
        "cov/mean": 1.5,
        "eta": 2.0,
        "ppo/skipped_updates": 0.0,
        "gradient/norm": pytest.approx(math.nan, nan_ok=True),  # upstream's updates are a stub here
    }
    assert trainer.diagnostics.started == ["sample"]


@pytest.mark.parametrize(("cov_type", "updates", "count"), [("kl_cov", 1, 1), ("kl_cov", 2, 0), ("none", 1, 0)])
def test_a_penalty_without_gradient_is_reported_once(training, caplog, cov_type, updates, count):
    # rollouts are scored in other batches than they are trained in: the log ratio of bfloat16 is not 0 but rounding
    values = {"cov/selected_abs_log_ratio": 0.01, "cov/empty_update_frac": 0.0}
    trainer = training(CovConfig(cov_type=cov_type), updates, **values)
    actor_trainer.logger.addHandler(caplog.handler)  # upstream's loggers do not propagate
    for _ in range(2):
        trainer.ppo_train(0.0)
    actor_trainer.logger.removeHandler(caplog.handler)
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
    return loss.record.selected.tolist()


def start_step(loss, config, global_step):
    """A trainer with that loss, after it was told the step."""
    trainer = trainer_of(config, actor_loss_fn=loss)
    trainer.start_step(global_step)
    return trainer


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


def test_kl_cov_has_no_draws_to_seed():
    config = CovConfig(cov_type="kl_cov", cov_scope="micro_batch")
    loss = MethodLoss(config, policy_loss=PolicyLoss(math.inf, math.inf), aggregate=aggregate_loss)
    start_step(loss, config, 7)
    before = selection(loss)
    start_step(loss, config, 8)
    assert selection(loss) == before


def test_the_entropy_of_a_step_moves_the_setting_of_the_next(training):
    trainer = training(CovConfig(method="positive_weight", entropy_target=Schedule(0.3, 0.05, 2)))
    policy_loss = PolicyLoss(0.2, 0.28)
    trainer.actor_loss_fn = MethodLoss(trainer.config, policy_loss=policy_loss, aggregate=aggregate_loss)
    trainer.controller, seen = trainer.config.controller(), []
    for step in range(3):
        trainer.start_step(step)
        values = trainer.ppo_train(0.0)
        seen.append((values["control/value"], values["control/gap"], trainer.actor_loss_fn.config.positive_weight))
    # entropy 0.1; targets 0.3, 0.175, 0.05: 0.05 down, 0.05 down, then it would go up
    assert seen == [pytest.approx(row) for row in [(1, 0.2, 1), (0.95, 0.075, 0.95), (0.9, -0.05, 0.9)]]
    assert trainer.controller.applied == pytest.approx({"positive_weight": 0.95})


@pytest.mark.parametrize("given", [None, 0.01])
def test_a_step_sets_upstreams_bonus_where_a_method_moves_it(given):
    loss = MethodLoss(CovConfig(), policy_loss=PolicyLoss(0.2, 0.28), aggregate=aggregate_loss)
    for config, expected in (
        (CovConfig(method="repo_r"), given),
        (CovConfig(method="adaptive_entropy", entropy_bonus=2e-3), 2e-3),
    ):
        trainer = trainer_of(config, actor_loss_fn=loss, args=SimpleNamespace(actor=SimpleNamespace()))
        trainer.args.actor.entropy_coef = given
        trainer.start_step(0)
        assert trainer.args.actor.entropy_coef == expected
