"""The critic's optimizer steps, on upstream's code with a stub model and strategy."""

from types import SimpleNamespace

import pytest
import torch
from openrlhf.models import ValueLoss
from openrlhf.trainer.ppo_utils.experience import Experience
from torch import nn

from openrlhf_cov.errors import RunStopped
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


def test_the_order_of_a_step_repeats():
    actor = object.__new__(CovCriticActor)
    mesh = {"dp": SimpleNamespace(get_local_rank=lambda: 1)}
    actor.strategy = SimpleNamespace(seed=42, ds_device_mesh=mesh)
    orders = []
    for step in (3, 4, 3):
        actor.start_step(step)
        orders.append(torch.randperm(50).tolist())
    assert orders[0] == orders[2] != orders[1]
