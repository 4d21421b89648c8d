"""Rollouts are whole updates on every rank, at the end of the data and after a restart as well."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from played_engines import SAMPLES, all_steps, one_step, prompts_of

from openrlhf_cov.cluster.sizing.updates import update_unit, usable_groups
from openrlhf_cov.errors import RunStopped
from openrlhf_cov.trainer.rollout.prompts import scheduled_updates


def shares(samples: list, micro: int, ranks: int) -> list[list[int]]:
    """Sizes of the chunks that upstream gives each rank: ``split_rollout_samples``, ``async_run_method_batch``."""
    chunks = [len(samples[first : first + micro]) for first in range(0, len(samples), micro)]
    assert len(chunks) >= ranks, "upstream refuses fewer chunks than ranks"
    each = -(-len(chunks) // ranks)
    return [chunks[rank * each : (rank + 1) * each] for rank in range(ranks)]


@st.composite
def runs(draw) -> dict:
    """Settings whose full rollouts are whole updates, as a run is refused otherwise."""
    ranks, micro, dynamic = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.booleans())
    run = {"ranks": ranks, "micro": micro, "dynamic_batch": dynamic, "filtering": False}
    run |= {
        "prompts": draw(st.integers(1, 50)),
        "episodes": draw(st.integers(1, 3)),
        "delays": draw(st.integers(0, 9)),
    }
    run["train_batch"] = draw(st.integers(1, 6)) * ranks
    run["rollouts"], run["ahead"] = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    return run


@pytest.mark.slow
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(run=runs())
def test_every_rollout_is_whole_updates_and_no_sample_is_lost_or_trained_twice(make_sampler, run):
    run = dict(run)
    rollouts, ahead = run.pop("rollouts"), run.pop("ahead")
    sampler, _ = make_sampler(**run)
    args, unit = sampler.args, update_unit(sampler.args)
    smallest = next(count for count in range(1, unit + 1) if usable_groups(count, args))
    args.rollout.batch_size = rollouts * smallest
    args.rollout.vllm_generate_batch_size = ahead * args.rollout.batch_size
    data = list(range(run["prompts"])) * run["episodes"]
    trained = []
    try:
        while (rollout := sampler.next_batch(version=sampler.step)) is not None:
            samples = rollout.samples
            assert rollout.pass_rate is None
            assert len(samples) % run["train_batch"] == 0
            assert len(samples) <= args.rollout.batch_size * SAMPLES  # the steps of upstream's setup_dynamic_batch
            if not run["dynamic_batch"]:
                assert len({(len(share), sum(share)) for share in shares(samples, run["micro"], run["ranks"])}) == 1
            trained += prompts_of(samples)
    except RunStopped:
        assert not trained
        assert len(data) < smallest
        return
    left = [int(group.samples[0].prompt) for group in sampler.buffer.groups]
    assert trained + left == data
    assert len(left) < smallest
    assert sampler.order.drawn == len(data)
    assert sampler.is_over
    # The learning rate is scheduled over the updates that are made, also if an episode ends with a short rollout.
    made = len(trained) * SAMPLES // run["train_batch"]
    scheduled = scheduled_updates(args, run["prompts"])
    # A rank of a model may need more groups than an update does. Then some that would make an update are left.
    waiting = len(left) * SAMPLES // run["train_batch"]
    assert made <= scheduled <= made + waiting


@pytest.mark.parametrize("episodes", [1, 2])
def test_a_run_whose_data_make_no_update_is_stopped(make_sampler, episodes):
    sampler, _ = make_sampler(prompts=1, episodes=episodes, train_batch=6, filtering=False)
    with pytest.raises(RunStopped, match=rf"with {episodes} of 4 groups: a whole update on every rank takes 6"):
        all_steps(sampler)


@pytest.mark.parametrize("ahead", [4, 8])
@pytest.mark.parametrize("prompts", [7, 8, 11])
def test_a_run_resumed_after_any_step_trains_on_the_same_groups(check_resuming, prompts, ahead):
    check_resuming(dict(prompts=prompts, episodes=3, ranks=2, filtering=False, generated=ahead))


def test_a_run_that_is_made_longer_goes_on_with_the_next_episode(make_sampler):
    first, _ = make_sampler(prompts=6, filtering=False)
    assert [taken for taken, _ in all_steps(first)] == [[0, 1, 2, 3], [4, 5]]
    second, _ = make_sampler(prompts=6, filtering=False, episodes=2)
    second.load_state_dict(first.state_dict())
    assert [taken for taken, _ in all_steps(second)] == [[0, 1, 2, 3], [4, 5]]
    assert second.order.drawn == 12


# A run that is resumed goes on as if nothing had happened.


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
def test_the_state_of_a_rollout_does_not_change_with_the_next(make_sampler, filtering):
    # a checkpoint may be written while the next rollout is generated
    sampler, _ = make_sampler(rollout_seeded=True, filtering=filtering)
    rollout = sampler.next_batch(version=0)
    expected = [one_step(sampler) for _ in range(2)]
    resumed, _ = make_sampler(rollout_seeded=True, filtering=filtering)
    resumed.load_state_dict(rollout.sampler_state)
    assert [one_step(resumed) for _ in range(2)] == expected


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
def test_what_can_make_no_update_does_not(make_sampler, prompts, expected, pass_rate):
    # 2 groups of 2 make an update; what is beyond the first 4 is not drawn yet, or waits if 8 were asked for at once
    sampler, _ = make_sampler(prompts=prompts, score=lambda p: [1.0, 0.0], train_batch=4)
    if pass_rate:
        sampler.pass_rate.add(*pass_rate)
    rollout = sampler.next_batch(version=0)
    assert prompts_of(rollout.samples) == [0, 1, 2, 3]
    assert len(sampler.buffer) == (prompts - 4 if pass_rate else 0)
    assert rollout.is_last is expected
