"""Samples whose reward function abstains, from the rollout to the advantages."""

from types import SimpleNamespace

import pytest
import torch
from openrlhf.trainer.ppo_utils.experience import Experience

from openrlhf_cov.models.config import CovConfig
from openrlhf_cov.trainer.experience_maker import CovExperienceMaker

ABSTAINED = "reward/abstained_frac"
REWARDS = [1.0, 0.0, 0.7, 0.0, 1.0, 0.0, 1.0, 0.5]
"""Two groups of four; the samples 2 and 7 abstain, so that 1, 0, 0 and 1, 0, 1 are left."""
LEFT_OUT = [2, 7]
LENGTHS = [2, 1, 3, 2, 1, 2, 2, 3]


def maker(estimator, kl_coef=0.0, method="none", size=4, no_std_norm=False, **settings):
    made = object.__new__(CovExperienceMaker)
    reward = SimpleNamespace(
        overlong_buffer_len=None, overlong_penalty_factor=1.0, stop_properly_penalty_coef=None, clip_range=(-10, 10)
    )
    advantage = SimpleNamespace(estimator=estimator, gamma=1.0, lambd=1.0, no_std_norm=no_std_norm)
    made.args = SimpleNamespace(
        algo=SimpleNamespace(advantage=advantage), reward=reward, rollout=SimpleNamespace(n_samples_per_prompt=size)
    )
    made.strategy = SimpleNamespace(args=made.args)
    made.advantage_estimator = estimator
    made.kl_ctl = SimpleNamespace(value=kl_coef)
    made.config = CovConfig(method=method, **settings)
    return made


def experiences(parts, left_out=LEFT_OUT, values=None):
    """Return one experience per part, a list of sample numbers; every token has a KL of 0.5."""
    made = []
    for part in parts:
        lengths = torch.tensor([LENGTHS[i] for i in part])
        mask = torch.arange(int(lengths.max())) < lengths[:, None]
        rewards = torch.tensor([REWARDS[i] for i in part])
        made.append(
            Experience(
                index=list(range(len(part))) if len(parts) == 1 else list(part),
                sequences=torch.zeros(len(part), mask.shape[1] + 1, dtype=torch.long),
                action_mask=mask.long(),
                rewards=rewards,
                values=None if values is None else values * mask.float(),
                kl=0.5 * mask.float(),
                info={
                    "reward": rewards.clone(),
                    "entropy": [torch.full(row.shape, 0.5) for row in mask],
                    ABSTAINED: torch.tensor([float(i in left_out) for i in part]),
                },
            )
        )
    return made


def rows(found):
    """Return {sample: advantages of its tokens}."""
    return {
        i: row[mask.bool()].tolist()
        for experience in found
        for i, row, mask in zip(experience.index, experience.advantages, experience.action_mask, strict=True)
    }


PARTS = [[7, 0, 3], [2, 5], [6, 1, 4]]
"""All samples, spread over experiences in any order."""


@pytest.mark.parametrize("kl_coef", [0.0, 0.1])
@pytest.mark.parametrize(
    ("estimator", "of_groups"),
    [
        # rewards 1, 0, 0: mean 1/3, sample deviation sqrt(1/3) = 0.577350
        ("group_norm", {0: 1.154701, 1: -0.577350, 3: -0.577350, 4: 0.577350, 5: -1.154701, 6: 0.577350}),
        ("rloo", {0: 1.0, 1: -0.5, 3: -0.5, 4: 0.5, 5: -1.0, 6: 0.5}),  # less the mean of the other two
        ("dr_grpo", {0: 2 / 3, 1: -1 / 3, 3: -1 / 3, 4: 1 / 3, 5: -2 / 3, 6: 1 / 3}),
        ("flash_reinforce", {0: 0.5, 1: -0.5, 3: -0.5, 4: 0.5, 5: -0.5, 6: 0.5}),  # the mean of all six is 1/2
    ],
)
def test_the_statistics_of_a_group_are_those_of_its_graded_samples(estimator, of_groups, kl_coef):
    found = maker(estimator, kl_coef).compute_advantages_and_returns(experiences(PARTS))
    for sample, row in rows(found).items():
        if sample in LEFT_OUT:
            assert row == [0.0] * LENGTHS[sample]
            continue
        # The KL penalty, 0.5 a token, adds up from a token to the end of its response.
        expected = [of_groups[sample] - kl_coef * 0.5 * (LENGTHS[sample] - place) for place in range(len(row))]
        assert row == pytest.approx(expected, abs=1e-5)
    assert [int(mask.sum()) for mask in (each.action_mask for each in found)] == [7, 5, 4]  # as it was
    assert torch.cat([each.info["reward"] for each in found]).tolist() == pytest.approx(
        [REWARDS[i] for part in PARTS for i in part]
    )


@pytest.mark.parametrize("estimator", ["reinforce", "reinforce_baseline"])
@pytest.mark.parametrize("no_std_norm", [False, True])
def test_whitening_is_over_the_tokens_of_graded_samples(estimator, no_std_norm):
    found = maker(estimator, 0.1, no_std_norm=no_std_norm).compute_advantages_and_returns(experiences(PARTS))
    # Upstream on the graded samples alone, groups of three
    graded = [0, 1, 3, 4, 5, 6]
    alone = experiences([graded], left_out=[])
    expected = rows(maker(estimator, 0.1, size=3, no_std_norm=no_std_norm).compute_advantages_and_returns(alone))
    for place, sample in enumerate(graded):
        assert rows(found)[sample] == pytest.approx(expected[place], abs=1e-5)
    assert not any(any(rows(found)[sample]) for sample in LEFT_OUT)


def test_a_critic_learns_nothing_from_an_abstention():
    found = maker("gae", 0.1).compute_advantages_and_returns(experiences([range(8)], values=0.3))
    (experience,) = found
    assert torch.equal(experience.returns[LEFT_OUT], experience.values[LEFT_OUT])
    assert not experience.advantages[LEFT_OUT].any()
    assert experience.advantages[0].any()


@pytest.mark.parametrize("estimator", ["group_norm", "rloo", "reinforce_baseline", "reinforce", "dr_grpo", "gae"])
@pytest.mark.parametrize("left_out", [[0, 1, 2, 3], [0, 1, 2], list(range(8))])
def test_a_group_with_one_graded_sample_or_none_has_finite_advantages(estimator, left_out):
    found = maker(estimator, 0.1).compute_advantages_and_returns(experiences([range(8)], left_out, values=0.3))
    (experience,) = found
    assert experience.advantages.isfinite().all()
    assert experience.returns.isfinite().all()
    assert not experience.advantages[left_out].any()
    if estimator == "group_norm" and left_out == [0, 1, 2]:
        assert (
            not maker(estimator)
            .compute_advantages_and_returns(experiences([range(8)], left_out))[0]
            .advantages[3]
            .any()
        )


@pytest.mark.parametrize(
    ("method", "estimator", "settings"),
    [("qae", "group_norm", {}), ("passk", "group_norm", {"passk_k": 2}), ("w_reinforce", "reinforce", {})],
)
def test_a_method_estimates_from_graded_samples(method, estimator, settings):
    made = maker(estimator, 0.1, method=method, **settings)
    found = rows(made.compute_advantages_and_returns(experiences(PARTS)))
    graded = [0, 1, 3, 4, 5, 6]
    alone = maker(estimator, 0.1, method=method, size=3, **settings)
    expected = rows(alone.compute_advantages_and_returns(experiences([graded], left_out=[])))
    for place, sample in enumerate(graded):
        assert found[sample] == pytest.approx(expected[place], abs=1e-6)
    assert not any(any(found[sample]) for sample in LEFT_OUT)


def test_a_group_smaller_than_a_set_of_passk_has_no_advantages():
    found = maker("group_norm", method="passk", passk_k=3).compute_advantages_and_returns(
        experiences([range(8)], left_out=[1, 2, 7])
    )
    assert not found[0].advantages[:4].any()
