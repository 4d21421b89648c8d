import math

import pytest
import torch
from example import example, gradients, worked_out
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.method import TokenBatch
from openrlhf_cov.models.methods.dppo import METHOD, divergence

# p - q of the example, q that of old: exp(-0.1) - exp(-0.2) = 0.086107, -0.195391, 0.044617, 0.134288, -0.199961
OLD = {"dppo_anchor": "old"}


def dppo(**settings):
    return CovConfig(method="dppo", **settings)


# A gradient is -k * A / 5, and the logged value is the sum of the gradients.
@pytest.mark.parametrize(
    ("settings", "loss", "gradient"),
    [
        # ratios -1.105171 / 5, -0.606531 / 5, ...: none is beyond 0.2
        (OLD, -0.262361, [-0.221034, -0.121306, -0.298365, 0.244281, 0.134064]),
        # beyond 0.05: the first (up, A > 0) and the last (down, A < 0). The second went down with A > 0, the fourth up
        # with A < 0, the safe sides
        (OLD | {"dppo_delta": 0.05}, -0.175391, [0, -0.121306, -0.298365, 0.244281, 0]),
        # 0.034936, 0.083193, 0.009462, 0.042957, 0.080929 nats; beyond 0.05 on its side is the last alone
        (OLD | {"dppo_divergence": "kl"}, -0.396425, [-0.221034, -0.121306, -0.298365, 0.244281, 0]),
        # the engine as the anchor: exp(0.2) = 1.221403, 0.606531, 1.491825, 1.221403, exp(-0.3) = 0.740818; p - q
        # 0.164019, -0.195391, 0.044617, 0.134288, -0.142242: beyond 0.15 on its side is the first
        ({"dppo_delta": 0.15}, -0.027227, [0, -0.121306, -0.298365, 0.244281, 0.148164]),
        # above the cap the gradient goes on at the cap: 1.2 instead of 1.491825 and 1.221403
        (OLD | {"dppo_cap": 1.2}, -0.208276, [-0.221034, -0.121306, -0.24, 0.24, 0.134064]),
    ],
)
def test_gradients_of_the_example(settings, loss, gradient):
    assert gradients(dppo(**settings)) == worked_out(loss, gradient)


@pytest.mark.parametrize(("delta", "published"), [(0.2, 0.570459), (0.05, 0.669013)])
def test_the_loss_of_verl_has_the_log_probs_as_a_factor(delta, published):
    # -k * A * log-prob as of CISPO: (0.110517 + 0.727837 + 2.983649 - 0.366421 - 0.603288) / 5; without the first and
    # the last (0.727837 + 2.983649 - 0.366421) / 5
    batch = example()
    terms = -METHOD.slot.coefficient(dppo(dppo_delta=delta, **OLD), batch) * batch.advantages * batch.log_probs
    assert terms.flatten()[:5].mean().item() == pytest.approx(published, abs=1e-6)


def test_divergences_of_the_example():
    log_p = torch.tensor([-0.1, -1.2, -2.0, -0.3, -0.9], dtype=torch.float64)
    log_q = torch.tensor([-0.2, -0.7, -2.4, -0.5, -0.5], dtype=torch.float64)
    tv, kl = (divergence(log_p, log_q, kind).tolist() for kind in ("tv", "kl"))
    assert tv == pytest.approx([0.086107, 0.195391, 0.044617, 0.134288, 0.199961], abs=1e-6)
    assert kl == pytest.approx([0.034936, 0.083193, 0.009462, 0.042957, 0.080929], abs=1e-6)


@given(st.floats(-1e4, 0.0, width=32), st.floats(-1e4, 0.0, width=32))
def test_every_pair_of_probabilities_has_a_finite_divergence(one, other):
    log_p, log_q = torch.tensor([one]), torch.tensor([other])
    for kind in ("tv", "kl"):
        assert divergence(log_p, log_q, kind).isfinite().all()
        assert divergence(log_p, log_p, kind).item() == 0.0


@pytest.mark.parametrize("anchor", [-math.inf, 0.0])
@pytest.mark.parametrize("kind", ["tv", "kl"])
def test_a_probability_of_0_or_1_gives_a_finite_coefficient(kind, anchor):
    one, log_p = torch.ones(1, 3), torch.tensor([[0.0, -1e-9, -300.0]])
    batch = TokenBatch(log_p, log_p, one, one, rollout_log_probs=torch.full((1, 3), anchor))
    k = METHOD.slot.coefficient(dppo(dppo_divergence=kind), batch)
    assert k.isfinite().all()
    assert k.max() <= 20.0


def test_without_log_probs_of_the_engine_it_says_so():
    batch = TokenBatch(*torch.zeros(4, 1, 2))
    with pytest.raises(RuntimeError, match="--dppo_anchor rollout"):
        METHOD.slot.coefficient(dppo(), batch)
