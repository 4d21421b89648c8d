"""From rewards to advantages: estimators by hand, methods, abstentions, penalties, and the numbers to be logged."""

import math
import statistics
from dataclasses import replace

import pytest
import torch
from scored_samples import flags, sample, scores

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.trainer.advantage_settings import AdvantageSettings
from openrlhf_cov.trainer.advantages import estimate_advantages, penalised_rewards
from openrlhf_cov.trainer.metrics.step_metrics import rollout_statistics, sample_means
from openrlhf_cov.trainer.records import StepSettings

LENGTHS = [2, 1, 3, 2, 1, 2, 2, 3]
# Two groups of four.
REWARDS = [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0]


def estimated(samples, args, kl_coef=0.0, kl=0.5, values=None, **settings):
    """Return the batch of these samples; every action token has the same KL and value."""
    if kl_coef:
        args.algo.kl.init_coef = kl_coef
    config = CovConfig(**settings)
    found = scores(samples, kl=kl, values=values)
    return estimate_advantages(samples, found, AdvantageSettings.of(args), StepSettings(0, config, kl_coef), args)


def eight(rewards=REWARDS, left_out=()):
    """Return the samples of two groups; those left out abstained."""
    rows = enumerate(zip(rewards, LENGTHS, strict=True))
    return [sample(i, reward, length, prompt=2, abstained=i in left_out) for i, (reward, length) in rows]


def rows(batch, name="advantages"):
    """Return the values of the action tokens of each sample."""
    return [getattr(each, name)[each.action_mask].tolist() for each in batch.samples]


def constant(values):
    """Return the rows in which every token of a response has its value."""
    return [pytest.approx([value] * length, abs=1e-5) for value, length in zip(values, LENGTHS, strict=True)]


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        # Group 1: mean 1/4, sample deviation 1/2. Group 2: mean 3/4, sample deviation 1/2.
        ("group_norm", [1.5, -0.5, -0.5, -0.5, 0.5, 0.5, 0.5, -1.5]),
        ("dr_grpo", [0.75, -0.25, -0.25, -0.25, 0.25, 0.25, 0.25, -0.75]),
        # Less the mean of the other three: 0, 1/3; 2/3, 1.
        ("rloo", [1.0, -1 / 3, -1 / 3, -1 / 3, 1 / 3, 1 / 3, 1 / 3, -1.0]),
        # Less 4/8, the mean of all samples; not whitened.
        ("flash_reinforce", [0.5, -0.5, -0.5, -0.5, 0.5, 0.5, 0.5, -0.5]),
    ],
)
def test_an_estimator_compares_the_responses_to_a_prompt(estimator, expected):
    batch = estimated(eight(), flags(estimator))
    assert rows(batch) == constant(expected)
    assert rows(batch, "returns") == constant(expected)


@pytest.mark.parametrize(
    ("no_std_norm", "expected"),
    [
        (True, [0.5625, -0.4375]),
        # Variance 7/16 * 9/16 = 0.24609375, its root 0.49607837.
        (False, [0.5625 / 0.49607837, -0.4375 / 0.49607837]),
    ],
)
def test_whitening_weighs_every_token_of_the_step(no_std_norm, expected):
    # 7 of 16 tokens belong to a correct response: their mean reward is 0.4375.
    batch = estimated(eight(), flags("reinforce", algo__advantage__no_std_norm=no_std_norm))
    of_correct, of_others = expected
    assert rows(batch) == constant([of_correct if reward else of_others for reward in REWARDS])
    assert rows(batch, "returns") == constant(REWARDS)  # returns are not whitened


def test_generalised_advantages_and_returns():
    # gamma 0.9, lambda 0.5, values 0.3, reward 1 at the last of two tokens:
    # delta_2 = 1 - 0.3 = 0.7; delta_1 = 0.9 * 0.3 - 0.3 = -0.03; A_1 = -0.03 + 0.45 * 0.7 = 0.285
    args = flags("gae", group=1, algo__advantage__gamma=0.9, algo__advantage__lambd=0.5)
    args.algo.advantage.no_std_norm = True
    batch = estimated([sample(0, 1.0, 2, prompt=2)], args, values=0.3)
    assert rows(batch, "returns") == [pytest.approx([0.585, 1.0])]
    assert rows(batch) == [pytest.approx([0.285 - 0.4925, 0.7 - 0.4925])]  # less their mean


@pytest.mark.parametrize("reward", [-0.3, -0.1, 0.1, 0.7])
def test_equal_rewards_of_a_group_are_no_advantage(reward):
    # The mean of four times -0.1 is off by rounding, and so is the deviation: their ratio was 0.8.
    batch = estimated(eight([reward] * 4 + REWARDS[4:]), flags("group_norm"))
    assert rows(batch)[:4] == [[0.0] * length for length in LENGTHS[:4]]
    # Three of four are correct: mean 3/4, deviation 1/2.
    assert rows(batch)[7] == pytest.approx([-1.5] * 3, rel=1e-5)
    assert batch.numbers["reward"].tolist() == pytest.approx([reward] * 4 + REWARDS[4:])


@pytest.mark.parametrize(
    ("estimator", "per_token"),
    # log-ratio 0.5 at every token; k3 = exp(-0.5) - 1 + 0.5
    [("k1", 0.5), ("k2", 0.125), ("k3", math.exp(-0.5) - 0.5)],
)
def test_the_kl_penalty_is_a_part_of_the_reward(estimator, per_token):
    batch = estimated(eight(), flags("dr_grpo", algo__kl__estimator=estimator), kl_coef=0.1)
    plain = rows(estimated(eight(), flags("dr_grpo")))
    for found, without in zip(rows(batch), plain, strict=True):
        length = len(without)
        # The penalties from a token to the end of the response.
        expected = [value - 0.1 * per_token * (length - place) for place, value in enumerate(without)]
        assert found == pytest.approx(expected, abs=1e-6)
    assert batch.numbers["kl"].tolist() == pytest.approx([per_token] * 8)
    assert batch.numbers["logprobs_diff"].tolist() == pytest.approx([0.5] * 8)
    returns = [value[0] - 0.1 * per_token * len(value) for value in plain]
    assert batch.numbers["return"].tolist() == pytest.approx(returns, abs=1e-6)


def test_with_a_kl_loss_the_reward_has_no_penalty_and_ranks_get_the_reference():
    batch = estimated(eight(), flags("dr_grpo", algo__kl__use_loss=True), kl_coef=0.1)
    assert rows(batch) == rows(estimated(eight(), flags("dr_grpo")))
    assert not batch.numbers["kl"].any()
    assert not batch.numbers["logprobs_diff"].any()
    assert all(each.base_log_probs is not None for each in batch.samples)
    penalised = estimated(eight(), flags("dr_grpo"), kl_coef=0.1)
    assert all(each.base_log_probs is None for each in penalised.samples)


def test_a_reward_model_gives_the_rewards_that_samples_lack():
    samples = [sample(i, None, 1) for i in range(2)]
    found = scores(samples)
    found = [type(each)(**{**vars(each), "reward": float(i)}) for i, each in enumerate(found)]
    args = flags("dr_grpo", group=2)
    batch = estimate_advantages(samples, found, AdvantageSettings.of(args), StepSettings(0, CovConfig(), 0.0), args)
    assert rows(batch) == [[-0.5], [0.5]]
    assert batch.numbers["reward"].tolist() == [0.0, 1.0]


def test_a_rank_gets_all_of_a_sample():
    samples = [
        sample(5, 1.0, 2, prompt=2, rollout_log_probs=torch.tensor([0.0, -1.0, -2.0]), image_inputs={"pixels": 1}),
        sample(6, 0.0, 1, score=None),
    ]
    args = flags("gae", group=1)
    found = scores(samples, values=0.25)
    first, second = estimate_advantages(
        samples, found, AdvantageSettings.of(args), StepSettings(0, CovConfig(), 0.0), args
    ).samples
    assert (first.sample_id, first.score, first.abstained) == (5, 1.0, False)
    assert first.tokens is samples[0].tokens
    assert first.action_mask.tolist() == [False, True, True]
    assert first.log_probs is found[0].log_probs
    assert first.entropy is found[0].entropy
    assert first.values is found[0].values
    assert first.rollout_log_probs.tolist() == [0.0, -1.0, -2.0]
    assert first.image_inputs == {"pixels": 1}
    assert math.isnan(second.score)
    assert second.rollout_log_probs is None
    for each in (first, second):
        assert len(each.advantages) == len(each.returns) == len(each.action_mask)


def test_a_step_of_many_samples_is_cut_into_chunks_that_change_nothing():
    # 70 samples: more than one chunk, whose widths differ.
    many = [sample(i, float(i % 3), 1 + i % 7, prompt=1 + i % 4) for i in range(70)]
    found = rows(estimated(many, flags("reinforce_baseline", group=2), kl_coef=0.1))
    # In the reverse order a sample has other neighbours in its chunk.
    again = rows(estimated(many[::-1], flags("reinforce_baseline", group=2), kl_coef=0.1))
    for one, other in zip(found, again[::-1], strict=True):
        assert one == pytest.approx(other, abs=1e-6)


# Methods with an estimator of their own.


def test_a_method_estimates_in_the_place_of_upstreams_estimator():
    # Group 1 has 1 of 4 correct: quantile 0, deviation 1/2; group 2 has 3 of 4: quantile 1. Its advantages are not
    # clipped as rewards are.
    batch = estimated(eight(), flags("group_norm", reward__clip_range=(-1.0, 1.0)), method="qae")
    assert rows(batch) == constant([2.0, 0, 0, 0, 0, 0, 0, -2.0])
    assert rows(batch, "returns") == rows(batch)
    assert batch.numbers["reward"].tolist() == REWARDS
    assert batch.numbers["return"].tolist() == pytest.approx([2.0, 0, 0, 0, 0, 0, 0, -2.0], rel=1e-5)


def test_advantages_of_a_method_are_neither_whitened_nor_discounted():
    batch = estimated(eight(), flags("reinforce", algo__advantage__gamma=0.5), method="w_reinforce")
    assert rows(batch) == constant([0.1 if reward else -1.0 for reward in REWARDS])


def test_the_kl_penalty_joins_the_advantages_of_a_method():
    with_kl = rows(estimated(eight(), flags("reinforce"), kl_coef=0.1, method="w_reinforce"))
    for reward, length, row in zip(REWARDS, LENGTHS, with_kl, strict=True):
        first = 0.1 if reward else -1.0
        assert row == pytest.approx([first - 0.05 * (length - place) for place in range(length)], abs=1e-6)


def test_a_method_knows_the_mean_entropy_of_the_rollouts():
    # 0.5 everywhere: below the band of 0.6 to 0.7, within that of 0.4 to 0.6.
    below = rows(estimated(eight(), flags(), method="entrocraft"))
    within = rows(estimated(eight(), flags(), method="entrocraft", entrocraft_low=0.4, entrocraft_high=0.6))
    assert [set(row) for row in below] == [{0.0} if reward else {-1.0} for reward in REWARDS]
    assert within == rows(estimated(eight(), flags()))


def test_the_entropy_of_the_rollouts_is_that_of_graded_samples():
    # 0.5, within the band, without the abstained sample of entropy 9.
    samples = eight(left_out=[7])
    found = scores(samples)
    found[7] = replace(found[7], entropy=found[7].entropy * 18)
    config = CovConfig(method="entrocraft", entrocraft_low=0.4, entrocraft_high=0.6)
    args = flags()
    batch = estimate_advantages(samples, found, AdvantageSettings.of(args), StepSettings(0, config, 0.0), args)
    assert rows(batch)[:4] == rows(estimated(eight(), args))[:4]


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        # A turn may have 64 tokens, and loses up to 1 of its reward within the last 16.
        ([40], 1.0),
        ([40, 40], 1.0),
        ([10, 10], 1.0),
        ([10, 56], 0.5),
        ([64], 0.0),
    ],
)
def test_the_longest_turn_of_a_conversation_is_penalised(turns, expected):
    args = flags("reinforce", group=1, rollout__max_new_tokens=64, reward__overlong_buffer_len=16)
    mask = [entry for turn in turns for entry in [*[False] * 30, *[True] * turn]]
    samples = [sample(0, 1.0, mask)]
    assert penalised_rewards(samples, scores(samples), args).tolist() == [expected]


@pytest.mark.parametrize("method", ["qae", "passk", "psr", "nsr", "w_reinforce", "entrocraft", "maxrl", "ucpo"])
def test_rewards_that_are_not_of_two_values_end_the_run_with_one_line(method):
    shaped = [*REWARDS[:-1], 0.1]
    estimator = "group_norm" if method in ("qae", "passk", "entrocraft", "maxrl", "ucpo") else "reinforce"
    with pytest.raises(RunStopped, match=rf"--method {method}: all correct .* got 0, 0\.1, 1; "):
        estimated(eight(shaped), flags(estimator), method=method)


# Abstentions. The samples 2 and 7 are left out: their rewards are what the other ones would never be.

LEFT_OUT = (2, 7)
GRADED = [0, 1, 3, 4, 5, 6]
OF_ABSTENTION = [1.0, 0.0, 77.0, 0.0, 1.0, 0.0, 1.0, -55.0]


def abstaining(left_out=LEFT_OUT):
    return eight(OF_ABSTENTION if left_out == LEFT_OUT else REWARDS, left_out)


def graded_alone():
    """Return the graded samples as groups of three."""
    return [abstaining()[i] for i in GRADED]


@pytest.mark.parametrize("kl_coef", [0.0, 0.1])
@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        # Rewards 1, 0, 0: mean 1/3, sample deviation sqrt(1/3) = 0.577350.
        ("group_norm", {0: 1.154701, 1: -0.577350, 3: -0.577350, 4: 0.577350, 5: -1.154701, 6: 0.577350}),
        ("rloo", {0: 1.0, 1: -0.5, 3: -0.5, 4: 0.5, 5: -1.0, 6: 0.5}),  # less the mean of the other two
        ("dr_grpo", {0: 2 / 3, 1: -1 / 3, 3: -1 / 3, 4: 1 / 3, 5: -2 / 3, 6: 1 / 3}),
        ("flash_reinforce", {0: 0.5, 1: -0.5, 3: -0.5, 4: 0.5, 5: -0.5, 6: 0.5}),  # less the mean of the six
    ],
)
def test_a_sample_that_abstains_is_no_part_of_its_group(estimator, expected, kl_coef):
    batch = estimated(abstaining(), flags(estimator), kl_coef=kl_coef)
    for i, row in enumerate(rows(batch)):
        length = LENGTHS[i]
        if i in LEFT_OUT:
            assert row == [0.0] * length
        else:
            kl = [kl_coef * 0.5 * (length - place) for place in range(length)]
            assert row == pytest.approx([expected[i] - penalty for penalty in kl], abs=1e-5)
    # 1, 0, 0 and 1, 0, 1 have the sample deviation sqrt(1/3).
    assert batch.numbers["group_reward_std"].tolist() == pytest.approx([math.sqrt(1 / 3)] * 8, abs=1e-6)


@pytest.mark.parametrize("estimator", ["reinforce", "reinforce_baseline", "gae"])
@pytest.mark.parametrize("no_std_norm", [False, True])
def test_whitening_is_over_the_tokens_of_graded_samples(estimator, no_std_norm):
    settings = {"algo__advantage__no_std_norm": no_std_norm}
    found = rows(estimated(abstaining(), flags(estimator, **settings), kl_coef=0.1, values=0.3))
    expected = rows(estimated(graded_alone(), flags(estimator, group=3, **settings), kl_coef=0.1, values=0.3))
    assert [found[i] for i in GRADED] == [pytest.approx(row, abs=1e-6) for row in expected]
    assert not any(any(found[i]) for i in LEFT_OUT)


@pytest.mark.parametrize("estimator", ["group_norm", "reinforce"])
def test_an_abstention_has_no_return_also_not_its_kl(estimator):
    batch = estimated(abstaining(), flags(estimator), kl_coef=0.1)
    for i in LEFT_OUT:
        assert batch.numbers["return"][i] == 0
        assert not batch.samples[i].returns.any()
    graded = batch.numbers["return"][GRADED].tolist()
    assert sample_means(abstaining(), batch.numbers)["return"] == pytest.approx(sum(graded) / 6)


def test_a_critic_learns_nothing_from_an_abstention():
    batch = estimated(abstaining(), flags("gae"), kl_coef=0.1, values=0.3)
    for i in LEFT_OUT:
        assert torch.equal(batch.samples[i].returns, batch.samples[i].values)
        assert not batch.samples[i].advantages.any()
    assert batch.samples[0].advantages.any()
    assert not torch.equal(batch.samples[0].returns, batch.samples[0].values)


@pytest.mark.parametrize(
    ("penalty", "expected"),
    [
        # Truncated samples 0 and 2 are set to -0.5; the six graded ones -0.5, 0, 0, 1, 0, 1 have the mean 1.5/6.
        ({"reward__stop_properly_penalty_coef": -0.5}, [-0.5, 0.0, 0.25, 0.0, 1.0, 0.0, 1.0, 0.25]),
        # Responses may have 2 tokens without a penalty, and lose 1 for the third: here those that abstained, 2 and 7.
        ({"reward__overlong_buffer_len": 1, "rollout__max_new_tokens": 3}, [1.0, 0.0, 0.5, 0.0, 1.0, 0.0, 1.0, 0.5]),
    ],
)
def test_a_penalty_does_not_act_on_an_abstention(penalty, expected):
    samples = [replace(each, truncated=place in (0, 2)) for place, each in enumerate(abstaining())]
    rewards = estimated(samples, flags("dr_grpo", **penalty)).numbers["reward"]
    assert rewards.tolist() == pytest.approx(expected)
    # The logged mean is that of the graded samples, and so is the deviation.
    graded = [expected[i] for i in GRADED]
    assert sample_means(samples, {"reward": rewards})["reward"] == pytest.approx(statistics.mean(graded))
    found = rollout_statistics(samples, rewards)
    assert found["rollout/reward_mean"] == pytest.approx(statistics.mean(graded))
    assert found["rollout/reward_std"] == pytest.approx(statistics.stdev(graded))


def test_the_mean_of_a_metric_is_over_the_samples_that_have_it():
    # Two of eight rows are programs, which pass 0.6 and 1.0 of their tests: 0.8, and not 1.6/8 = 0.2.
    programs = {1: {"reward/code_test_share": 0.6}, 4: {"reward/code_test_share": 1.0}}
    samples = [replace(each, metrics=programs.get(place, {})) for place, each in enumerate(eight())]
    assert sample_means(samples, {})["reward/code_test_share"] == pytest.approx(0.8)


ALL = ["group_norm", "rloo", "reinforce_baseline", "reinforce", "dr_grpo", "flash_reinforce", "gae"]


@pytest.mark.parametrize("estimator", ALL)
@pytest.mark.parametrize("left_out", [(0, 1, 2, 3), (0, 1, 2), tuple(range(8))])
def test_a_group_with_one_graded_sample_or_none_has_finite_advantages(estimator, left_out):
    batch = estimated(abstaining(left_out), flags(estimator), kl_coef=0.1, values=0.3)
    for name in ("advantages", "returns"):
        assert all(getattr(each, name).isfinite().all() for each in batch.samples)
    assert not any(batch.samples[i].advantages.any() for i in left_out)
    assert all(values.isfinite().all() for values in batch.numbers.values())


@pytest.mark.parametrize(
    ("method", "estimator", "settings"),
    [
        ("qae", "group_norm", {}),
        ("maxrl", "group_norm", {}),
        ("lite_ppo", "group_norm", {}),
        ("ucpo", "group_norm", {}),
        ("passk", "group_norm", {"passk_k": 2}),
        ("w_reinforce", "reinforce", {}),
    ],
)
def test_a_method_estimates_from_graded_samples(method, estimator, settings):
    found = rows(estimated(abstaining(), flags(estimator), kl_coef=0.1, method=method, **settings))
    alone = estimated(graded_alone(), flags(estimator, group=3), kl_coef=0.1, method=method, **settings)
    assert [found[i] for i in GRADED] == [pytest.approx(row, abs=1e-6) for row in rows(alone)]
    assert not any(any(found[i]) for i in LEFT_OUT)
