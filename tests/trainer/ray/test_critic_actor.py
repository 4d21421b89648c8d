"""The critic's optimizer steps, on upstream's code with a stub model and strategy."""

from types import SimpleNamespace

import pytest
import torch
from openrlhf.models import ValueLoss
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ray.ppo_critic import CriticPPOTrainer
from torch import nn

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.trainer.bad_updates import BadUpdates
from openrlhf_cov.trainer.ray.critic_actor import CovCriticActor, CovCriticTrainer

pytestmark = pytest.mark.usefixtures("one_process")


class Critic(nn.Module):
    """One value for every token. Like a DeepSpeed engine it keeps the gradient of a boundary's micro-batch alone if it
    was told that every micro-batch is a step."""

    def __init__(self):
        super().__init__()
        self.value = nn.Parameter(torch.tensor(0.0))
        self.ends, self.events = True, []

    def forward(self, sequences, action_mask, **options):
        return self.value * torch.ones_like(action_mask, dtype=torch.float32), SimpleNamespace(aux_loss=0.0)

    def set_gradient_accumulation_boundary(self, ends):
        self.ends = ends


def make_trainer(steps):
    trainer, critic = object.__new__(CovCriticTrainer), Critic()

    def backward(loss, model, optimizer):
        loss.backward()
        critic.events.append("last" if critic.ends else "held")

    vars(trainer).update(
        args=SimpleNamespace(
            train=SimpleNamespace(dynamic_batch_enable=True), actor=SimpleNamespace(aux_loss_coef=0.0)
        ),
        strategy=SimpleNamespace(
            ring_attn_group=None,
            ds_device_mesh={"dp": SimpleNamespace(get_group=lambda: None)},
            is_rank_0=lambda: True,
            backward=backward,
            optimizer_step=lambda *args, **kwargs: critic.events.append("update"),
            get_grad_norm=lambda model: 0.0,
        ),
        critic=critic, critic_optim=None, critic_loss_fn=ValueLoss(10.0), aux_loss=False,
        critic_scheduler=SimpleNamespace(get_last_lr=lambda: [0.0]),
        replay_buffer=SimpleNamespace(
            items=[None] * len(steps), dynamic_indices=[[n] for n in range(len(steps))], dynamic_optimizer_step=steps,
            dynamic_batch_num_tokens=[8.0] * len(steps), dynamic_global_batch_size=[4.0] * len(steps),
            dynamic_sample_loss_scale=[1.0] * len(steps),
        ),
    )  # fmt: skip
    return trainer


def experience(returns):
    mask = torch.ones(1, 2, dtype=torch.long)
    return Experience(
        sequences=torch.ones(1, 3, dtype=torch.long),
        attention_mask=torch.ones(1, 3, dtype=torch.long),
        action_mask=mask,
        values=torch.zeros(1, 2),
        returns=torch.full((1, 2), returns),
    )


def test_dynamic_steps_tell_deepspeed_where_they_end():
    trainer = make_trainer([0, 1, 0, 1])
    for step, returns in enumerate((1.0, 2.0, 3.0, 4.0)):
        trainer.training_step(experience(returns), step)
    assert trainer.critic.events == ["held", "last", "update"] * 2


def test_the_critic_of_a_static_step_stops_where_deepspeed_would_step_elsewhere():
    trainer = make_trainer([1])
    trainer.args.train = SimpleNamespace(dynamic_batch_enable=False, batch_size=4)
    trainer.strategy.accumulated_gradient, trainer.replay_buffer.sample_batch_size = 1, 1
    trainer.critic.is_gradient_accumulation_boundary = lambda: False
    with pytest.raises(RunStopped, match=r"--train\.batch_size 4"):
        trainer.training_step(experience(1.0), 0, {})
    assert trainer.critic.events == []


@pytest.mark.parametrize("on_nan", ["stop", "skip"])
def test_updates_of_a_critic_whose_gradient_is_nan_are_counted_kept_and_end_the_run(tmp_path, on_nan):
    trainer = make_trainer([1] * 5)
    trainer.critic.optimizer = SimpleNamespace(overflow=False, check_grad_overflow=False)
    trainer.bad_updates = BadUpdates(trainer.critic, on_nan, tmp_path / "critic", rank=0, model="critic")
    trainer.global_step = 7
    trainer.strategy.optimizer_step = lambda *args, **kwargs: setattr(
        trainer.critic.optimizer, "overflow", not bool(torch.isfinite(trainer.critic.value.grad))
    )

    def train(*returns):
        for step, value in enumerate(returns):
            trainer.critic.value.grad = None
            trainer.training_step(experience(value), step)

    train(1.0, float("nan"), float("nan"), 2.0)  # never three in a row
    assert trainer.bad_updates.total == 2
    assert sorted(path.name for path in (tmp_path / "critic").iterdir()) == ["step7_1_rank0.pt", "step7_2_rank0.pt"]
    if on_nan == "stop":
        with pytest.raises(RunStopped, match=r"global step 7: the gradient of the critic is NaN .*; 3 in a row end"):
            train(*[float("inf")] * 3)
    else:
        train(*[float("inf")] * 3)
    assert trainer.bad_updates.total == 5


def test_the_skipped_updates_of_a_critic_are_a_metric_of_the_step(monkeypatch, tmp_path):
    trainer = make_trainer([1])
    trainer.critic.optimizer = SimpleNamespace(overflow=True, check_grad_overflow=False)
    trainer.bad_updates = BadUpdates(trainer.critic, "skip", tmp_path, rank=0, model="critic")

    def ppo_train(self):
        self.bad_updates.check(1, "batch")
        return {"critic_loss": 0.5}

    monkeypatch.setattr(CriticPPOTrainer, "ppo_train", ppo_train)
    for _ in range(2):  # of each step, not of the run
        assert trainer.ppo_train() == {"critic_loss": 0.5, "critic_skipped_updates": 1.0}


def test_the_order_of_a_step_repeats():
    actor = object.__new__(CovCriticActor)
    mesh = {"dp": SimpleNamespace(get_local_rank=lambda: 1)}
    actor.strategy = SimpleNamespace(seed=42, ds_device_mesh=mesh)
    orders = []
    for step in (3, 4, 3):
        actor.start_step(step)
        orders.append(torch.randperm(50).tolist())
    assert orders[0] == orders[2] != orders[1]


def test_every_epoch_of_dynamic_batches_has_its_own_order():
    # the fifth sample makes no whole update, so it stays where it is
    trainer = make_trainer([1, 1, 1, 1])
    trainer.max_epochs, trainer.global_step, trainer.args.train.seed = 3, 7, 42
    buffer, orders = trainer.replay_buffer, []
    buffer.items = [0, 1, 2, 3, 4]
    buffer.setup_dynamic_batch = lambda strategy: orders.append(list(buffer.items))
    trainer.check_whole_steps = lambda: None
    for _ in range(3):
        for number in range(4):
            trainer.training_step(experience(1.0), number)
    assert len(orders) == 2  # before the second and the third epoch
    assert all(sorted(order[:4]) == [0, 1, 2, 3] and order[4] == 4 for order in orders)
    assert [0, 1, 2, 3, 4] != orders[0] != orders[1]
