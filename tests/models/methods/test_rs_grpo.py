import pytest
import torch

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.method import Groups
from openrlhf_cov.models.methods.maxrl import METHOD as MAXRL
from openrlhf_cov.models.methods.rs_grpo import METHOD
from openrlhf_cov.models.responses import about_the_mean


def advantages(rewards, beta=2.0, dtype=torch.float64):
    config = CovConfig(method="rs_grpo", rs_grpo_beta=beta)
    return METHOD.slot.estimate(config, Groups(torch.tensor(rewards, dtype=dtype), 0.5))


def group(correct, of=6, right=1.0, wrong=0.0):
    return [right] * correct + [wrong] * (of - correct)


# beta 2, one of six: the mean of exp(2 r) is (e^2 + 5) / 6 = 2.064843; (7.389056 / 2.064843 - 1) / 2 = 1.289254 and
# (1 / 2.064843 - 1) / 2 = -0.257851
@pytest.mark.parametrize(
    ("beta", "correct", "expected"),
    [
        (2.0, 1, (1.289254, -0.257851)),
        (2.0, 3, (0.380797, -0.380797)),
        (2.0, 5, (0.084188, -0.420939)),
        (8.0, 1, (0.623744, -0.124749)),
        (8.0, 3, (0.124916, -0.124916)),
        (8.0, 5, (0.024990, -0.124950)),
        (0.001, 1, (0.833611, -0.166722)),
    ],
)
def test_advantages_of_a_correct_and_of_an_incorrect_response(beta, correct, expected):
    (found,) = advantages([group(correct)], beta)
    assert found[:correct].tolist() == pytest.approx([expected[0]] * correct, abs=1e-6)
    assert found[correct:].tolist() == pytest.approx([expected[1]] * (6 - correct), abs=1e-6)


def test_rewards_of_minus_one_and_one_are_0_and_1_with_twice_the_beta():
    # one of six with beta 2: twice the advantages of rewards 0 and 1 with beta 4
    (found,) = advantages([group(1, wrong=-1.0)])
    assert found[:2].tolist() == pytest.approx([2.248314, -0.449663], abs=1e-6)
    torch.testing.assert_close(found, 2 * advantages([group(1)], 4.0)[0])


def test_its_limits_are_dr_grpo_and_maxrl():
    rewards = torch.tensor([group(correct, 8) for correct in range(9)], dtype=torch.float64)
    torch.testing.assert_close(advantages(rewards.tolist(), 1e-6), about_the_mean(rewards), rtol=1e-5, atol=0)
    expected = MAXRL.slot.estimate(CovConfig(method="maxrl"), Groups(rewards, 0.5))
    torch.testing.assert_close(50 * advantages(rewards.tolist(), 50.0), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rewards", [[0.3, -0.1, 2.0, 0.7], [1.0, 0, 0, 1], [-5.0, 5, 5, 1]])
def test_the_mean_of_a_group_is_0(rewards):
    assert float(advantages([rewards], 3.0).mean()) == pytest.approx(0.0, abs=1e-12)


def test_large_rewards_do_not_overflow():
    # exp(8 * 100) is no float64; one of four: (exp(800) / (exp(800) / 4) - 1) / 8 = 3/8, the others (0 - 1) / 8
    (found,) = advantages([[100.0, 0.0, 0.0, 0.0]], 8.0, torch.float32)
    assert found.tolist() == pytest.approx([0.375, -0.125, -0.125, -0.125])
    assert found.dtype == torch.float32
