import pytest
import torch

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.method import Groups, PromptTokens
from openrlhf_cov.models.methods.prime import estimate, token_rewards

TWO = torch.tensor([True, True])


def prime(**settings):
    return CovConfig(method="prime", **settings)


def prompt(ratios, graded=TWO):
    return PromptTokens(torch.tensor(ratios), torch.ones(len(ratios), len(ratios[0]), dtype=torch.bool), graded)


@pytest.mark.parametrize("incorrect", [0.0, -1.0])
def test_outcomes_are_correct_or_not_whatever_an_incorrect_response_is_given(incorrect):
    groups = Groups(torch.tensor([[1.0, incorrect, incorrect, incorrect]]), 0.5)
    # 5 (1 - 0) and 5 (0 - 1/3)
    assert estimate(prime(), groups).flatten().tolist() == pytest.approx([5.0, -5 / 3, -5 / 3, -5 / 3])
    assert estimate(prime(prime_outcome_coef=0.0), groups).tolist() == [[0.0] * 4]


def test_process_rewards_are_normalised_over_the_step_and_weighted():
    # beta q: 1, 2 and 3, 0 | 0.5, 4 and 0, 0, of which the last tokens are dropped: 1, 0 and 3, 0 | 0.5, 0 and 0, 0
    prompts = [prompt([[2.0, 4.0], [6.0, 0.0]]), prompt([[1.0, 8.0], [0.0, 0.0]])]
    config = prime(prime_beta=0.5, prime_process_coef=6.0)
    first, second = token_rewards(config, prompts)
    # the largest return of the step is 3, so 6 r / 3 = 2, 0 and 6, 0 | 1, 0 and 0, 0; K / (K - 1) = 2;
    # baselines 1 + 3 and 0.5 + 0
    assert first.flatten().tolist() == pytest.approx([0.0, -4.0, 8.0, -4.0], abs=1e-4)
    assert second.flatten().tolist() == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-4)
    first, second = token_rewards(prime(prime_beta=0.5, prime_process_coef=1.0, prime_norm="none"), prompts)
    assert first.flatten().tolist() == [0.0, -2.0, 4.0, -2.0]
    assert second.flatten().tolist() == [0.75, -0.25, -0.25, -0.25]


def test_a_model_that_is_its_reference_gives_no_process_reward():
    (found,) = token_rewards(prime(), [prompt([[0.0, 0.0], [0.0, 0.0]])])
    assert found.tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_an_abstention_does_not_change_the_rewards_of_other_responses():
    graded = torch.tensor([True, True, False])
    with_it = token_rewards(prime(), [prompt([[2.0, 4.0], [6.0, 0.0], [100.0, 7.0]], graded)])[0]
    without = token_rewards(prime(), [prompt([[2.0, 4.0], [6.0, 0.0]])])[0]
    assert with_it[:2].equal(without)
    assert with_it[2].tolist() == [0.0, 0.0]
