"""The policy actor's own methods, on upstream's code with a stub model and strategy."""

import math
from types import SimpleNamespace

import pytest
import torch
from openrlhf.models import PolicyLoss, aggregate_loss
from torch import nn

from openrlhf_cov.config import CovConfig
from openrlhf_cov.models.loss import CovPolicyLoss
from openrlhf_cov.trainer.ray.ppo_actor import CovActorTrainer, CovPolicyActor
from openrlhf_cov.utils.metrics import Mean, MetricBuffer


class StubModel(nn.Module):
    """Upstream's ``Actor``: -1 for every token; the entropy of position t is t."""

    def forward(self, sequences, action_mask, attention_mask, return_output=False, return_entropy=False, **kwargs):
        log_probs = -action_mask.float()
        if not return_output:
            return log_probs
        entropy = torch.arange(sequences.shape[1] - 1.0).expand(len(sequences), -1)
        return log_probs, SimpleNamespace(entropy=entropy if return_entropy else None)


def alone(tensor, op):
    return tensor


def policy_actor(**attributes):
    actor = object.__new__(CovPolicyActor)
    strategy = SimpleNamespace(ring_attn_group=None, seed=42, get_rank=lambda: 3, all_reduce=alone)
    vars(actor).update(strategy=strategy, metrics=MetricBuffer(), **attributes)
    return actor


def test_scoring_rollouts_records_their_entropy():
    actor = policy_actor(actor=StubModel())
    action_mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    log_probs = actor.forward(torch.zeros(2, 5), action_mask, attention_mask=torch.ones(2, 5))
    assert torch.equal(log_probs, -action_mask.float())
    # positions 0..3 carry entropy 0..3, the last three of them are actions: (1 + 2 + 1) / 3
    assert actor.metrics.reduce(alone) == pytest.approx({"entropy/mean": 4 / 3})


def test_fit_adds_our_metrics_to_upstreams_status():
    cleared = []
    trainer = SimpleNamespace(
        ppo_train=lambda kl_ctl: {"policy_loss": kl_ctl},
        replay_buffer=SimpleNamespace(clear=lambda: cleared.append(True)),
    )
    actor = policy_actor(actor=StubModel(), trainer=trainer)
    actor.metrics.add(Mean("cov/mean", 6.0, 4))
    assert actor.fit(0.25) == {"policy_loss": 0.25, "cov/mean": 1.5}
    assert cleared == [True]
    assert actor.fit(0.25) == {"policy_loss": 0.25}  # the buffer was emptied


def clip_cov():
    config = CovConfig(cov_type="clip_cov", clip_cov_ratio=0.05)
    return CovPolicyLoss(config, policy_loss=PolicyLoss(1.0, 1.0), aggregate=aggregate_loss)


def selection(loss):
    log_probs = torch.tensor([[0.0], [-4.0]]).expand(2, 100)
    advantages = torch.tensor([[1.0], [-1.0]]).expand(2, 100)  # covariance (±2)(±1) = 2: all in the band
    loss(log_probs, log_probs, advantages, action_mask=torch.ones(2, 100))
    return loss.selected.tolist()


def test_a_step_seeds_the_selection_of_this_rank():
    loss, expected = clip_cov(), clip_cov()
    policy_actor(trainer=SimpleNamespace(actor_loss_fn=loss)).start_step(7)
    expected.seed_selection(42, 7, 3)
    assert selection(loss) == selection(expected)


def test_a_step_of_the_baseline_has_nothing_to_seed():
    policy_actor(trainer=SimpleNamespace(actor_loss_fn=PolicyLoss())).start_step(7)


@pytest.fixture
def one_process(tmp_path):
    """A process group of one; upstream's trainer asks for the rank and waits at barriers."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("one_process")
def test_with_gloo_weights_go_in_one_update():
    trainer, calls = object.__new__(CovActorTrainer), []
    model = nn.Linear(2, 3)
    sender = SimpleNamespace(
        start=lambda: calls.append("start"),
        send=lambda named: calls.append([(name, tensor.tolist()) for name, tensor in named]),
        finish=lambda: calls.append("finish"),
    )
    vars(trainer).update(
        args=SimpleNamespace(vllm=SimpleNamespace(sync_backend="gloo"), ds=SimpleNamespace(zero_stage=2)),
        actor=SimpleNamespace(model=SimpleNamespace(module=model)),
        sender=sender,
    )
    trainer.broadcast_to_vllm()
    assert calls == ["start", [(name, param.tolist()) for name, param in model.named_parameters()], "finish"]
    trainer.sender = None  # the other ranks
    trainer.broadcast_to_vllm()
    assert calls[2:] == ["finish"]


def test_kl_cov_has_no_draws_to_seed():
    config = CovConfig(cov_type="kl_cov")
    loss = CovPolicyLoss(config, policy_loss=PolicyLoss(math.inf, math.inf), aggregate=aggregate_loss)
    policy_actor(trainer=SimpleNamespace(actor_loss_fn=loss)).start_step(7)
    before = selection(loss)
    policy_actor(trainer=SimpleNamespace(actor_loss_fn=loss)).start_step(8)
    assert selection(loss) == before
