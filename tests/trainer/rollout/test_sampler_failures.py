"""What stops a step: rewards and engines that fail, and rounds or data that run out. What trains then."""

import pytest
import ray
from played_engines import SAMPLES, answered, failed, one_step
from played_ray import SILENT
from vllm.v1.engine.exceptions import EngineDeadError

from openrlhf_cov.errors import RunStopped


def test_failed_rewards_stop_the_run_though_their_groups_would_be_filtered_out(make_sampler):
    failures = {0: {n: [failed(str(n - 1), "x")] * SAMPLES for n in range(1, 9)}}
    sampler, _ = make_sampler(failures=failures)
    with pytest.raises(RunStopped, match="the reward of 8 of 8 responses failed"):
        one_step(sampler)


@pytest.mark.parametrize(("limit", "stops"), [(0.1, True), (0.125, False)])
def test_a_failed_reward_counts_in_the_whole_step_however_small_its_round(make_sampler, limit, stops):
    # rounds of 4 and 5 groups, of 2 responses each; one response of the second fails, 1 of the 10 of its round and of
    # the 18 of the step. Then one of each round: 1 of 8, and 2 of 18 < 0.125
    torn = [answered("8", "x", 1.0), failed("8", "x")]
    sampler, _ = make_sampler(failures={0: {9: torn}}, rollout_seeded=True)
    sampler.args.reward_max_error_frac = 1 / 18
    assert one_step(sampler)[1]["sampling/rounds"] == 2.0
    failures = {0: {n: [answered("0", "x", 0.0), failed("0", "x")] for n in (1, 5)}}
    sampler, _ = make_sampler(failures=failures, rollout_seeded=True)
    sampler.args.reward_max_error_frac = limit
    if not stops:
        one_step(sampler)
        return
    with pytest.raises(RunStopped, match="the reward of 1 of 8 responses failed"):
        one_step(sampler)


@pytest.mark.parametrize(
    "death",
    [ray.exceptions.RayActorError(), ray.exceptions.RayTaskError("f", "t", EngineDeadError()).as_instanceof_cause()],
)
def test_a_dead_engine_is_neither_asked_nor_woken_again(make_sampler, death):
    sampler, engines = make_sampler(engines=3, failures={1: {1: death}}, filtering=False)
    assert one_step(sampler)[0] == [0, 1, 2, 3]
    one_step(sampler)
    assert engines[1].requests == ["1"]
    assert sampler.engines.alive == [engines[0], engines[2]]


@pytest.mark.parametrize("hung", [0, 1])
def test_an_engine_that_does_not_wake_up_gets_no_requests(make_sampler, played_ray, hung):
    sampler, engines = make_sampler(engines=2, filtering=False)
    sampler.args.vllm.enable_sleep = True
    sampler.engines.no_progress_timeout = 30.0
    engines[hung].wake_up.remote = lambda: SILENT
    assert one_step(sampler)[0] == [0, 1, 2, 3]
    assert engines[hung].requests == []
    assert played_ray.killed == [engines[hung]]
    assert played_ray.timeouts == [30.0, 30.0]  # to wake up, and to sleep


# Where the rounds of a step or the data run out.


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_data_that_never_passes_stops_the_run_with_the_counts(make_sampler, value):
    sampler, engines = make_sampler(score=lambda p: [value] * SAMPLES, sampling_max_rounds=3)
    with pytest.raises(RunStopped, match=r"--sampling_max_rounds 3 .* 0 groups kept, .*too easy or too hard"):
        one_step(sampler)
    # 4, then twice the ceiling of 2 x 4
    assert len(engines[0].requests) == 4 + 8 + 8


def test_stop_ends_the_run_instead(make_sampler):
    sampler, _ = make_sampler(
        score=lambda p: [1.0, float(p != 5)], sampling_max_rounds=2, sampling_on_exhausted="stop"
    )
    with pytest.raises(RunStopped, match=r"1 of 4 groups \(12 prompts tried in 2 rounds, 1 groups kept"):
        one_step(sampler)


@pytest.mark.parametrize(("ranks", "train_batch"), [(2, 4), (1, 4), (2, 2)])
def test_fallback_makes_whole_updates_on_every_rank(make_sampler, ranks, train_batch):
    # 3 groups of 2 samples are kept; an update has 4 samples, or 2 ranks score chunks of 2: 4 samples train
    sampler, _ = make_sampler(
        score=lambda p: [1.0, float(p > 2)], sampling_max_rounds=1, ranks=ranks, train_batch=train_batch
    )
    assert one_step(sampler)[0] == [0, 1]
    assert len(sampler.buffer) == 1  # the third waits


def test_what_was_kept_at_the_end_of_the_data_trains_in_the_next_episode(make_sampler):
    sampler, _ = make_sampler(prompts=6, episodes=2)
    taken, metrics = one_step(sampler)
    assert taken == [1, 3, 5, 1]  # 1, 3, 5 of the first episode
    assert sampler.order.episode == 1
    assert metrics["sampling/staleness_mean"] == 0.0


def test_a_batch_that_spans_two_passes_is_bounded_and_described_as_one(make_sampler):
    # one of 10 prompts passes, the batch is 2: the first pass keeps prompt 9 in rounds of 2, 4 and 4, the second has
    # none that passes anew; at most 4 rounds in all: 2 missing at first, and 1 round of 2 is left for the second pass
    sampler, _ = make_sampler(
        score=lambda p: [1.0, float(p != 9)], prompts=10, batch=2, episodes=2, sampling_max_rounds=4, train_batch=2
    )
    taken, metrics = one_step(sampler)
    assert taken == [9]
    assert sampler.order.drawn == 10 + 2
    assert metrics["sampling/rounds"] == 4.0
    assert metrics["sampling/oversample"] == 12 / 2


def test_data_without_one_good_group_says_so(make_sampler):
    sampler, _ = make_sampler(prompts=6, score=lambda p: [1.0, 1.0])
    with pytest.raises(RunStopped, match="the data ended with 0 of 4 groups"):
        one_step(sampler)
