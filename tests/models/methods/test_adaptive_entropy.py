import pytest
import torch
from example import ENTROPIES, MASK, gradients
from openrlhf.models import aggregate_loss

from openrlhf_cov.models.cov_config import CovConfig


def test_value_of_the_example():
    # mean entropy of the five tokens 5.2 / 5 = 1.04; PPO's -0.194060 less 0.01 * 1.04. Upstream takes the mean
    config = CovConfig(method="adaptive_entropy", entropy_bonus=0.01)
    mean = aggregate_loss(torch.tensor(ENTROPIES), torch.tensor(MASK)).item()
    assert gradients(config)[0] - config.entropy_bonus_in_force * mean == pytest.approx(-0.204460, abs=1e-6)


def test_without_it_the_bonus_is_the_runs():
    assert CovConfig(method="repo_r").entropy_bonus_in_force is None


def test_each_step_has_its_coefficient():
    config, found = CovConfig(method="adaptive_entropy", entropy_target=0.2), []
    controller = config.controller()
    for step, entropy in enumerate([0.15, 0.15, 0.25, 0.15, 0.15]):
        found.append(config.at(step, controller).entropy_bonus_in_force)
        controller.step(entropy, 0.2)
    # nothing in the first step; c 1e-4, 2e-4, then 1e-4 that does not count, then 2e-4
    assert found == pytest.approx([0, 1e-4, 2e-4, 0, 2e-4])
