import pytest
import torch

from openrlhf_cov.models.config import CovConfig
from openrlhf_cov.models.method import Groups
from openrlhf_cov.models.methods.lite_ppo import METHOD
from openrlhf_cov.models.responses import group_normalised, response_advantages

# Three groups of six responses with 1, 5 and no correct ones.
STEP = [[1.0] * correct + [0.0] * (6 - correct) for correct in (1, 5, 0)]


def config(std="raw"):
    return CovConfig(method="lite_ppo", lite_ppo_std=std)


def advantages(rewards, std="raw", dtype=torch.float64):
    return METHOD.slot.estimate(config(std), Groups(torch.tensor(rewards, dtype=dtype), 0.5))


# raw: 6 of 18 rewards are 1, so s = sqrt(18 * 1/3 * 2/3 / 17) = 0.485071; (1 - 1/6) / s = 1.717957
# centred: the squares about the means of the groups are 5/6 + 5/6 + 0, so s = sqrt(5/3 / 17) = 0.313112
@pytest.mark.parametrize(("std", "large", "small"), [("raw", 1.717957, 0.343591), ("centred", 2.661445, 0.532289)])
def test_the_deviation_is_of_the_whole_step(std, large, small):
    found = advantages(STEP, std)
    assert found[0].tolist() == pytest.approx([large] + [-small] * 5, abs=1e-6)
    assert found[1].tolist() == pytest.approx([small] * 5 + [-large], abs=1e-6)
    assert not found[2].any()


def test_groups_of_equal_rewards_count_in_the_deviation_where_they_stay():
    # without the third group 6 of 12 rewards are 1: s = sqrt(12 / 4 / 11) = 0.522233; (5/6) / s = 1.595710
    assert float(advantages(STEP[:2])[0, 0]) == pytest.approx(1.595710, abs=1e-5)


@pytest.mark.parametrize("std", ["raw", "centred"])
def test_a_step_of_one_group_is_grpo(std):
    rewards = [[1.0, 0, 0, 1, 0.5]]
    expected = group_normalised(torch.tensor(rewards, dtype=torch.float64))
    torch.testing.assert_close(advantages(rewards, std), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("std", ["raw", "centred"])
@pytest.mark.parametrize("rewards", [[[1.0] * 4] * 3, [[-0.1] * 7], [[0.7]], [[0.3] * 5, [0.3] * 5]])
def test_a_step_of_equal_rewards_has_no_advantages(std, rewards):
    assert not advantages(rewards, std, torch.float32).any()


@pytest.mark.parametrize("std", ["raw", "centred"])
def test_responses_that_abstained_have_no_part_in_the_deviation(std):
    # Prompts with other numbers of graded responses are estimated by themselves, and share one deviation. The last
    # prompt has one graded response, which nothing is compared with, so that it does not count either.
    rewards = torch.tensor([[1.0, 0, 0, 0], [1, 1, 0, 77], [0, 0, 1, 1], [1, -9, 55, 66]])
    graded = torch.tensor([[True] * 4, [True] * 3 + [False], [True] * 4, [True] + [False] * 3])
    compared = [[1.0, 0, 0, 0], [1.0, 1, 0], [0.0, 0, 1, 1]]
    values = [value for row in compared for value in row]
    centres = [sum(values) / 11] * 11 if std == "raw" else [sum(row) / len(row) for row in compared for _ in row]
    deviation = (sum((v - c) ** 2 for v, c in zip(values, centres, strict=True)) / 10) ** 0.5 + 1e-6
    found = response_advantages(rewards, graded, "group_norm", config(std), 0.5)
    for row, of_group in zip(found, compared, strict=False):
        mean = sum(of_group) / len(of_group)
        expected = [(value - mean) / deviation for value in of_group]
        assert row[: len(of_group)].tolist() == pytest.approx(expected, abs=1e-6)
    assert found[1, 3].isnan()
    assert found[3].isnan().all()


def test_an_unknown_deviation_is_named():
    with pytest.raises(ValueError, match="--lite_ppo_std batch: must be one of raw, centred"):
        config("batch")
