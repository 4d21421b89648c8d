from itertools import product
from math import comb

import pytest
import torch

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.method import Groups
from openrlhf_cov.models.methods.maxrl import METHOD

CONFIG = CovConfig(method="maxrl")


def advantages(rewards):
    return METHOD.slot.estimate(CONFIG, Groups(torch.tensor(rewards, dtype=torch.float64), 0.5))


def test_an_advantage_is_that_of_dr_grpo_over_the_pass_rate():
    rewards = [[1.0] * correct + [0.0] * (8 - correct) for correct in range(1, 8)]
    rates = torch.arange(1, 8, dtype=torch.float64)[:, None] / 8
    torch.testing.assert_close(advantages(rewards) * rates, torch.tensor(rewards, dtype=torch.float64) - rates)


def test_the_expected_gradient_is_a_truncated_likelihood_of_order_k_less_one():
    # The score of a Bernoulli(p) response by its logit is r - p, and the gradient of p is p (1 - p). Sum over all 2^6
    # groups; for K = 6 and p = 0.2 the factor before the gradient is (1 - 0.8^5) / 0.2 = 3.3616, of order 6 it would
    # be (1 - 0.8^6) / 0.2 = 3.68928.
    p, k = 0.2, 6
    rewards = torch.tensor(list(product([0.0, 1.0], repeat=k)), dtype=torch.float64)
    probability = p ** rewards.sum(1) * (1 - p) ** (k - rewards.sum(1))
    assert float(probability.sum()) == pytest.approx(1.0)
    assert sum(comb(k, c) for c in range(k + 1)) == len(rewards)
    gradient = (probability * (advantages(rewards.tolist()) * (rewards - p)).mean(1)).sum()
    assert float(gradient) / (p * (1 - p)) == pytest.approx(3.3616, abs=1e-9)


@pytest.mark.parametrize("incorrect", [-1.0, 0.1])
@pytest.mark.parametrize("correct", [1.0, 0.7])
def test_rewards_that_are_not_0_and_1_end_the_run(correct, incorrect):
    with pytest.raises(RunStopped, match=r"--method maxrl: all rewards must be 0 or 1; got"):
        advantages([[correct, incorrect, 0.0]])
