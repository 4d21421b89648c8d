"""Dynamic sampling over engines that answer in any order; Ray is replaced by a clock."""

import math
import random
from types import SimpleNamespace

import pytest
import ray
import torch

from openrlhf_cov.trainer.samples_generator import Rollout

SAMPLES = 2  # of each prompt, as make_generator has it


def test_every_batch_is_full_and_in_the_order_of_the_data(make_generator, step):
    generator, _ = make_generator()
    taken = [step(generator)[0] for _ in range(5)]
    assert taken == [[1, 3, 5, 7], [9, 11, 13, 15], [17, 19, 21, 23], [25, 27, 29, 31], [33, 35, 37, 39]]


@pytest.mark.parametrize("engines", [1, 2, 5])
@pytest.mark.parametrize("delays", range(4))
def test_what_is_accepted_does_not_depend_on_timing(make_generator, step, delays, engines):
    generator, _ = make_generator(delays=delays, engines=engines, score=lambda p: [float(p % 3 > 0), float(p % 5 > 1)])
    # kept are the prompts whose two scores differ: p % 3 > 0 and p % 5 > 1 disagree
    kept = [p for p in range(100) if (p % 3 > 0) != (p % 5 > 1)]
    assert [step(generator)[0] for _ in range(4)] == [kept[0:4], kept[4:8], kept[8:12], kept[12:16]]


@pytest.mark.parametrize("seed", range(6))
def test_what_is_asked_for_depends_on_neither_timing_nor_engines_nor_deaths(make_generator, outcomes, seed):
    chance = random.Random(seed)
    passing = [chance.random() < 0.4 for _ in range(80)]
    run = {"prompts": 80, "episodes": 2, "batch": 5, "score": lambda p: [1.0, float(not passing[p])]}
    expected = outcomes(make_generator(**run)[0])
    failures = {
        0: {3: ray.exceptions.RayTaskError("f", "trace", ValueError("no"))},
        1: {n: ray.exceptions.RayActorError() for n in range(2, 9)},
    }
    for engines, delays, broken in ((2, 5, None), (4, 9, None), (3, 4, failures)):
        assert outcomes(make_generator(**run, engines=engines, delays=delays, failures=broken)[0]) == expected


def test_a_known_pass_rate_fills_the_batch_in_one_round(make_generator, step):
    generator, _ = make_generator(batch=16, sampling_oversample_max=3.0)
    rounds = [step(generator)[1]["sampling/rounds"] for _ in range(6)]
    assert rounds[0] > 1
    assert rounds[2:] == [1.0] * 4


def test_groups_beyond_the_batch_wait_one_step_at_most(make_generator, step):
    # the first round of 8 keeps all; the batch is 4 of them once the buffer may hold the rest
    passing = {p: [1.0, 0.0] for p in range(1000)}
    generator, engines = make_generator(score=passing.get, sampling_max_staleness=0)
    generator.pass_rate.add(1, 2)  # it expects that half of the groups pass and asks for 4 * 2
    taken, metrics, _ = step(generator)
    assert taken == [0, 1, 2, 3]
    assert metrics["sampling/buffer_groups"] == 4.0
    taken, metrics, _ = step(generator)
    assert taken[0] == 8  # 4 to 7 were older than allowed
    # those four groups of 2 x 3 tokens are wasted, the new ones all pass
    new = len(engines[0].requests) - 8
    assert metrics["sampling/wasted_token_frac"] == pytest.approx(4 * 6 / (new * 6 + 4 * 6))


def test_metrics_of_a_first_batch(make_generator, step):
    generator, _ = make_generator()
    _, metrics, _ = step(generator)
    # 4 prompts keep 1 and 3; then the rate is 1/2, 2 are missing and 2 * 2 = 4 are asked for, of which 5 and 7 are
    # kept; after 4, which is not, the 3 under way make 1.5 < 2 and an eighth is asked for, a round of its own
    assert metrics["sampling/rounds"] == 3.0
    assert metrics["sampling/kept_frac"] == 4 / 9
    assert metrics["sampling/all_right_frac"] == 3 / 9  # prompts 0, 4 and 8
    assert metrics["sampling/all_wrong_frac"] == 2 / 9  # prompts 2 and 6
    assert metrics["sampling/oversample"] == 9 / 4
    assert metrics["sampling/wasted_token_frac"] == 5 / 9


def test_what_is_lacking_is_asked_for_while_the_round_is_under_way(make_generator, step):
    generator, (engine,) = make_generator(score=lambda p: [1.0, float(p < 2)])
    generator.pass_rate.add(1, 2)
    delays = iter(range(1, 100))  # the first request takes 1 s, the second 2 s, ...
    engine.delays = SimpleNamespace(random=lambda: next(delays))
    asked = []
    engine.generate_responses.remote = lambda **request: asked.append(engine.clock.now) or engine._generate(**request)
    step(generator)
    # 8 at once; prompt 0 fails after 1 s: 7 * 1/2 < 4, one more is asked for; after prompt 1 again; 2 to 5 are kept
    assert asked == [0.0] * 8 + [1.0, 2.0]


@pytest.mark.parametrize("seed", range(12))
def test_no_more_is_under_way_than_the_ceiling_allows(make_generator, step, seed):
    chance = random.Random(seed)
    batch, ceiling, share = chance.randint(1, 12), chance.uniform(1, 3), chance.uniform(0.2, 0.9)
    passing = [chance.random() < share for _ in range(400)]
    generator, (engine,) = make_generator(
        score=lambda p: [1.0, float(not passing[p])], prompts=400, batch=batch, delays=seed,
        sampling_oversample_max=ceiling, sampling_max_rounds=1000,
    )  # fmt: skip
    judge, send, judged, under_way = generator._judge, engine.generate_responses.remote, [], []

    def counted(samples):
        judged.append(judge(samples))
        return judged[-1]

    def checked(**request):
        missing = batch - sum(judged)
        under_way.append((len(engine.requests) + 1 - len(judged), max(batch, math.ceil(missing * ceiling))))
        return send(**request)

    generator._judge, engine.generate_responses.remote = counted, checked
    assert step(generator)[0] == [p for p in range(400) if passing[p]][:batch]
    assert all(asked <= allowed for asked, allowed in under_way)


def test_seeds_depend_on_the_prompt_alone(make_generator, step):
    seeds = {}
    for engines, delays in ((1, 0), (3, 1)):
        generator, handles = make_generator(engines=engines, delays=delays, rollout_seeded=True)
        for _ in range(3):
            step(generator)
        for handle in handles:
            for prompt, given in zip(handle.requests, handle.seeds, strict=True):
                assert seeds.setdefault(prompt, given) == given
    flat = [seed for given in seeds.values() for seed in given]
    assert len(set(flat)) == len(flat) == SAMPLES * len(seeds)
    assert all(0 <= seed < 2**63 for seed in flat)


def test_without_the_flag_nothing_is_seeded(make_generator, step):
    generator, (engine,) = make_generator()
    step(generator)
    assert set(map(str, engine.seeds)) == {"None"}


def test_evaluation_takes_all_prompts_in_order_and_leaves_the_training_data_alone(make_generator, step, prompts_of):
    generator, _ = make_generator(engines=2)
    for _ in range(2):
        samples = generator.generate_eval_samples(max_len=100, max_new_tokens=10)
        assert prompts_of(samples) == [0, 1, 2]
    assert generator.prompts_drawn == 0
    assert step(generator)[0] == [1, 3, 5, 7]


def test_a_rollout_keeps_its_metrics_when_it_travels():
    import pickle

    rollout = pickle.loads(pickle.dumps(Rollout([torch.tensor(1)], {"sampling/rounds": 1.0})))
    assert (len(rollout), rollout.metrics) == (1, {"sampling/rounds": 1.0})
