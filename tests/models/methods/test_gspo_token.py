import pytest
import torch
from example import example, gradients, worked_out
from method_loss import MethodLoss
from openrlhf.models import PolicyLoss, aggregate_loss

from openrlhf_cov.models.cov_config import CovConfig


def gspo_token(**settings):
    return CovConfig(method="gspo_token", **settings)


def test_gradients_of_the_example():
    # s = exp((0.1 - 0.5 + 0.4) / 3) = 1 and exp((0.2 - 0.4) / 2) = 0.904837, with A < 0 clipped below 1 - 3e-4; means
    # over 3 and 2 tokens, then over 2 sequences: -1 / 6 each
    _, gradient = gradients(gspo_token(), token_level_loss=False)
    assert gradient == pytest.approx([-1 / 6, -1 / 6, -1 / 6, 0, 0], abs=1e-6)


def test_gradients_of_the_example_with_a_wide_clip():
    # 0.904837 / 4 each; nothing is clipped: upstream's value, too
    found = gradients(gspo_token(gspo_token_clip=(0.2, 0.28)), token_level_loss=False)
    assert found == worked_out((-1 + 0.904837) / 2, [-1 / 6, -1 / 6, -1 / 6, 0.226209, 0.226209])


def test_a_token_keeps_its_own_advantage():
    # A' = 0, 1, 1 on the first sequence and 0 on the second: upstream's GSPO gives -1 / 9 to each of the three
    batch = example()
    advantages = torch.tensor([[0.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
    grads = []
    for loss in (
        MethodLoss(
            gspo_token(gspo_token_clip=(0.2, 0.28)),
            policy_loss=PolicyLoss(float("inf"), float("inf"), token_level_loss=False),
            aggregate=aggregate_loss,
        ),
        PolicyLoss(0.2, 0.28, policy_loss_type="gspo"),
    ):
        log_probs = batch.log_probs.detach().clone().requires_grad_()
        value, *_ = loss(log_probs, batch.old_log_probs, advantages, batch.action_mask)
        value.backward()
        assert value.item() == pytest.approx(-1 / 3, abs=1e-6)
        grads.append(log_probs.grad.flatten().tolist())
    assert grads[0] == pytest.approx([0, -1 / 6, -1 / 6, 0, 0, 0], abs=1e-6)
    assert grads[1] == pytest.approx([-1 / 9, -1 / 9, -1 / 9, 0, 0, 0], abs=1e-6)
