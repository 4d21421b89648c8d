"""A run that is resumed goes on as if nothing had happened; what a rollout says about the end of the run."""

import random

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("episodes", [1, 3])
@pytest.mark.parametrize("seed", range(6))
def test_a_run_resumed_after_any_step_goes_on_as_if_nothing_had_happened(check_resuming, seed, episodes):
    chance = random.Random(seed)
    passing = [chance.random() < 0.6 for _ in range(40)]
    run = {"prompts": 40, "score": lambda p: [1.0, float(not passing[p])], "delays": seed, "episodes": episodes}
    run["rollout_seeded"] = True
    check_resuming(run)


@pytest.mark.parametrize("filtering", [False, True])
def test_the_state_of_a_rollout_does_not_change_with_the_next(make_sampler, step, filtering):
    # a checkpoint may be written while the next rollout is generated
    sampler, _ = make_sampler(rollout_seeded=True, filtering=filtering)
    rollout = sampler.next_batch(version=0)
    expected = [step(sampler) for _ in range(2)]
    resumed, _ = make_sampler(rollout_seeded=True, filtering=filtering)
    resumed.load_state_dict(rollout.sampler_state)
    assert [step(resumed) for _ in range(2)] == expected


@pytest.mark.parametrize("filtering", [False, True])
def test_a_run_resumed_at_the_end_of_an_episode_does_not_repeat_it(check_resuming, filtering):
    # 10 prompts, batches of 4, all pass: 4, 4, 2 and the next episode
    check_resuming(dict(prompts=10, episodes=2, filtering=filtering, score=lambda p: [1.0, 0.0]))


@pytest.mark.parametrize(("prompts", "episodes"), [(8, 1), (10, 1), (4, 2), (5, 2)])
@pytest.mark.parametrize("filtering", [False, True])
def test_a_run_is_over_after_its_last_step_and_not_before(make_sampler, filtering, prompts, episodes):
    # batches of 4 of which all pass; the end of the data is noticed with the last batch or one call later
    sampler, _ = make_sampler(prompts=prompts, episodes=episodes, filtering=filtering, score=lambda p: [1.0, 0.0])
    seen = []
    while (rollout := sampler.next_batch(version=sampler.step)) is not None:
        seen.append(rollout.is_last)
    assert seen == [False] * (len(seen) - 1) + [True]


@pytest.mark.parametrize("pass_rate", [None, (1, 2)])
@pytest.mark.parametrize(("prompts", "expected"), [(5, True), (6, False)])
def test_what_can_make_no_update_does_not(make_sampler, prompts_of, prompts, expected, pass_rate):
    # 2 groups of 2 make an update; what is beyond the first 4 is not drawn yet, or waits if 8 were asked for at once
    sampler, _ = make_sampler(prompts=prompts, score=lambda p: [1.0, 0.0], train_batch=4)
    if pass_rate:
        sampler.pass_rate.add(*pass_rate)
    rollout = sampler.next_batch(version=0)
    assert prompts_of(rollout.samples) == [0, 1, 2, 3]
    assert len(sampler.buffer) == (prompts - 4 if pass_rate else 0)
    assert rollout.is_last is expected
