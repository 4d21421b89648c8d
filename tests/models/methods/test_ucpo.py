import math

import pytest
import torch

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.method import Groups
from openrlhf_cov.models.methods.ucpo import METHOD, correct_weights
from openrlhf_cov.models.responses import group_normalised, mean_log_probs, response_advantages

REWARDS = [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
# Mean log-probs of six responses to a prompt; those of incorrect responses must not matter.
LOG_PROBS = [-0.2, -0.5, -1.0, -0.3, -3.0, -0.1]


def advantages(rewards, log_probs, tau=0.2, dtype=torch.float64):
    groups = Groups(torch.tensor([rewards], dtype=dtype), 0.5, log_probs=torch.tensor([log_probs], dtype=dtype))
    return METHOD.slot.estimate(CovConfig(method="ucpo", ucpo_tau=tau), groups)[0]


# q = softmax(-0.2, -0.5, -1.0) = 0.456, 0.338, 0.205; 1 / q = 2.190, 2.956, 4.874, of which the shares are 0.218560,
# 0.295025, 0.486415... times 3 they are the weights at tau 1: 0.655679, 0.885076, 1.459245. At tau 0.2 the weights are
# 0.8 + 0.2 times these: 0.931136, 0.977015, 1.091849. GRPO's advantage is 0.912871.
@pytest.mark.parametrize(
    ("tau", "expected"), [(0.2, [0.850007, 0.891889, 0.996717]), (1.0, [0.598552, 0.807960, 1.332101])]
)
def test_improbable_correct_responses_get_more(tau, expected):
    found = advantages(REWARDS, LOG_PROBS, tau)
    assert found[:3].tolist() == pytest.approx(expected, abs=1e-6)
    assert found[3:].tolist() == pytest.approx([-0.912871] * 3, abs=1e-6)
    assert float(found[:3].sum()) == pytest.approx(2.738613, abs=1e-6)  # 3 * 0.912871


def test_rare_sequences_have_the_smallest_share():
    # log-probs of sequences are far apart: all but the first have the smallest share 1e-6: 0.8, 1.1, 1.1
    (found,) = correct_weights(torch.tensor([[-20.0, -50.0, -100.0]]), torch.ones(1, 3, dtype=torch.bool), 0.2)
    assert found.tolist() == pytest.approx([0.8, 1.1, 1.1], abs=1e-5)


@pytest.mark.parametrize(
    ("rewards", "tau"),
    [
        (REWARDS, 0.0),
        ([1.0, 0, 0, 0, 0, 0], 0.7),  # one correct response has nothing to share with
        ([1.0] * 6, 0.7),
        ([0.0] * 6, 0.7),
    ],
)
def test_where_there_is_nothing_to_share_it_is_grpo_bit_for_bit(rewards, tau):
    found = advantages(rewards, LOG_PROBS, tau, torch.float32)
    assert torch.equal(found, group_normalised(torch.tensor([rewards]))[0])


def test_equally_probable_responses_share_equally():
    found = advantages([1.0, 1.0, 0.0, 0.0], [-0.7] * 4, 1.0)
    torch.testing.assert_close(found, group_normalised(torch.tensor([[1.0, 1, 0, 0]]).double())[0])


@pytest.mark.parametrize("improbable", [-1e4, -math.inf])
def test_an_impossible_response_keeps_the_smallest_share(improbable):
    # q = 1, 1e-6: v = 1, 1e6; all of the shared part goes to the second: (1 - 0.2) and 0.8 + 0.2 * 2 times 1/sqrt(4/3)
    # = 0.866025, the advantage of GRPO
    found = advantages([1.0, 1.0, 0.0, 0.0], [-0.1, improbable, -1.0, -1.0])
    assert found[:2].tolist() == pytest.approx([0.8 * 0.866025, 1.2 * 0.866025], abs=1e-5)


def test_tokens_count_by_their_mean_and_padding_does_not():
    once = torch.tensor([[-0.2], [-0.5], [-1.0], [-0.4]])
    four_times = torch.cat([once.expand(4, 4), torch.full((4, 3), -99.0)], 1)
    mask = torch.arange(7).expand(4, 7) < 4
    assert mean_log_probs(four_times, mask).tolist() == pytest.approx(once[:, 0].tolist())
    assert mean_log_probs(four_times, torch.zeros_like(mask)).tolist() == [0.0] * 4


def test_responses_that_abstained_share_nothing():
    rewards = torch.tensor([[1.0, 1.0, 1.0, 0.0, 0.0]])
    graded = torch.tensor([[True, True, False, True, True]])
    log_probs = torch.tensor([[-0.2, -0.5, -9.0, -0.1, -0.3]])
    config = CovConfig(method="ucpo")
    found = response_advantages(rewards, graded, "group_norm", config, 0.5, log_probs)
    expected = advantages([1.0, 1.0, 0.0, 0.0], [-0.2, -0.5, -0.1, -0.3], dtype=torch.float32)
    assert found[0, [0, 1, 3, 4]].tolist() == pytest.approx(expected.tolist())
    assert found[0, 2].isnan()
