import pytest
import torch
from example import gradients, worked_out
from planned import window_of

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.method import Groups, TokenBatch
from openrlhf_cov.models.methods.dr_grpo import METHOD
from openrlhf_cov.models.responses import response_advantages
from openrlhf_cov.models.window import plan_step


def config(length=None):
    return CovConfig(method="dr_grpo", dr_grpo_length=length)


# 1 - 1/6 and -1/6, 1 - 3/6 and -3/6, 1 - 5/6 and -5/6
@pytest.mark.parametrize(("correct", "expected"), [(1, (5 / 6, -1 / 6)), (3, (0.5, -0.5)), (5, (1 / 6, -5 / 6))])
def test_advantages_of_a_correct_and_of_an_incorrect_response(correct, expected):
    rewards = torch.tensor([[1.0] * correct + [0.0] * (6 - correct)], dtype=torch.float64)
    (found,) = METHOD.slot.estimate(config(), Groups(rewards, 0.5))
    assert found[:correct].tolist() == pytest.approx([expected[0]] * correct, abs=1e-12)
    assert found[correct:].tolist() == pytest.approx([expected[1]] * (6 - correct), abs=1e-12)


def test_it_is_the_estimator_of_upstream_of_that_name():
    rewards = torch.tensor([[1.0, 0, 0, 0.5], [2, -1, 0, 0]])
    graded = torch.tensor([[True] * 4, [True, True, False, True]])
    found = response_advantages(rewards, graded, "dr_grpo", config(), 0.5)
    assert str(found) == str(response_advantages(rewards, graded, "dr_grpo", CovConfig(), 0.5))


def test_gradients_of_the_example_with_a_constant_length():
    # L 4: the sums over tokens are divided by 2 * 4 instead of by 5: 5/8 of PPO's -0.178060 and of its gradients
    assert gradients(config(4.0), eps=(0.2, 0.2)) == worked_out(-0.111287, [-0.138146, -0.075816, 0, 0.152675, 0])


@pytest.mark.parametrize("length", [None, 2.5])
def test_without_a_length_or_with_the_mean_length_it_is_the_token_mean(length):
    # 5 tokens in 2 responses
    assert gradients(config(length)) == gradients(CovConfig())


def test_responses_without_a_token_do_not_count():
    # 3 tokens in 2 of 4 responses: 3 / (2 * 6)
    mask = torch.tensor([[1, 1], [0, 0], [1, 0], [0, 0]])
    batches = [TokenBatch(*torch.ones(3, 2, 2), mask[rows]) for rows in ([0, 1], [2, 3])]
    plans = plan_step(config(6.0), window_of(batches, [torch.zeros(2, 2, dtype=torch.int64)] * 2))
    assert [float(plan.weight) for ((plan),) in plans] == [0.25, 0.25]


def test_it_goes_with_methods_that_drop_tokens_or_have_one_advantage_for_a_response():
    # unlike PSR it leaves no response out of the mean
    for other in ({"cov_type": "clip_cov"}, {"cov_type": "kl_cov"}, {"method": "dr_grpo,gmpo"}):
        CovConfig(**({"method": "dr_grpo", "dr_grpo_length": 100.0} | other))
