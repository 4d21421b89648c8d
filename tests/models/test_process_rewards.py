"""The maths of PRIME with values worked out by hand."""

import math

import pytest
import torch

from openrlhf_cov.models.process_rewards import (
    against_other_responses,
    correctness_losses,
    largest_return,
    ordered_pairs,
    outcomes_against_others,
    process_rewards,
)

# Responses of 3 and 1 tokens; the second place of the prompt of the first one is no action.
MASK = torch.tensor([[False, True, True, True], [True, False, False, False]])
ALL = torch.tensor([True, True])


def test_process_rewards_leave_out_the_last_token_and_the_prompt():
    ratios = torch.tensor([[9.0, 2.0, -4.0, 6.0], [7.0, 9.0, 9.0, 9.0]])
    # beta q of the tokens 1 and 2 of the first response; the second response has its last token alone
    expected = [[0.0, 1.0, -2.0, 0.0], [0.0] * 4]
    assert process_rewards(ratios, MASK, beta=0.5).tolist() == expected


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_masks_may_be_numbers(dtype):
    ratios = torch.tensor([[9.0, 2.0, -4.0, 6.0], [7.0, 9.0, 9.0, 9.0]])
    mask, graded = MASK.to(dtype), ALL.to(dtype)
    assert torch.equal(process_rewards(ratios, mask, 0.5), process_rewards(ratios, MASK, 0.5))
    assert torch.equal(against_other_responses(ratios, mask, graded), against_other_responses(ratios, MASK, ALL))
    correct = torch.tensor([1.0, 0.0])
    assert torch.equal(correctness_losses(ratios, mask, correct, 0.5), correctness_losses(ratios, MASK, correct, 0.5))


def test_tokens_between_actions_have_no_reward():
    # a turn of the environment in the middle: the last action is the fourth place
    mask = torch.tensor([[True, False, True, True, False]])
    assert process_rewards(torch.full((1, 5), 2.0), mask, beta=0.5).tolist() == [[1.0, 0.0, 1.0, 0.0, 0.0]]


def test_the_largest_return_is_of_all_prompts_and_of_graded_responses():
    first = torch.tensor([[1.0, -3.0, 1.0], [0.0, 0.5, 0.0]])  # sums to the end: -1, -2, 1 and 0.5, 0.5, 0
    second = torch.tensor([[2.0, 0.5], [8.0, 0.0]])  # 2.5, 0.5 and, of an abstention, 8
    graded = [ALL, torch.tensor([True, False])]
    assert largest_return([first, second], graded) == 2.5
    assert largest_return([first], [ALL]) == 2.0
    assert largest_return([first], [~ALL]) == 0.0


def test_the_baseline_is_of_means_so_that_a_long_response_weighs_as_a_short_one():
    mask = torch.tensor([[True, True, True, True], [True, True, False, False], [True, False, False, False]])
    rewards = torch.tensor([[1.0, 2.0, 3.0, 0.0], [4.0, 0.0, 0.0, 0.0], [0.0] * 4])
    graded = torch.tensor([True, True, True])
    # means over tokens: 6 / 4 = 1.5, 4 / 2 = 2, 0; their sum over K - 1 is 3.5 / 2 = 1.75; K / (K - 1) = 1.5
    expected = [[1.5 - 1.75, 3.0 - 1.75, 4.5 - 1.75, -1.75], [6.0 - 1.75, -1.75, 0.0, 0.0], [-1.75, 0.0, 0.0, 0.0]]
    assert against_other_responses(rewards, mask, graded).tolist() == expected


def test_an_abstention_is_left_out_of_the_baseline():
    mask = torch.ones(3, 2, dtype=torch.bool)
    rewards = torch.tensor([[2.0, 0.0], [99.0, 0.0], [6.0, 0.0]])
    graded = torch.tensor([True, False, True])
    # of two graded responses: r * 2 - (1 + 3)
    expected = [[0.0, -4.0], [0.0, 0.0], [8.0, -4.0]]
    assert against_other_responses(rewards, mask, graded).tolist() == expected
    one = torch.tensor([True, False, False])
    assert against_other_responses(rewards, mask, one).tolist() == [[0.0, 0.0]] * 3


def test_a_response_without_a_token_counts_with_the_mean_zero():
    mask = torch.tensor([[True, True], [False, False]])
    rewards = torch.tensor([[2.0, 0.0], [0.0, 0.0]])
    # r * 2 - (1 + 0)
    assert against_other_responses(rewards, mask, ALL).tolist() == [[3.0, -1.0], [0.0, 0.0]]


def test_outcomes_are_compared_with_those_of_the_other_responses():
    correct = torch.tensor([[1.0, 0.0, 0.0, 1.0]])
    # of a correct response 1 - 1/3, of an incorrect one 0 - 2/3
    assert outcomes_against_others(correct).flatten().tolist() == pytest.approx([2 / 3, -2 / 3, -2 / 3, 2 / 3])
    assert outcomes_against_others(torch.ones(2, 1)).tolist() == [[0.0], [0.0]]


def test_the_loss_is_the_cross_entropy_of_the_correctness():
    ratios = torch.tensor([[9.0, 2.0, 3.0, -1.0], [-6.0, 9.0, 9.0, 9.0]])
    # sums of q: 4 and -6; times beta 2 and -3; -ln sigmoid(2) = ln(1 + e^-2), -ln(1 - sigmoid(-3)) = ln(1 + e^-3)
    found = correctness_losses(ratios, MASK, torch.tensor([1.0, 0.0]), beta=0.5)
    assert found.tolist() == pytest.approx([math.log(1 + math.exp(-2)), math.log(1 + math.exp(-3))])
    found = correctness_losses(ratios, MASK, torch.tensor([0.0, 1.0]), beta=0.5)
    assert found.tolist() == pytest.approx([math.log(1 + math.exp(2)), math.log(1 + math.exp(3))])


def test_the_gradient_is_that_of_the_cross_entropy_also_where_every_model_starts():
    ratios = torch.zeros(2, 4, requires_grad=True)
    correctness_losses(ratios, MASK, torch.tensor([1.0, 0.0]), beta=0.4).sum().backward()
    # beta (sigmoid(0) - correct) = 0.4 * -0.5 and 0.4 * 0.5 on the tokens of the response
    expected = torch.tensor([[0.0, -0.2, -0.2, -0.2], [0.2, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(ratios.grad, expected)


def test_the_loss_is_finite_for_any_log_ratio():
    ratios = torch.tensor([[1e4, 0.0], [-1e4, 0.0]], requires_grad=True)
    losses = correctness_losses(ratios, torch.ones(2, 2, dtype=torch.bool), torch.tensor([0.0, 1.0]), beta=1.0)
    losses.sum().backward()
    assert losses.tolist() == [1e4, 1e4]
    assert ratios.grad.tolist() == [[1.0, 1.0], [-1.0, -1.0]]


def test_pairs_of_a_correct_and_an_incorrect_response():
    # correct: 3 and 1; incorrect: 1 and 2: of (3, 1), (3, 2), (1, 1), (1, 2) two are in order and one is a tie
    assert ordered_pairs(torch.tensor([3.0, 1.0, 1.0, 2.0]), torch.tensor([1.0, 0.0, 1.0, 0.0])) == (2.5, 4)
    assert ordered_pairs(torch.tensor([3.0, 1.0]), torch.tensor([1.0, 1.0])) == (0.0, 0)
