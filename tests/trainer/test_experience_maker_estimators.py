"""Advantages of a method's estimator on upstream's way from rewards to advantages."""

from types import SimpleNamespace

import pytest
import torch
from openrlhf.trainer.ppo_utils.experience import Experience

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.models.config import CovConfig
from openrlhf_cov.trainer.experience_maker import CovExperienceMaker
from openrlhf_cov.trainer.rollouts import check_rollout_log_probs

LENGTHS = [2, 1, 3, 2, 1, 2, 2, 3]
REWARDS = [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0]
"""Of two groups of four."""


def maker(method, estimator, kl_coef=0.0, **settings):
    made = object.__new__(CovExperienceMaker)
    reward = SimpleNamespace(overlong_buffer_len=None, stop_properly_penalty_coef=None, clip_range=(-10, 10))
    advantage = SimpleNamespace(estimator=estimator, gamma=1.0, lambd=1.0, no_std_norm=False)
    made.args = SimpleNamespace(
        algo=SimpleNamespace(advantage=advantage), reward=reward, rollout=SimpleNamespace(n_samples_per_prompt=4)
    )
    made.strategy, made.advantage_estimator = SimpleNamespace(args=made.args), estimator
    made.kl_ctl = SimpleNamespace(value=kl_coef)
    made.config = CovConfig(method=method, **settings)
    return made


def experiences(parts, rewards=REWARDS, kl=0.5):
    """Samples in these micro-batches, as upstream scores them; every token has the same KL."""
    made = []
    for part in parts:
        lengths = torch.tensor([LENGTHS[i] for i in part])
        mask = torch.arange(int(lengths.max())) < lengths[:, None]
        made.append(
            Experience(
                index=list(part),
                sequences=torch.zeros(len(part), mask.shape[1] + 1, dtype=torch.long),
                action_mask=mask.long(),
                rewards=torch.tensor([rewards[i] for i in part]),
                kl=kl * mask.float(),
                info={
                    "reward": torch.tensor([rewards[i] for i in part]),
                    "entropy": [torch.full(row.shape, 0.5) for row in mask],
                },
            )
        )
    return made


def advantages(made):
    """{sample: advantages of its tokens}"""
    return {
        i: row[mask.bool()].tolist()
        for experience in made
        for i, row, mask in zip(experience.index, experience.advantages, experience.action_mask, strict=True)
    }


def test_every_token_has_the_advantage_of_its_response():
    # group 1 has 1 of 4 right: quantile 0, deviation 1/2; group 2 has 3 of 4: quantile 1
    made = maker("qae", "group_norm")
    made.args.reward.clip_range = (-1.0, 1.0)  # of rewards, not of advantages
    (one, other) = made.compute_advantages_and_returns(experiences([[0, 1, 2, 3], [4, 5, 6, 7]]))
    found = advantages([one, other])
    expected = [2.0, 0, 0, 0, 0, 0, 0, -2.0]
    assert [found[i] for i in range(8)] == [
        pytest.approx([value] * length, rel=1e-5) for value, length in zip(expected, LENGTHS, strict=True)
    ]
    assert torch.equal(one.returns, one.advantages)
    assert one.info["reward"].tolist() == REWARDS[:4]  # what is logged are rewards
    assert one.info["return"].tolist() == pytest.approx([2.0, 0, 0, 0], rel=1e-5)
    assert one.info["group_reward_std"].tolist() == [0.5] * 4


@pytest.mark.parametrize("reward", [-0.3, -0.1, 0.1, 0.7])
def test_equal_rewards_of_a_group_are_no_advantage(reward):
    # of -0.1 seven times the mean is off by rounding, and so is the deviation: their ratio was 0.8
    found = maker("none", "group_norm")
    made = found.compute_advantages_and_returns(experiences([[0, 5, 2], [4, 1, 3, 6, 7]], [reward] * 4 + REWARDS[4:]))
    assert [advantages(made)[i] for i in range(4)] == [[0.0] * LENGTHS[i] for i in range(4)]
    # three of four right: mean 3/4, deviation 1/2
    assert advantages(made)[7] == pytest.approx([-1.5] * LENGTHS[7], rel=1e-5)
    assert made[0].info["reward"].tolist() == pytest.approx([reward, 1.0, reward])  # what is logged stays


def test_samples_may_be_spread_in_any_order():
    orders = [[[0, 1, 2, 3], [4, 5, 6, 7]], [[7, 0, 3], [2, 5], [6, 1, 4]]]
    first, second = (
        advantages(maker("passk", "group_norm", passk_k=2).compute_advantages_and_returns(experiences(parts)))
        for parts in orders
    )
    assert first == second
    assert any(any(row) for row in first.values())


def test_the_kl_of_a_reward_is_upstreams():
    # 0.1 * 0.5 a token, from a token to the end of its response
    plain, with_kl = (
        advantages(maker("w_reinforce", "reinforce", kl).compute_advantages_and_returns(experiences([range(8)])))
        for kl in (0.0, 0.1)
    )
    for i, row in plain.items():
        assert row == [pytest.approx(0.1 if REWARDS[i] else -1.0)] * LENGTHS[i]
        assert with_kl[i] == pytest.approx([a - 0.05 * (LENGTHS[i] - t) for t, a in enumerate(row)], abs=1e-6)


def test_a_response_that_is_left_out_has_nothing_also_not_its_kl():
    found = advantages(maker("nsr", "reinforce", 0.1).compute_advantages_and_returns(experiences([range(8)])))
    assert [any(found[i]) for i in range(8)] == [not reward for reward in REWARDS]


def test_an_estimator_knows_the_mean_entropy_of_the_rollouts():
    # 0.5 everywhere: below the band of 0.6 to 0.7, within that of 0.4 to 0.6
    below, within = (
        advantages(maker("entrocraft", "group_norm", **band).compute_advantages_and_returns(experiences([range(8)])))
        for band in ({}, {"entrocraft_low": 0.4, "entrocraft_high": 0.6})
    )
    assert [set(below[i]) for i in range(8)] == [{0.0} if reward else {-1.0} for reward in REWARDS]
    assert within == advantages(maker("none", "group_norm").compute_advantages_and_returns(experiences([range(8)])))


def test_without_an_estimator_they_are_upstreams():
    made = maker("none", "group_norm").compute_advantages_and_returns(experiences([range(8)]))
    # group 1: mean 1/4, deviation 1/2
    assert advantages(made)[0] == pytest.approx([1.5, 1.5])


@pytest.mark.parametrize("method", ["qae", "passk", "psr", "nsr", "w_reinforce", "entrocraft"])
def test_rewards_that_are_not_of_two_values_end_the_run_with_one_line(method):
    shaped = [*REWARDS[:-1], 0.1]
    estimator = "group_norm" if method in ("qae", "passk", "entrocraft") else "reinforce"
    with pytest.raises(RunStopped, match=rf"--method {method} needs one reward .* got 0, 0\.1, 1$"):
        maker(method, estimator).compute_advantages_and_returns(experiences([range(8)], shaped))


def test_a_response_without_log_probs_of_the_engine_ends_the_run_with_one_line():
    samples = [SimpleNamespace(rollout_log_probs=torch.zeros(1, 2)), SimpleNamespace(rollout_log_probs=None)]
    check_rollout_log_probs(samples[:1], "dppo_anchor")
    with pytest.raises(RunStopped, match=r"--dppo_anchor rollout: .* rollout_log_probs, or give --dppo_anchor old"):
        check_rollout_log_probs(samples, "dppo_anchor")
