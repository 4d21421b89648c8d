"""Predictions of the fall of the entropy, against numbers that were computed by hand."""

import pytest
import torch

from openrlhf_cov.models.entropy_change import predicted_drop

# Two responses of three tokens; the last token is padding with values that would be seen in every mean.
LOG_PROBS = torch.tensor([[-0.1, -1.2, -2.0], [-0.3, -0.9, -5.0]], dtype=torch.float64)
ENTROPY = torch.tensor([[0.5, 1.5, 2.0], [0.2, 1.0, 9.0]], dtype=torch.float64)
EXPECTED_SCORE = torch.tensor([[0.28, 0.21, 0.12], [0.08, 0.24, 9.0]], dtype=torch.float64)
ADVANTAGES = torch.tensor([[1.0, 1.0, 1.0], [-1.0, -1.0, -1.0]], dtype=torch.float64)
MASK = torch.tensor([[True, True, True], [True, True, False]])


def test_the_predictions_by_hand():
    drop = predicted_drop(LOG_PROBS, ENTROPY, EXPECTED_SCORE, ADVANTAGES, MASK)
    # p = 0.904837, 0.301194, 0.135335, 0.740818, 0.406570; p A is the same with the last two negative.
    # E[log p p A] = (-0.090484 - 0.361433 - 0.270671 + 0.222245 + 0.365913) / 5 = -0.026886
    # E[log p] E[p A] = -0.9 * 0.038796 = -0.034916
    assert drop.theorem1.item() == pytest.approx(0.008030, abs=1e-6)
    # E[log p A] = (-0.1 - 1.2 - 2.0 + 0.3 + 0.9) / 5 = -0.42; E[log p] E[A] = -0.9 * 0.2 = -0.18
    assert drop.theorem2.item() == pytest.approx(-0.24)
    # S = p (H + log p) = 0.361935, 0.090358, 0, -0.074082, 0.040657
    # A (S - E) = 0.081935, -0.119642, -0.12, 0.154082, 0.199343, the sum of which is 0.195718
    assert drop.discriminator.item() == pytest.approx(0.039144, abs=1e-6)
    # A (H + log p) = 0.4, 0.3, 0, 0.1, -0.1
    assert drop.natural.item() == pytest.approx(0.14)
    # (m_S - m_F) mean(H) = (0.6 - 0.4) * 5.2 / 5
    assert drop.drift.item() == pytest.approx(0.208)


def test_the_rates_of_one_state_are_those_of_its_logits():
    """Every action once for each of its advantages, weighted by its probability: the exact rates of a softmax."""
    policy = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    reward = torch.tensor([1.0, -1.0, 0.5, 2.0], dtype=torch.float64)
    # Counts of 20 samples are in proportion to the policy: 10, 6, 3 and 1.
    actions = torch.tensor([0] * 10 + [1] * 6 + [2] * 3 + [3])
    log_p = policy.log()
    entropy = -(policy * log_p).sum()
    expected = (policy**2 * (entropy + log_p)).sum()
    ones = torch.ones(1, 20, dtype=torch.float64)
    drop = predicted_drop(
        log_p[actions][None],
        entropy * ones,
        expected * ones,
        reward[actions][None],
        torch.ones(1, 20, dtype=torch.bool),
    )

    def entropy_after(step):
        logits = log_p + step
        return -(logits.softmax(-1) * logits.log_softmax(-1)).sum().item()

    # Policy gradient: dz_v = sum_a p_a A_a (1[a = v] - p_v); natural gradient: dz_v = A_v. Central differences.
    gradient = policy * (reward - (policy * reward).sum())
    for direction, rate in ((gradient, drop.discriminator), (reward, drop.natural)):
        slope = (entropy_after(1e-5 * direction) - entropy_after(-1e-5 * direction)) / 2e-5
        assert rate.item() == pytest.approx(-slope, rel=1e-6)
    # Theorem 1 is the exact rate for advantages of mean 0 only: here it is 0.100048, the rate 0.068153.
    assert drop.theorem1.item() == pytest.approx(0.100048, abs=1e-6)
    assert drop.discriminator.item() == pytest.approx(0.068153, abs=1e-6)
    # Theorem 2 is a covariance, so it has no drift: it is the exact natural rate.
    assert drop.theorem2.item() == pytest.approx(drop.natural.item())
    assert drop.drift.item() == pytest.approx(0.375 * entropy.item())
