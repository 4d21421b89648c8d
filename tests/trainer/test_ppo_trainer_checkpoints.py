"""What the controller hands to the actors for a checkpoint, and what it goes on from."""

import pickle
from types import SimpleNamespace

import pytest
import torch
from controller import Store, Trainer, Upstream, states

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.trainer import ppo_trainer
from openrlhf_cov.trainer.ppo_trainer import (
    StepLogging,
)


@pytest.fixture(autouse=True)
def no_ray(monkeypatch):
    monkeypatch.setattr(ppo_trainer, "ray", Store())
    monkeypatch.setattr(ppo_trainer, "stop_requested", lambda: None)


class Saving(Upstream):
    """What upstream does with the client states: they go to each of two actors, in a call of its own."""

    actors, sent = 2, 0

    def save_logs_and_checkpoints(self, global_step, logs_dict=None, client_states=None):
        if global_step % self.args.ckpt.save_steps == 0:
            self.save(client_states)

    def save(self, client_states):
        calls = [pickle.dumps(client_states) for _ in range(self.actors)]
        self.sent += sum(map(len, calls))
        self.received = pickle.loads(calls[0])


class SavingTrainer(StepLogging, Saving):
    pass


def save_a_step(trainer, client_states):
    trainer.args.ckpt.save_steps = 2
    trainer.save_logs_and_checkpoints(4, {"loss": 1.0}, client_states)


def stop_by_a_signal(trainer, client_states):
    trainer.dead_engines = [0]
    with pytest.raises(RunStopped):
        trainer.save_logs_and_checkpoints(4, {"loss": 1.0}, client_states)


@pytest.mark.parametrize("save", [save_a_step, stop_by_a_signal])
def test_groups_that_wait_go_into_the_store_once_and_to_the_actors_as_a_reference(tmp_path, monkeypatch, save):
    store = Store()
    monkeypatch.setattr(ppo_trainer, "ray", store)
    trainer = SavingTrainer(tmp_path)
    trainer.init_checkpoint_states()
    trainer.args.ckpt.disable_ds = False
    client_states = states(4)
    client_states["data_loader_state_dict"]["generator"]["groups"] = [torch.zeros(2**18)]  # 1 MiB
    save(trainer, client_states)
    assert 2**20 < store.put_bytes < 1.1 * 2**20
    assert trainer.sent < 2 * 2000
    assert trainer.received["data_loader_state_dict"] == "reference"
    assert trainer.received["global_step"] == 4
    assert client_states["data_loader_state_dict"]["generator"]["groups"]  # upstream's own is as it was


def test_a_step_without_a_checkpoint_puts_nothing_into_the_store(tmp_path, monkeypatch):
    store = Store()
    trainer = SavingTrainer(tmp_path)
    trainer.init_checkpoint_states()
    monkeypatch.setattr(ppo_trainer, "ray", store)
    trainer.save_logs_and_checkpoints(4, {"loss": 1.0}, states(4))
    assert store.put_bytes == trainer.sent == 0


@pytest.fixture
def resuming(tmp_path):
    """Function (policy's tag, critic's tag, is the folder there) -> a controller that resumes; no tag, no critic."""

    def make(policy, critic=None, folder=True, has_critic=False):
        trainer = Trainer(tmp_path, restored_step=4 if policy and folder else 0)
        trainer.args.ckpt.load_enable = True
        if folder:
            for name in ["_actor", "_critic"][: 1 + has_critic]:
                (tmp_path / "ckpt" / name).mkdir(parents=True)
                (tmp_path / "ckpt" / name / "latest").write_text("global_step4")
        tags = {"get_restored": [policy, policy]}
        trainer.actor_model_group = SimpleNamespace(async_run_method=lambda method_name: tags[method_name])
        if has_critic:
            trainer.args.critic.model_name_or_path = "critic"
            trainer.critic_model_group = SimpleNamespace(async_run_method=lambda method_name: [critic])
        return trainer

    return make


@pytest.mark.parametrize(
    ("policy", "settings"),
    [
        ("global_step4", {}),
        ("global_step4", {"has_critic": True, "critic": "global_step4"}),
        (None, {"folder": False}),  # the first start of a command that also resumes
        (None, {"folder": False, "has_critic": True}),
    ],
)
def test_a_run_goes_on_where_all_continue_from_the_same_checkpoint(resuming, policy, settings):
    trainer = resuming(policy, **settings)
    assert trainer.init_checkpoint_states()["global_step"] == (4 if policy else 0)


@pytest.mark.parametrize(
    ("policy", "settings", "message"),
    [
        ("global_step4", {"folder": False}, "from global_step4, but .*_actor has none on host"),
        (None, {"folder": True}, "from no checkpoint, but .*_actor has one on host"),
        (
            "global_step4",
            {"has_critic": True, "critic": "global_step2"},
            "from global_step4, the critic from global_step2",
        ),
        ("global_step4", {"has_critic": True}, "from global_step4, the critic from none"),
        (
            None,
            {"folder": False, "has_critic": True, "critic": "best_global_step2"},
            "the critic from best_global_step2",
        ),
    ],
)
def test_a_mixture_of_checkpoints_ends_the_run(resuming, policy, settings, message):
    with pytest.raises(RunStopped, match=message):
        resuming(policy, **settings).init_checkpoint_states()
