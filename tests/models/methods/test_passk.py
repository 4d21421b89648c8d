from itertools import combinations

import pytest
import torch

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.method import Groups
from openrlhf_cov.models.methods import passk
from openrlhf_cov.models.methods.passk import METHOD


# n = 8, k = 4. c = 2: pass@4 = 1 - C(6,4) / C(8,4) = 1 - 15/70 = 0.785714, deviation 0.410326; right
# 0.214286 / 0.410327, wrong (0.214286 - C(5,3) / C(7,3)) / 0.410327 = (0.214286 - 10/35) / 0.410327
@pytest.mark.parametrize(
    ("c", "expected"),
    [(2, (0.522232, -0.174077)), (1, (0.999998, -0.142857)), (6, (0.0, 0.0)), (0, (0.0, 0.0)), (8, (0.0, 0.0))],
)
def test_advantages_of_a_group(c, expected):
    found = passk.advantages(8, c, 4)
    assert (found[0] if c else 0.0, found[1]) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("n", "c", "k"), [(6, 2, 3), (5, 1, 2), (7, 3, 4), (4, 3, 2)])
def test_an_advantage_is_the_mean_over_the_sets_with_the_response(n, c, k):
    sets = list(combinations(range(n), k))
    rewards = [float(any(i < c for i in each)) for each in sets]
    mean = sum(rewards) / len(sets)
    deviation = (mean * (1 - mean)) ** 0.5 + 1e-6
    for i, found in zip((0, n - 1), passk.advantages(n, c, k), strict=True):
        own = [(reward - mean) / deviation for each, reward in zip(sets, rewards, strict=True) if i in each]
        assert found == pytest.approx(sum(own) / len(own), abs=1e-9)


def test_k_of_one_is_grpo_with_the_deviation_of_the_population():
    rewards = torch.tensor([[1.0, 0, 0, 1, 0, 0, 0, 0], [1.0] * 7 + [0.0]], dtype=torch.float64)
    found = METHOD.slot.estimate(CovConfig(method="passk", passk_k=1), Groups(rewards, 0.5))
    mean = rewards.mean(1, keepdim=True)
    torch.testing.assert_close(found, (rewards - mean) / (rewards.std(1, correction=0, keepdim=True) + 1e-6))


def test_every_response_gets_that_of_its_kind():
    rewards = torch.tensor([[0.0, 1, 0, 0, 1, 0, 0, 0], [-1.0] * 8, [1.0] * 8], dtype=torch.float64)
    found = METHOD.slot.estimate(CovConfig(method="passk"), Groups(rewards, 0.5))
    assert found[0].tolist() == pytest.approx([0.522232 if r else -0.174077 for r in rewards[0]], abs=1e-6)
    assert not found[1:].any()


def test_a_group_that_abstentions_left_smaller_than_a_set_has_no_advantage():
    # k is 4. Three graded responses make no set of four, and four make one, which every response is in: pass@4 is its
    # own mean.
    for graded in ([1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]):
        found = METHOD.slot.estimate(CovConfig(method="passk", passk_k=4), Groups(torch.tensor([graded]), 0.5))
        assert found.tolist() == [[0.0] * len(graded)]
