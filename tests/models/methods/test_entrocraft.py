import pytest
import torch

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.method import Groups
from openrlhf_cov.models.methods.entrocraft import METHOD
from openrlhf_cov.models.responses import group_normalised
from openrlhf_cov.settings import Schedule

REWARDS = [[1.0, -1.0, -1.0, 1.0]]


def advantages(entropy, rewards=REWARDS, step=0, **settings):
    config = CovConfig(method="entrocraft", **settings).at(step)
    return METHOD.slot.estimate(config, Groups(torch.tensor(rewards), entropy))


@pytest.mark.parametrize("rewards", [REWARDS, [[1.0, 0.0, 0.0, 1.0]]])
def test_one_sign_trains_outside_the_band(rewards):
    assert advantages(0.71, rewards).tolist() == [[1, 0, 0, 1]]
    assert advantages(0.59, rewards).tolist() == [[0, -1, -1, 0]]


@pytest.mark.parametrize("entropy", [0.6, 0.65, 0.7])
def test_within_the_band_it_is_grpo_bit_for_bit(entropy):
    assert torch.equal(advantages(entropy), group_normalised(torch.tensor(REWARDS)))


def test_the_band_moves_with_the_steps():
    # half way from 0.6 and 0.7 to 0.4 and 0.5: from 0.5 to 0.6
    band = {"entrocraft_low": Schedule(0.6, 0.4, 100), "entrocraft_high": Schedule(0.7, 0.5, 100)}
    assert advantages(0.62, step=50, **band).tolist() == [[1, 0, 0, 1]]
    assert advantages(0.49, step=50, **band).tolist() == [[0, -1, -1, 0]]
    assert advantages(0.49, step=100, **band).abs().min() > 0
