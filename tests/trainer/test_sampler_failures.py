"""Rewards that failed, requests that fail, and engines that die."""

import pytest
import ray
from played_ray import SILENT
from vllm.v1.engine.exceptions import EngineDeadError

from openrlhf_cov.errors import RunStopped

SAMPLES = 2  # of each prompt, as make_sampler has it


@pytest.fixture(scope="session")
def failed(response):
    """Function (prompt, label) -> what an engine answers when the reward of a response failed."""
    return lambda prompt, label: response(prompt, label, 0.0) | {"extra_logs": {"reward/error_frac": 1.0}}


def test_failed_rewards_stop_the_run_though_their_groups_would_be_filtered_out(make_sampler, step, failed):
    failures = {0: {n: [failed(str(n - 1), "x")] * SAMPLES for n in range(1, 9)}}
    sampler, _ = make_sampler(failures=failures)
    with pytest.raises(RunStopped, match="the reward of 8 of 8 responses failed"):
        step(sampler)


@pytest.mark.parametrize(("limit", "stops"), [(0.1, True), (0.125, False)])
def test_a_failed_reward_counts_in_the_whole_step_however_small_its_round(
    make_sampler, step, response, failed, limit, stops
):
    # rounds of 4 and 5 groups, of 2 responses each; one response of the second fails, 1 of the 10 of its round and of
    # the 18 of the step. Then one of each round: 1 of 8, and 2 of 18 < 0.125
    torn = [response("8", "x", 1.0), failed("8", "x")]
    sampler, _ = make_sampler(failures={0: {9: torn}}, rollout_seeded=True)
    sampler.args.reward_max_error_frac = 1 / 18
    assert step(sampler)[1]["sampling/rounds"] == 2.0
    failures = {0: {n: [response("0", "x", 0.0), failed("0", "x")] for n in (1, 5)}}
    sampler, _ = make_sampler(failures=failures, rollout_seeded=True)
    sampler.args.reward_max_error_frac = limit
    if not stops:
        step(sampler)
        return
    with pytest.raises(RunStopped, match="the reward of 1 of 8 responses failed"):
        step(sampler)


@pytest.mark.parametrize(
    "death",
    [ray.exceptions.RayActorError(), ray.exceptions.RayTaskError("f", "t", EngineDeadError()).as_instanceof_cause()],
)
def test_a_dead_engine_is_neither_asked_nor_woken_again(make_sampler, step, death):
    sampler, engines = make_sampler(engines=3, failures={1: {1: death}}, filtering=False)
    assert step(sampler)[0] == [0, 1, 2, 3]
    step(sampler)
    assert engines[1].requests == ["1"]
    assert sampler.engines.alive == [engines[0], engines[2]]


@pytest.mark.parametrize("hung", [0, 1])
def test_an_engine_that_does_not_wake_up_gets_no_requests(make_sampler, step, played_ray, hung):
    sampler, engines = make_sampler(engines=2, filtering=False)
    sampler.args.vllm.enable_sleep = True
    sampler.engines.no_progress_timeout = 30.0
    engines[hung].wake_up.remote = lambda: SILENT
    assert step(sampler)[0] == [0, 1, 2, 3]
    assert engines[hung].requests == []
    assert played_ray.killed == [engines[hung]]
    assert played_ray.timeouts == [30.0, 30.0]  # to wake up, and to sleep
