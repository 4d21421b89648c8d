import math
from types import SimpleNamespace

import pytest
import torch
from openrlhf.models import PolicyLoss, aggregate_loss
from torch import nn

from openrlhf_cov.config import CovConfig
from openrlhf_cov.models.loss import CovPolicyLoss
from openrlhf_cov.trainer.observation import observe_loss, record_entropy
from openrlhf_cov.utils.metrics import MetricBuffer


class StubActor(nn.Module):
    """The forward contract of upstream's ``Actor``: log-probs (B, A), with ``return_output`` also the model's output,
    which carries ``entropy`` (B, T - 1) when ``return_entropy`` asks for it."""

    def forward(
        self, sequences, action_mask=None, attention_mask=None, return_output=False, ring_attn_group=None,
        return_entropy=False,
    ):  # fmt: skip
        output = SimpleNamespace()
        if return_entropy:
            assert return_output
            output.entropy = (sequences * 10.0)[:, :-1]
        action_log_probs = -sequences[:, -action_mask.shape[1] :].float() * action_mask
        return (action_log_probs, output) if return_output else action_log_probs


SEQUENCES = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
MASK = torch.tensor([[1, 1], [1, 0]])


def hooks(module):
    return len(module._forward_hooks), len(module._forward_pre_hooks)


def test_entropy_is_recorded_beside_the_log_probs():
    actor = StubActor()
    expected = actor(SEQUENCES, MASK)
    with record_entropy(actor, num_actions=2) as entropies:
        log_probs = actor(SEQUENCES, MASK, ring_attn_group=None)
        actor(SEQUENCES + 1, action_mask=MASK)
    assert torch.equal(log_probs, expected)
    # entropy (B, T - 1) is 10 * the first three tokens; its last two columns belong to the two actions
    assert [entropy.tolist() for entropy in entropies] == [
        [[20.0, 30.0], [60.0, 70.0]],
        [[30.0, 40.0], [70.0, 80.0]],
    ]


def test_nothing_stays_behind():
    actor = StubActor()
    with record_entropy(actor, num_actions=2):
        assert hooks(actor) == (1, 1)
    assert hooks(actor) == (0, 0)
    assert torch.equal(actor(SEQUENCES, MASK), -SEQUENCES[:, -2:].float() * MASK)


def test_nothing_stays_behind_after_an_exception():
    actor = StubActor()
    with pytest.raises(RuntimeError, match="from inside"), record_entropy(actor, num_actions=2):
        raise RuntimeError("from inside")
    assert hooks(actor) == (0, 0)


def test_nothing_stays_behind_after_a_failing_forward():
    actor = StubActor()
    with pytest.raises(AttributeError), record_entropy(actor, num_actions=2):
        actor(SEQUENCES, None)
    assert hooks(actor) == (0, 0)


# means -3 and 1: covariance 2, -2, 0, -6; ratios 1.5, 0.5, 1, 3, of which 0.2 / 0.2 clips the 1st, 2nd and 4th
LOG_PROBS = torch.tensor([[-1.0, -2.0], [-3.0, -6.0]])
OLD = LOG_PROBS - torch.tensor([[1.5, 0.5], [1.0, 3.0]]).log()
ADVANTAGES = torch.tensor([[2.0, -1.0], [0.0, 3.0]])


def outcome(loss):
    log_probs = LOG_PROBS.clone().requires_grad_()
    result = loss(log_probs, OLD, ADVANTAGES, action_mask=torch.ones(2, 2), rollout_log_probs=None)
    result[0].backward()
    return *result[:3], log_probs.grad


def kl_cov():
    config = CovConfig(cov_type="kl_cov", kl_cov_ratio=0.25, allow_large_cov_ratio=True)
    return CovPolicyLoss(config, policy_loss=PolicyLoss(math.inf, math.inf), aggregate=aggregate_loss)


def observed(make_loss):
    """(outcome of the observed loss, metrics it left)."""
    loss, buffer = make_loss(), MetricBuffer()
    observe_loss(loss, buffer)
    return outcome(loss), buffer.reduce(lambda tensor, op: tensor)


@pytest.mark.parametrize("make_loss", [PolicyLoss, kl_cov])
def test_observing_changes_neither_loss_nor_gradient(make_loss):
    result, _ = observed(make_loss)
    assert all(torch.equal(seen, plain) for seen, plain in zip(result, outcome(make_loss()), strict=True))


def test_the_baseline_logs_the_same_names_as_a_method():
    _, baseline = observed(PolicyLoss)
    _, method = observed(kl_cov)
    assert baseline.keys() == method.keys()
    assert baseline["cov/mean"] == method["cov/mean"] == -1.5  # (2 - 2 + 0 - 6) / 4
    # the method's own selection and the clip in force
    assert (baseline["cov/selected_frac"], method["cov/selected_frac"]) == (0.0, 0.25)
    assert method["cov/selected_mean"] == 2.0
    assert (baseline["ppo/clip_frac"], method["ppo/clip_frac"]) == (0.75, 0.0)


def test_every_call_counts():
    loss, buffer = PolicyLoss(), MetricBuffer()
    observe_loss(loss, buffer)
    outcome(loss)
    single = torch.zeros(1, 4)  # covariance 0, ratio 1
    loss(single, single, single, action_mask=torch.ones(1, 4))
    values = buffer.reduce(lambda tensor, op: tensor)
    assert values["cov/mean"] == -0.75  # -6 / 8
    assert values["ppo/clip_frac"] == 0.375  # 3 / 8
