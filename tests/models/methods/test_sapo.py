import pytest
import torch
from example import gradients

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.method import TokenBatch
from openrlhf_cov.models.methods.sapo import METHOD


def sapo(**settings):
    return CovConfig(method="sapo", **settings)


def test_gradients_of_the_example():
    # the first: x = 1.0 * (1.105171 - 1), sigmoid 0.526269, 4 * 0.526269 * 0.473731 * 1.105171 / 5 = 0.220424; the
    # last: x = 1.05 * (0.670320 - 1) = -0.346164, sigmoid 0.414313, 4 * 0.414313 * 0.585687 * 0.670320 / 5 = 0.130127
    _, gradient = gradients(sapo())
    assert gradient == pytest.approx([-0.220424, -0.116730, -0.281025, 0.241010, 0.130127], abs=1e-6)


def test_every_sequence_weighs_the_same_as_published():
    # / 3 / 2 and / 2 / 2 instead of / 5
    _, by_token = gradients(sapo())
    _, gradient = gradients(sapo(), token_level_loss=False)
    assert gradient == pytest.approx([g * 5 / 6 for g in by_token[:3]] + [g * 5 / 4 for g in by_token[3:]], abs=1e-9)


def test_the_gradient_is_that_of_the_published_loss():
    # autograd of (4 / tau) sigmoid(tau (r - 1)) by the log-prob
    log_probs = torch.linspace(-3, 3, 13, dtype=torch.float64, requires_grad=True)
    for sign, tau in ((1.0, 1.0), (-1.0, 1.05)):
        gate = (4 / tau * torch.sigmoid(tau * (log_probs.exp() - 1))).sum()
        (expected,) = torch.autograd.grad(gate, log_probs)
        row, zero = log_probs.detach()[None], torch.zeros(1, 13, dtype=torch.float64)
        k = METHOD.slot.coefficient(sapo(), TokenBatch(row, zero, zero + sign, zero + 1))
        torch.testing.assert_close(k[0], expected, rtol=1e-9, atol=1e-12)
