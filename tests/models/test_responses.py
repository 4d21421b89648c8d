import pytest
import torch

from openrlhf_cov.models.responses import BY_GROUP, group_normalised, is_two_valued


@pytest.mark.parametrize(
    ("rewards", "two"),
    [
        ([[0.0, 1.0], [1.0, 1.0]], True),
        ([[-1.0, 1.0], [-1.0, -1.0]], True),
        ([[0.0, 0.0]], True),  # one kind alone
        ([[1.0, 1.0]], True),
        ([[0.1, 1.0], [0.0, 1.1]], False),  # a bonus for the format
        ([[0.0, 1.0], [1.0, 0.7]], False),  # a penalty for the length
        ([[0.2, 0.4]], False),  # two values, but which is right?
    ],
)
def test_one_reward_of_right_and_one_of_wrong_responses(rewards, two):
    assert is_two_valued(torch.tensor(rewards)) is two


def test_grpo_by_hand():
    # 1 of 4: mean 1/4, deviation sqrt(((3/4)^2 + 3 (1/4)^2) / 3) = 1/2
    assert group_normalised(torch.tensor([[1.0, 0, 0, 0], [1, 1, 1, 1]])).tolist() == [
        pytest.approx([1.5, -0.5, -0.5, -0.5]),
        [0.0] * 4,
    ]


def test_a_single_response_has_no_advantage():
    assert group_normalised(torch.tensor([[1.0], [0.0]])).tolist() == [[0.0], [0.0]]  # its deviation would be 0 / 0


@pytest.mark.parametrize("estimator", BY_GROUP)
@pytest.mark.parametrize("reward", [-0.3, -0.1, 0.1, 0.7])
def test_equal_rewards_are_no_advantage(reward, estimator):
    assert not BY_GROUP[estimator](torch.full((2, 8), reward)).any()  # off by rounding, the mean and the deviation
