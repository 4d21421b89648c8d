"""Dynamic sampling over engines that answer in any order; Ray is replaced by a clock."""

import itertools
import math
import random
from types import SimpleNamespace

import pytest
import ray
from played_engines import SAMPLES, all_steps, one_step, prompts_of
from played_ray import Now
from vllm import SamplingParams

from openrlhf_cov.errors import RunStopped


def test_every_batch_is_full_and_in_the_order_of_the_data(make_sampler):
    sampler, _ = make_sampler()
    taken = [one_step(sampler)[0] for _ in range(5)]
    assert taken == [[1, 3, 5, 7], [9, 11, 13, 15], [17, 19, 21, 23], [25, 27, 29, 31], [33, 35, 37, 39]]


@pytest.mark.parametrize("filtering", [False, True])
def test_responses_are_samples_of_the_policy_and_of_nothing_narrower(make_sampler, filtering):
    # a token that is forbidden somewhere keeps the probability that it has: no sample shows it, nothing pushes it down
    sampler, (engine,) = make_sampler(filtering=filtering)
    one_step(sampler)
    unchanged = SamplingParams(max_tokens=10, skip_special_tokens=False)
    narrowing = ("temperature", "top_p", "top_k", "min_p", "min_tokens", "ignore_eos", "bad_words", "logit_bias")
    narrowing += ("allowed_token_ids", "repetition_penalty", "presence_penalty", "frequency_penalty", "stop_token_ids")
    for request in engine.asked:
        for name in narrowing:
            assert getattr(request["sampling_params"], name) == getattr(unchanged, name), name


@pytest.mark.parametrize("engines", [1, 2, 5])
@pytest.mark.parametrize("delays", range(4))
def test_what_is_accepted_does_not_depend_on_timing(make_sampler, delays, engines):
    sampler, _ = make_sampler(delays=delays, engines=engines, score=lambda p: [float(p % 3 > 0), float(p % 5 > 1)])
    # kept are the prompts whose two scores differ: p % 3 > 0 and p % 5 > 1 disagree
    kept = [p for p in range(100) if (p % 3 > 0) != (p % 5 > 1)]
    assert [one_step(sampler)[0] for _ in range(4)] == [kept[0:4], kept[4:8], kept[8:12], kept[12:16]]


@pytest.mark.parametrize("seeded", [False, True])
@pytest.mark.parametrize("filtering", [False, True])
@pytest.mark.parametrize("delays", range(4))
def test_a_rollout_shows_its_groups_in_its_order(make_sampler, filtering, seeded, delays):
    sampler, _ = make_sampler(filtering=filtering, rollout_seeded=seeded, delays=delays)
    for step in range(4):
        shown = []
        waiting = len(sampler.buffer)
        rollout = sampler.next_batch(step, lambda groups, shown=shown: shown.append([*groups]))
        for groups in shown:
            samples = [each for group in groups for each in group.samples]
            assert all(mine is theirs for mine, theirs in zip(samples, rollout.samples, strict=False))
        # One call for each new group. Those beyond the batch of 4 wait for the next rollout and are not shown.
        new = 4 + len(sampler.buffer) - waiting
        assert [len(groups) for groups in shown] == [min(waiting + number, 4) for number in range(1, new + 1)]


@pytest.mark.parametrize("seeded", [False, True])
@pytest.mark.parametrize("filtering", [False, True])
def test_a_rollout_shows_a_group_before_the_next_one_is_finished(make_sampler, filtering, seeded):
    sampler, (engine,) = make_sampler(filtering=filtering, rollout_seeded=seeded)
    # Every response takes longer than the one before it.
    engine.delays = SimpleNamespace(random=itertools.count().__next__)
    get, finished, shown = engine.clock.get, [], []
    engine.clock.get = lambda reference: finished.append(reference) or get(reference)
    rollout = sampler.next_batch(0, lambda groups: shown.append(len(finished)))
    prompts = prompts_of(rollout.samples)
    assert prompts == ([1, 3, 5, 7] if filtering else [0, 1, 2, 3])
    assert shown[:4] == [prompt + 1 for prompt in prompts]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_what_is_asked_for_with_seeds_depends_on_neither_timing_nor_engines_nor_deaths(make_sampler, seed):
    chance = random.Random(seed)
    passing = [chance.random() < 0.4 for _ in range(80)]
    run = {"prompts": 80, "episodes": 2, "batch": 5, "score": lambda p: [1.0, float(not passing[p])]}
    run["rollout_seeded"] = True
    expected = all_steps(make_sampler(**run)[0])
    failures = {
        0: {3: ray.exceptions.RayTaskError("f", "trace", ValueError("no"))},
        1: {n: ray.exceptions.RayActorError() for n in range(2, 9)},
    }
    for engines, delays, broken in ((2, 5, None), (4, 9, None), (3, 4, failures)):
        assert all_steps(make_sampler(**run, engines=engines, delays=delays, failures=broken)[0]) == expected


def test_groups_beyond_the_batch_wait_one_step_at_most(make_sampler):
    # the first round of 8 keeps all; the batch is 4 of them once the buffer may hold the rest
    passing = {p: [1.0, 0.0] for p in range(1000)}
    sampler, engines = make_sampler(score=passing.get, sampling_max_staleness=0)
    sampler.pass_rate.add(1, 2)  # it expects that half of the groups pass and asks for 4 * 2
    taken, metrics = one_step(sampler)
    assert taken == [0, 1, 2, 3]
    assert metrics["sampling/buffer_groups"] == 4.0
    taken, metrics = one_step(sampler)
    assert taken[0] == 8  # 4 to 7 were older than allowed
    # those four groups of 2 x 3 tokens are wasted, the new ones all pass
    new = len(engines[0].requests) - 8
    assert metrics["sampling/wasted_token_frac"] == pytest.approx(4 * 6 / (new * 6 + 4 * 6))


@pytest.mark.parametrize("filtering", [False, True])
def test_after_its_last_rollout_a_run_is_over_as_at_the_end_of_its_data(make_sampler, filtering):
    sampler, (engine,) = make_sampler(rollout_limit=2, episodes=3, filtering=filtering)
    assert [sampler.next_batch(version=step).is_last for step in range(2)] == [False, True]
    asked = len(engine.requests)
    assert sampler.next_batch(version=2) is None
    assert len(engine.requests) == asked
    resumed, _ = make_sampler(rollout_limit=2, episodes=3, filtering=filtering)
    resumed.load_state_dict(sampler.state_dict())
    assert resumed.next_batch(version=2) is None


def test_metrics_of_a_first_batch(make_sampler):
    sampler, _ = make_sampler(rollout_seeded=True)
    _, metrics = one_step(sampler)
    # 4 prompts are asked for. After 0 and 1 the rate is 1/2: the 2 under way make 1 < 3, 3 * 2 - 2 = 4 more are asked
    # for; after 2 it is 1/3: 5/3 < 3, a ninth. That round keeps 1 and 3, the 5 others are the second; it keeps 5 and 7
    assert metrics["sampling/rounds"] == 2.0
    assert metrics["sampling/kept_frac"] == 4 / 9
    assert metrics["sampling/all_right_frac"] == 3 / 9  # prompts 0, 4 and 8
    assert metrics["sampling/all_wrong_frac"] == 2 / 9  # prompts 2 and 6
    assert metrics["sampling/oversample"] == 9 / 4
    assert metrics["sampling/wasted_token_frac"] == 5 / 9


@pytest.mark.parametrize("seed", range(12))
def test_no_more_is_under_way_than_the_ceiling_allows(make_sampler, seed):
    chance = random.Random(seed)
    batch, ceiling, share = chance.randint(1, 12), chance.uniform(1, 3), chance.uniform(0.2, 0.9)
    passing = [chance.random() < share for _ in range(400)]
    sampler, (engine,) = make_sampler(
        score=lambda p: [1.0, float(not passing[p])], prompts=400, batch=batch, delays=seed,
        sampling_oversample_max=ceiling, sampling_max_rounds=1000,
    )  # fmt: skip
    send, get, judged, under_way = engine.generate_responses.remote, engine.clock.get, [], []

    def judging(reference):
        responses = get(reference)
        judged.append(passing[int(responses[0]["prompt"])])
        return responses

    def checked(**request):
        missing = batch - sum(judged)
        under_way.append((len(engine.requests) + 1 - len(judged), max(batch, math.ceil(missing * ceiling))))
        return send(**request)

    engine.clock.get, engine.generate_responses.remote = judging, checked
    assert one_step(sampler)[0] == [p for p in range(400) if passing[p]][:batch]
    assert all(asked <= allowed for asked, allowed in under_way)


def test_each_engine_gets_its_prompts_of_a_rollout_in_one_message(make_sampler):
    sampler, engines = make_sampler(engines=2, filtering=False, batch=6)
    sizes = []

    def counted(engine):
        begin = engine.begin_groups.remote

        def begin_groups(requests, **common):
            sizes.append(len(requests))
            return begin(requests, **common)

        return Now(begin_groups)

    for engine in engines:
        engine.begin_groups = counted(engine)
    assert one_step(sampler)[0] == [0, 1, 2, 3, 4, 5]
    assert sizes == [3, 3]


def test_seeds_depend_on_the_prompt_alone(make_sampler):
    seeds = {}
    for engines, delays in ((1, 0), (3, 1)):
        sampler, handles = make_sampler(engines=engines, delays=delays, rollout_seeded=True)
        for _ in range(3):
            one_step(sampler)
        for handle in handles:
            for prompt, given in zip(handle.requests, handle.seeds, strict=True):
                assert seeds.setdefault(prompt, given) == given
    flat = [seed for given in seeds.values() for seed in given]
    assert len(set(flat)) == len(flat) == SAMPLES * len(seeds)
    assert all(0 <= seed < 2**63 for seed in flat)


def test_no_group_is_left_out_because_it_is_long(make_sampler):
    # all pass and the batch of 4 is full after 1 s; the 5th of the 8 that were asked for takes 50 s and trains next
    sampler, (engine,) = make_sampler(score=lambda p: [1.0, 0.0])
    sampler.pass_rate.add(1, 2)
    delays = iter([1.0, 1.0, 1.0, 1.0, 50.0])
    engine.delays.random = lambda: next(delays, 1.0)
    assert [one_step(sampler)[0] for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_groups_without_scores_stop_the_run_with_one_line(make_sampler):
    sampler, _ = make_sampler(score=lambda p: [None, None])
    with pytest.raises(RunStopped, match=r"--algo\.dynamic_filtering_enable: a response came without a score"):
        one_step(sampler)
    sampler, _ = make_sampler(score=lambda p: [None, None], filtering=False)
    assert one_step(sampler)[0] == [0, 1, 2, 3]  # a reward model may score them later


@pytest.mark.parametrize(("queue", "versions", "dropped"), [(0, [0, 1], True), (1, [0, 0], True), (2, [0, 0], False)])
def test_staleness_is_counted_in_versions_of_the_weights(make_sampler, queue, versions, dropped):
    # 8 are asked for and kept, 4 wait. With --sampling_max_staleness 0 they may be as old as the engines may: in step
    # 1 they are one version old, in step 2 two.
    sampler, _ = make_sampler(score=lambda p: [1.0, 0.0], sampling_max_staleness=0, queue=queue)
    sampler.pass_rate.add(1, 2)
    first, second = (sampler.next_batch(version) for version in versions)
    assert prompts_of(first.samples) == [0, 1, 2, 3]
    if queue == 0:
        assert prompts_of(second.samples) == [8, 9, 10, 11]
        return
    assert prompts_of(second.samples) == [4, 5, 6, 7]
    assert second.metrics["sampling/staleness_mean"] == 1.0
    state = sampler.state_dict()
    sampler, _ = make_sampler(score=lambda p: [1.0, 0.0], sampling_max_staleness=0, queue=queue)
    sampler.load_state_dict(state | {"groups": first.sampler_state["groups"]})
    assert (prompts_of(sampler.next_batch(version=1).samples) == [4, 5, 6, 7]) is not dropped
