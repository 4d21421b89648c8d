import pytest
import torch

from openrlhf_cov.models.config import CovConfig
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


@pytest.mark.parametrize(
    "settings",
    [
        {"entrocraft_low": 0.0},
        {"entrocraft_low": 0.7},
        {"entrocraft_high": float("nan")},
        {"entrocraft_high": Schedule(0.7, 0.5, 10)},  # ends below 0.6
    ],
)
def test_a_band_that_is_none_is_named(settings):
    with pytest.raises(ValueError, match="--entrocraft_"):
        CovConfig(method="entrocraft", **settings)


def test_a_band_that_closes_on_the_way_is_refused():
    # after 100 of 400 steps the lower end is at 0.6 - 0.2 * 100 / 400 = 0.55, the upper one at 0.5
    with pytest.raises(ValueError, match=r"--entrocraft_low .*: must lie below --entrocraft_high"):
        CovConfig(method="entrocraft", entrocraft_low=Schedule(0.6, 0.4, 400), entrocraft_high=Schedule(0.7, 0.5, 100))
