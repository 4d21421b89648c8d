"""Rewards that failed, requests that fail, and engines that die."""

from types import SimpleNamespace

import pytest
import ray
from vllm.v1.engine.exceptions import EngineDeadError

from openrlhf_cov.errors import RunStopped

SAMPLES = 2  # of each prompt, as make_generator has it


@pytest.fixture(scope="session")
def failed(response):
    """Function (prompt, label) -> what an engine answers when the reward of a response failed."""
    return lambda prompt, label: response(prompt, label, 0.0) | {"extra_logs": {"reward/error_frac": 1.0}}


def test_failed_rewards_stop_the_run_though_their_groups_would_be_filtered_out(make_generator, step, failed):
    failures = {0: {n: [failed(str(n - 1), "x")] * SAMPLES for n in range(1, 9)}}
    generator, _ = make_generator(failures=failures)
    with pytest.raises(RunStopped, match="the reward of 8 of 8 responses failed"):
        step(generator)


@pytest.mark.parametrize(("limit", "stops"), [(0.1, True), (0.125, False)])
def test_a_failed_reward_counts_in_the_whole_step_however_small_its_round(
    make_generator, step, response, failed, limit, stops
):
    # rounds of 4 and 5 groups, of 2 responses each; one response of the second fails, 1 of the 10 of its round and of
    # the 18 of the step. Then one of each round: 1 of 8, and 2 of 18 < 0.125
    torn = [response("8", "x", 1.0), failed("8", "x")]
    generator, _ = make_generator(failures={0: {9: torn}}, rollout_seeded=True)
    generator.args.reward_max_error_frac = 1 / 18
    assert step(generator)[1]["sampling/rounds"] == 2.0
    failures = {0: {n: [response("0", "x", 0.0), failed("0", "x")] for n in (1, 5)}}
    generator, _ = make_generator(failures=failures, rollout_seeded=True)
    generator.args.reward_max_error_frac = limit
    if not stops:
        step(generator)
        return
    with pytest.raises(RunStopped, match="the reward of 1 of 8 responses failed"):
        step(generator)


def test_failed_rewards_stop_an_evaluation(make_generator, failed):
    generator, _ = make_generator(failures={0: {1: [failed("0", "x")] * SAMPLES}})
    with pytest.raises(RunStopped, match="the reward of 2 of 6 responses failed"):
        generator.generate_eval_samples(max_len=100, max_new_tokens=10)


def test_a_failed_reward_in_a_first_round_that_tops_up_a_batch_is_one_of_the_batch(
    make_generator, step, response, failed
):
    # 4 * 1.75 = 7 groups are asked for and kept, 4 train and 3 wait; the next step asks for one, of whose 2 responses
    # one fails: 1 of the 8 of a batch
    generator, _ = make_generator(
        score=lambda p: [1.0, 0.0],
        failures={0: {8: [response("7", "x", 1.0), failed("7", "x")]}},
        sampling_oversample_max=1.75,
    )
    generator.pass_rate.add(1, 2)
    generator.args.reward_max_error_frac = 0.2
    assert [step(generator)[0] for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_failed_request_is_sent_whole_to_another_engine(make_generator, step):
    failures = {0: {1: ray.exceptions.RayTaskError("f", "trace", ValueError("out of blocks"))}}
    generator, engines = make_generator(engines=2, failures=failures, filtering=False)
    assert step(generator)[0] == [0, 1, 2, 3]
    assert engines[1].requests.count("0") == 1


def test_an_engine_that_dies_gets_no_more_requests(make_generator, step):
    died = ray.exceptions.RayActorError()
    generator, engines = make_generator(engines=2, failures={1: {1: died, 2: died}}, filtering=False)
    assert step(generator)[0] == [0, 1, 2, 3]
    assert step(generator)[0] == [4, 5, 6, 7]
    assert engines[1].requests == ["1", "3"]


@pytest.mark.parametrize(
    "death",
    [ray.exceptions.RayActorError(), ray.exceptions.RayTaskError("f", "t", EngineDeadError()).as_instanceof_cause()],
)
def test_a_dead_engine_is_neither_asked_nor_woken_again(make_generator, step, death):
    generator, engines = make_generator(engines=3, failures={1: {1: death}}, filtering=False)
    assert step(generator)[0] == [0, 1, 2, 3]
    step(generator)
    assert engines[1].requests == ["1"]
    assert generator.vllm_engines == generator.engines.alive == [engines[0], engines[2]]


def test_an_engine_that_died_idle_is_found_out(make_generator, step):
    generator, engines = make_generator(engines=2, filtering=False)
    engines[0].get_num_unfinished_requests = SimpleNamespace(remote=lambda: ray.exceptions.RayActorError())
    assert step(generator)[0] == [0, 1, 2, 3]
    assert engines[0].requests == []


def test_a_prompt_that_always_fails_stops_the_run(make_generator, step):
    error = ray.exceptions.RayTaskError("f", "trace", ValueError("no"))
    generator, _ = make_generator(failures={0: dict.fromkeys(range(1, 9), error)}, filtering=False)
    with pytest.raises(RunStopped, match=r"a request failed 3 times \(ValueError: no\); prompt \d: "):
        step(generator)


def test_no_engine_left_stops_the_run(make_generator, step):
    generator, _ = make_generator(
        failures={0: dict.fromkeys(range(1, 9), ray.exceptions.RayActorError())}, filtering=False
    )
    with pytest.raises(RunStopped, match="no vLLM engine answers"):
        step(generator)


@pytest.mark.parametrize("hung", [[0], [1]])
def test_an_engine_that_does_not_wake_up_gets_no_requests(make_generator, step, monkeypatch, hung):
    generator, engines = make_generator(engines=2, filtering=False)
    generator.args.vllm.enable_sleep = True
    generator.engines.no_progress_timeout = 30.0
    calls = []

    def end(engines, method, seconds):
        calls.append((len(engines), method, seconds))
        return hung if method == "wake_up" else []

    monkeypatch.setattr("openrlhf_cov.trainer.samples_generator.end_unanswered", end)
    assert step(generator)[0] == [0, 1, 2, 3]
    assert engines[hung[0]].requests == []
    assert calls == [(2, "wake_up", 30.0), (1, "sleep", 30.0)]
