"""The policy actor's own methods, on upstream's code with a stub model and strategy."""

import math
from types import SimpleNamespace

import torch
from openrlhf.models import PolicyLoss, aggregate_loss
from torch import nn

from openrlhf_cov.config import CovConfig, Schedule
from openrlhf_cov.models.loss import CovPolicyLoss
from openrlhf_cov.trainer.ray.ppo_actor import CovPolicyActor
from openrlhf_cov.utils.metrics import MetricBuffer


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


def test_scoring_rollouts_keeps_their_entropies_until_they_are_taken():
    actor = policy_actor(actor=StubModel(), entropies=[])
    action_mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    log_probs = actor.forward(torch.zeros(2, 5), action_mask, attention_mask=torch.ones(2, 5))
    assert torch.equal(log_probs, -action_mask.float())
    # positions 0..3 carry entropy 0..3, the last three of them are actions
    (entropies,) = actor.take_entropies()
    assert entropies.tolist() == [[1.0, 2.0, 3.0]] * 2
    assert actor.take_entropies() == []


class StubDiagnostics:
    """One step that logs ``cov/mean``, and what it was told."""

    def start(self, samples, device):
        self.started = list(samples)

    def finish(self, eta):
        return {"cov/mean": 1.5, "eta": eta}


def test_fit_adds_our_metrics_to_upstreams_status():
    cleared = []
    model = StubModel()
    model.weight = nn.Parameter(torch.zeros(1))
    model.model = SimpleNamespace(global_steps=10)

    def ppo_train(kl_ctl):
        model.model.global_steps += 4
        return {"policy_loss": kl_ctl, "actor_lr": 0.5}

    buffer = SimpleNamespace(items=["sample"], clear=lambda: cleared.append(True))
    trainer = SimpleNamespace(ppo_train=ppo_train, replay_buffer=buffer, global_step=0)
    actor = policy_actor(actor=model, trainer=trainer, diagnostics=StubDiagnostics(), config=CovConfig(), warned=set())
    # eta: learning rate 0.5 times 4 updates
    assert actor.fit(0.25) == {"policy_loss": 0.25, "actor_lr": 0.5, "cov/mean": 1.5, "eta": 2.0}
    assert actor.diagnostics.started == ["sample"]
    assert cleared == [True]


def clip_cov():
    config = CovConfig(cov_type="clip_cov", cov_scope="micro_batch", clip_cov_ratio=0.05)
    return CovPolicyLoss(config, policy_loss=PolicyLoss(1.0, 1.0), aggregate=aggregate_loss)


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
    loss = CovPolicyLoss(config, policy_loss=PolicyLoss(math.inf, math.inf), aggregate=aggregate_loss)
    start_step(loss, config, 7)
    before = selection(loss)
    start_step(loss, config, 8)
    assert selection(loss) == before
