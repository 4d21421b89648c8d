"""Dynamic sampling over engines that answer in any order, fail and die; Ray is replaced by a clock."""

import math
import random
from types import SimpleNamespace

import pytest
import ray
import torch
from vllm.v1.engine.exceptions import EngineDeadError

from openrlhf_cov.config import SamplingConfig
from openrlhf_cov.errors import RunStopped
from openrlhf_cov.trainer import generation
from openrlhf_cov.trainer.checkpoints import CheckpointedLoader
from openrlhf_cov.trainer.samples_generator import CovSamplesGenerator, Rollout

SAMPLES = 2
TOKENS = 3


class Loader:
    """Prompts "0", "1", … one at a time, from the start or from where a state left off; as torchdata's loader, which
    begins another pass if the state was taken when the end had been noticed."""

    def __init__(self, count: int) -> None:
        self.count, self.place, self.resumed, self.ended = count, 0, False, False

    def __len__(self) -> int:
        return self.count

    def __iter__(self):
        if not self.resumed or self.ended:
            self.place = 0
        self.resumed = self.ended = False
        while self.place < self.count:
            self.place += 1
            yield ["default"], [str(self.place - 1)], [f"label {self.place - 1}"], [None]
        self.ended = True

    def state_dict(self) -> dict:
        return {"place": self.place, "ended": self.ended}

    def load_state_dict(self, state: dict) -> None:
        self.place, self.ended, self.resumed = state["place"], state["ended"], True


class Clock:
    """``ray.wait`` and ``ray.get`` over requests that take the time their engine says."""

    exceptions = ray.exceptions

    def __init__(self) -> None:
        self.now, self.times, self.results, self.sent = 0.0, {}, {}, 0

    def send(self, delay: float, result) -> int:
        self.sent += 1
        self.times[self.sent] = self.now + delay
        self.results[self.sent] = result
        return self.sent

    def wait(self, references, num_returns, timeout):
        if timeout:
            self.now = max(self.now, min(self.times[reference] for reference in references))
        ready = [reference for reference in references if self.times[reference] <= self.now][:num_returns]
        return ready, [reference for reference in references if reference not in ready]

    def get(self, reference):
        if isinstance(reference, list):  # of the engines' numbers of unfinished requests
            return [self.get(item) for item in reference]
        if isinstance(reference, Exception):
            raise reference
        if reference == 0:
            return 0
        result = self.results.pop(reference) if isinstance(reference, int) else reference
        if isinstance(result, Exception):
            raise result
        return result


class Engine:
    """Answers prompt ``p`` with the scores of ``score(p)``, after a delay; may fail at its n-th request."""

    def __init__(self, clock: Clock, score, delays: random.Random, failures=None) -> None:
        self.clock, self.score, self.delays, self.failures = clock, score, delays, failures or {}
        self.requests, self.seeds = [], []
        self.generate_responses = SimpleNamespace(remote=self._generate)
        self.get_num_unfinished_requests = SimpleNamespace(remote=lambda: 0)

    def _generate(self, prompt, label, num_samples, seeds=None, **request) -> int:
        self.requests.append(prompt)
        self.seeds.append(seeds)
        result = self.failures.get(len(self.requests)) or [
            response(prompt, label, score) for score in self.score(int(prompt))
        ]
        return self.clock.send(self.delays.random(), result)


def response(prompt: str, label: str, score: float) -> dict:
    return {
        "prompt": prompt,
        "label": label,
        "observation_tokens": [1, 2, *[3] * TOKENS],
        "action_ranges": [(2, 2 + TOKENS)],
        "rollout_log_probs": None,
        "reward": score,
        "scores": score,
    }


def half_pass(prompt: int) -> list[float]:
    """Odd prompts have one right answer of two; of the even ones every second is all right."""
    return [1.0, 0.0] if prompt % 2 else [float(prompt % 4 == 0)] * SAMPLES


@pytest.fixture
def build(monkeypatch):
    def make(score=half_pass, prompts=1000, batch=4, engines=1, delays=0, failures=None, filtering=True, **settings):
        episodes, ranks = settings.pop("episodes", 1), settings.pop("ranks", 1)
        train_batch, generated = settings.pop("train_batch", SAMPLES), settings.pop("generated", None)
        clock = Clock()
        monkeypatch.setattr(generation, "ray", clock)
        monkeypatch.setattr("openrlhf.trainer.ppo_utils.samples_generator.ray", clock)
        chance = random.Random(delays)
        handles = [Engine(clock, score, chance, (failures or {}).get(place)) for place in range(engines)]
        args = SimpleNamespace(
            **vars(SamplingConfig(**settings)),
            rollout=SimpleNamespace(
                batch_size=batch, n_samples_per_prompt=SAMPLES, vllm_generate_batch_size=generated, micro_batch_size=2
            ),
            algo=SimpleNamespace(
                dynamic_filtering_enable=filtering,
                dynamic_filtering_range=(0.0, 1.0),
                advantage=SimpleNamespace(is_correction_level="off"),
            ),
            train=SimpleNamespace(seed=1, num_episodes=episodes, batch_size=train_batch),
            ds=SimpleNamespace(ring_attn_size=1, tensor_parallel_size=1),
            reward_max_error_frac=0.05,
            actor=SimpleNamespace(num_nodes=1, num_gpus_per_node=ranks),
            vllm=SimpleNamespace(enable_sleep=False),
        )
        generator = CovSamplesGenerator(SimpleNamespace(args=args), Loader(prompts), Loader(3), None, handles)
        return generator, handles

    return make


def prompts_of(samples) -> list[int]:
    """The prompt of each group, after a check that no group is torn."""
    names = [int(sample.prompts[0]) for sample in samples]
    assert names[::SAMPLES] == names[1::SAMPLES]
    return names[::SAMPLES]


def step(generator) -> tuple[list[int], dict, bool]:
    samples, _, _, exhausted = generator.generate_samples(max_len=100, max_new_tokens=10)
    return prompts_of(samples), getattr(samples, "metrics", {}), exhausted


def test_every_batch_is_full_and_in_the_order_of_the_data(build):
    generator, _ = build()
    taken = [step(generator)[0] for _ in range(5)]
    assert taken == [[1, 3, 5, 7], [9, 11, 13, 15], [17, 19, 21, 23], [25, 27, 29, 31], [33, 35, 37, 39]]


@pytest.mark.parametrize("engines", [1, 2, 5])
@pytest.mark.parametrize("delays", range(4))
def test_what_is_accepted_does_not_depend_on_timing(build, delays, engines):
    generator, _ = build(delays=delays, engines=engines, score=lambda p: [float(p % 3 > 0), float(p % 5 > 1)])
    # kept are the prompts whose two scores differ: p % 3 > 0 and p % 5 > 1 disagree
    kept = [p for p in range(100) if (p % 3 > 0) != (p % 5 > 1)]
    assert [step(generator)[0] for _ in range(4)] == [kept[0:4], kept[4:8], kept[8:12], kept[12:16]]


def test_a_known_pass_rate_fills_the_batch_in_one_round(build):
    generator, _ = build(batch=16, sampling_oversample_max=3.0)
    rounds = [step(generator)[1]["sampling/rounds"] for _ in range(6)]
    assert rounds[0] > 1
    assert rounds[2:] == [1.0] * 4


def test_groups_beyond_the_batch_wait_one_step_at_most(build):
    # the first round of 8 keeps all; the batch is 4 of them once the buffer may hold the rest
    passing = {p: [1.0, 0.0] for p in range(1000)}
    generator, engines = build(score=passing.get, sampling_max_staleness=0)
    generator.pass_rate.add(1, 2)  # it expects that half of the groups pass and asks for 4 * 2
    taken, metrics, _ = step(generator)
    assert taken == [0, 1, 2, 3]
    assert metrics["sampling/buffer_groups"] == 4.0
    taken, metrics, _ = step(generator)
    assert taken[0] == 8  # 4 to 7 were older than allowed
    # those four groups of 2 x 3 tokens are wasted, the new ones all pass
    new = len(engines[0].requests) - 8
    assert metrics["sampling/wasted_token_frac"] == pytest.approx(4 * 6 / (new * 6 + 4 * 6))


def test_metrics_of_a_first_batch(build):
    generator, _ = build()
    _, metrics, _ = step(generator)
    # 4 prompts keep 1 and 3; then the rate is 1/2, 2 are missing and 2 * 2 = 4 are asked for, of which 5 and 7 are
    # kept; after 4, which is not, the 3 under way make 1.5 < 2 and an eighth is asked for, a round of its own
    assert metrics["sampling/rounds"] == 3.0
    assert metrics["sampling/kept_frac"] == 4 / 9
    assert metrics["sampling/all_right_frac"] == 3 / 9  # prompts 0, 4 and 8
    assert metrics["sampling/all_wrong_frac"] == 2 / 9  # prompts 2 and 6
    assert metrics["sampling/oversample"] == 9 / 4
    assert metrics["sampling/wasted_token_frac"] == 5 / 9


def test_what_is_lacking_is_asked_for_while_the_round_is_under_way(build):
    generator, (engine,) = build(score=lambda p: [1.0, float(p < 2)])
    generator.pass_rate.add(1, 2)
    delays = iter(range(1, 100))  # the first request takes 1 s, the second 2 s, ...
    engine.delays = SimpleNamespace(random=lambda: next(delays))
    asked = []
    engine.generate_responses.remote = lambda **request: asked.append(engine.clock.now) or engine._generate(**request)
    step(generator)
    # 8 at once; prompt 0 fails after 1 s: 7 * 1/2 < 4, one more is asked for; after prompt 1 again; 2 to 5 are kept
    assert asked == [0.0] * 8 + [1.0, 2.0]


@pytest.mark.parametrize("seed", range(12))
def test_no_more_is_under_way_than_the_ceiling_allows(build, seed):
    chance = random.Random(seed)
    batch, ceiling, share = chance.randint(1, 12), chance.uniform(1, 3), chance.uniform(0.2, 0.9)
    passing = [chance.random() < share for _ in range(400)]
    generator, (engine,) = build(
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


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_data_that_never_passes_stops_the_run_with_the_counts(build, value):
    generator, engines = build(score=lambda p: [value] * SAMPLES, sampling_max_rounds=3)
    with pytest.raises(RunStopped, match=r"--sampling_max_rounds 3 .* 0 groups kept, .*too easy or too hard"):
        step(generator)
    # 4, then twice the ceiling of 2 x 4
    assert len(engines[0].requests) == 4 + 8 + 8


def test_fallback_trains_on_what_was_kept(build):
    generator, _ = build(score=lambda p: [1.0, float(p != 5)], sampling_max_rounds=2)
    taken, metrics, _ = step(generator)
    assert taken == [5]
    assert metrics["sampling/groups"] == 1.0


def test_stop_ends_the_run_instead(build):
    generator, _ = build(score=lambda p: [1.0, float(p != 5)], sampling_max_rounds=2, sampling_on_exhausted="stop")
    with pytest.raises(RunStopped, match=r"1 of 4 groups \(12 prompts tried in 2 rounds, 1 groups kept, 11 all right"):
        step(generator)


@pytest.mark.parametrize(("ranks", "train_batch"), [(2, 4), (1, 4), (2, 2)])
def test_fallback_makes_whole_updates_on_every_rank(build, ranks, train_batch):
    # 3 groups of 2 samples are kept; an update has 4 samples, or 2 ranks score chunks of 2: 4 samples train
    generator, _ = build(
        score=lambda p: [1.0, float(p > 2)], sampling_max_rounds=1, ranks=ranks, train_batch=train_batch
    )
    assert step(generator)[0] == [0, 1]
    assert len(generator.buffer) == 1  # the third waits


def test_fallback_that_makes_no_update_stops_the_run(build):
    generator, _ = build(score=lambda p: [1.0, float(p != 2)], sampling_max_rounds=1, train_batch=8)
    with pytest.raises(RunStopped, match="1 of 4 groups"):
        step(generator)


def test_what_a_last_batch_leaves_over_trains_too(build):
    generator, _ = build(prompts=7, score=lambda p: [1.0, 0.0])
    generator.pass_rate.add(1, 2)  # it asks for 8 at once
    assert step(generator)[0::2] == ([0, 1, 2, 3], False)
    assert step(generator)[0::2] == ([4, 5, 6], True)


def failed(prompt: str, label: str) -> dict:
    return response(prompt, label, 0.0) | {"extra_logs": {"reward/error_frac": 1.0}}


def test_failed_rewards_stop_the_run_though_their_groups_would_be_filtered_out(build):
    failures = {0: {n: [failed(str(n - 1), "x")] * SAMPLES for n in range(1, 9)}}
    generator, _ = build(failures=failures)
    with pytest.raises(RunStopped, match="the reward of 8 of 8 responses failed"):
        step(generator)


@pytest.mark.parametrize(("limit", "stops"), [(0.1, True), (0.125, False)])
def test_a_failed_reward_counts_in_the_whole_step_however_small_its_round(build, limit, stops):
    # 4 groups keep 1 and 3; 4 more keep 5 and 7, and after 4 failed one more is under way: in a round of its own, of 2
    # responses, one of which fails. In the step one of 18 did; the 2 of the first round are 2 of 8 and 2 of 16
    torn = [response("8", "x", 1.0), failed("8", "x")]
    generator, _ = build(failures={0: {9: torn}})
    generator.args.reward_max_error_frac = 1 / 18
    assert step(generator)[1]["sampling/rounds"] == 3.0
    generator, _ = build(failures={0: {n: [response("0", "x", 0.0), failed("0", "x")] for n in (1, 5)}})
    generator.args.reward_max_error_frac = limit
    if not stops:
        step(generator)
        return
    with pytest.raises(RunStopped, match="the reward of 1 of 8 responses failed"):
        step(generator)


def test_failed_rewards_stop_an_evaluation(build):
    generator, _ = build(failures={0: {1: [failed("0", "x")] * SAMPLES}})
    with pytest.raises(RunStopped, match="the reward of 2 of 6 responses failed"):
        generator.generate_eval_samples(max_len=100, max_new_tokens=10)


def test_what_was_kept_at_the_end_of_the_data_trains_in_the_next_episode(build):
    generator, _ = build(prompts=6, episodes=2)
    assert step(generator) == ([], {}, True)  # 1, 3, 5 of 0 to 5
    taken, metrics, exhausted = step(generator)
    assert taken == [1, 3, 5, 1]
    assert not exhausted
    assert metrics["sampling/staleness_mean"] == 0.0


def test_a_batch_that_spans_two_passes_is_bounded_and_described_as_one(build):
    # one of 10 prompts passes, the batch is 2: the first pass keeps prompt 9 in rounds of 2, 4 and 4, the second has
    # none that passes anew; at most 4 rounds in all: 2 missing at first, and 1 round of 2 is left for the second pass
    generator, _ = build(
        score=lambda p: [1.0, float(p != 9)], prompts=10, batch=2, episodes=2, sampling_max_rounds=4, train_batch=2
    )
    assert step(generator) == ([], {}, True)
    assert generator.counts.rounds == 3
    samples, _, drawn, _ = generator.generate_samples(max_len=100, max_new_tokens=10)
    assert prompts_of(samples) == [9]
    assert drawn == generator.prompts_drawn - 10 == 2
    assert samples.metrics["sampling/rounds"] == 4.0
    assert samples.metrics["sampling/oversample"] == 12 / 2


def test_rounds_of_the_pass_before_use_up_the_bound(build):
    # rounds of 2, 4 and, where the data end, 3 prompts keep the last one; the second pass may not begin a fourth
    generator, _ = build(
        score=lambda p: [1.0, float(p != 8)], prompts=9, batch=2, episodes=2, sampling_max_rounds=3, train_batch=2
    )
    assert step(generator) == ([], {}, True)
    assert generator.counts.rounds == 3
    samples, _, drawn, _ = generator.generate_samples(max_len=100, max_new_tokens=10)
    assert (prompts_of(samples), drawn) == ([8], 0)


def test_a_failed_reward_in_a_first_round_that_tops_up_a_batch_is_one_of_the_batch(build):
    # 4 * 1.75 = 7 groups are asked for and kept, 4 train and 3 wait; the next step asks for one, of whose 2 responses
    # one fails: 1 of the 8 of a batch
    generator, _ = build(
        score=lambda p: [1.0, 0.0],
        failures={0: {8: [response("7", "x", 1.0), failed("7", "x")]}},
        sampling_oversample_max=1.75,
    )
    generator.pass_rate.add(1, 2)
    generator.args.reward_max_error_frac = 0.2
    assert [step(generator)[0] for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def outcomes(generator, count: int = 10**9) -> list:
    """(groups, metrics, end of the pass) of at most so many calls, up to the end of the last pass."""
    found = []
    while len(found) < count and generator.episode < generator.args.train.num_episodes:
        found.append(step(generator))
    return found


@pytest.mark.parametrize("episodes", [1, 3])
@pytest.mark.parametrize("seed", range(6))
def test_a_run_resumed_after_any_step_goes_on_as_if_nothing_had_happened(build, seed, episodes):
    chance = random.Random(seed)
    passing = [chance.random() < 0.6 for _ in range(40)]
    run = {"prompts": 40, "score": lambda p: [1.0, float(not passing[p])], "delays": seed, "episodes": episodes}
    expected = outcomes(build(**run)[0])
    for done in range(1, len(expected)):
        first, _ = build(**run)
        assert outcomes(first, done) == expected[:done]
        if not expected[done - 1][0]:
            continue  # no step, no checkpoint
        second, _ = build(**run)
        state = CheckpointedLoader(first.prompts_dataloader, first).state_dict()
        CheckpointedLoader(second.prompts_dataloader, second).load_state_dict(state)
        following = outcomes(second)
        if expected[done - 1][2]:  # it says again that the pass has ended
            assert following.pop(0) == ([], {}, True)
        assert following == expected[done:]


@pytest.mark.parametrize("seed", range(6))
def test_what_is_asked_for_depends_on_neither_timing_nor_engines_nor_deaths(build, seed):
    chance = random.Random(seed)
    passing = [chance.random() < 0.4 for _ in range(80)]
    run = {"prompts": 80, "episodes": 2, "batch": 5, "score": lambda p: [1.0, float(not passing[p])]}
    expected = outcomes(build(**run)[0])
    failures = {
        0: {3: ray.exceptions.RayTaskError("f", "trace", ValueError("no"))},
        1: {n: ray.exceptions.RayActorError() for n in range(2, 9)},
    }
    for engines, delays, broken in ((2, 5, None), (4, 9, None), (3, 4, failures)):
        assert outcomes(build(**run, engines=engines, delays=delays, failures=broken)[0]) == expected


def test_the_last_episode_trains_on_what_is_left(build):
    generator, _ = build(prompts=12)
    assert step(generator)[0] == [1, 3, 5, 7]
    taken, _, exhausted = step(generator)
    assert (taken, exhausted) == ([9, 11], True)


def test_data_without_one_good_group_says_so(build):
    generator, _ = build(prompts=6, score=lambda p: [1.0, 1.0])
    with pytest.raises(RunStopped, match="the data ended with 0 of 4 groups"):
        step(generator)


def test_a_failed_request_is_sent_whole_to_another_engine(build):
    failures = {0: {1: ray.exceptions.RayTaskError("f", "trace", ValueError("out of blocks"))}}
    generator, engines = build(engines=2, failures=failures, filtering=False)
    assert step(generator)[0] == [0, 1, 2, 3]
    assert engines[1].requests.count("0") == 1


def test_an_engine_that_dies_gets_no_more_requests(build):
    died = ray.exceptions.RayActorError()
    generator, engines = build(engines=2, failures={1: {1: died, 2: died}}, filtering=False)
    assert step(generator)[0] == [0, 1, 2, 3]
    assert step(generator)[0] == [4, 5, 6, 7]
    assert engines[1].requests == ["1", "3"]


@pytest.mark.parametrize(
    "death",
    [ray.exceptions.RayActorError(), ray.exceptions.RayTaskError("f", "t", EngineDeadError()).as_instanceof_cause()],
)
def test_a_dead_engine_is_neither_asked_nor_woken_again(build, death):
    generator, engines = build(engines=3, failures={1: {1: death}}, filtering=False)
    assert step(generator)[0] == [0, 1, 2, 3]
    step(generator)
    assert engines[1].requests == ["1"]
    assert generator.vllm_engines == generator.engines.alive == [engines[0], engines[2]]


def test_an_engine_that_died_idle_is_found_out(build):
    generator, engines = build(engines=2, filtering=False)
    engines[0].get_num_unfinished_requests = SimpleNamespace(remote=lambda: ray.exceptions.RayActorError())
    assert step(generator)[0] == [0, 1, 2, 3]
    assert engines[0].requests == []


def test_a_prompt_that_always_fails_stops_the_run(build):
    error = ray.exceptions.RayTaskError("f", "trace", ValueError("no"))
    generator, _ = build(failures={0: dict.fromkeys(range(1, 9), error)}, filtering=False)
    with pytest.raises(RunStopped, match=r"a request failed 3 times \(ValueError: no\); prompt \d: "):
        step(generator)


def test_no_engine_left_stops_the_run(build):
    generator, _ = build(failures={0: dict.fromkeys(range(1, 9), ray.exceptions.RayActorError())}, filtering=False)
    with pytest.raises(RunStopped, match="no vLLM engine answers"):
        step(generator)


def test_seeds_depend_on_the_prompt_alone(build):
    seeds = {}
    for engines, delays in ((1, 0), (3, 1)):
        generator, handles = build(engines=engines, delays=delays, rollout_seeded=True)
        for _ in range(3):
            step(generator)
        for handle in handles:
            for prompt, given in zip(handle.requests, handle.seeds, strict=True):
                assert seeds.setdefault(prompt, given) == given
    flat = [seed for given in seeds.values() for seed in given]
    assert len(set(flat)) == len(flat) == SAMPLES * len(seeds)
    assert all(0 <= seed < 2**63 for seed in flat)


def test_without_the_flag_nothing_is_seeded(build):
    generator, (engine,) = build()
    step(generator)
    assert set(map(str, engine.seeds)) == {"None"}


def test_a_restored_generator_continues_where_the_other_stopped(build):
    straight, _ = build(rollout_seeded=True)
    expected = [step(straight)[:2] for _ in range(6)]
    first, _ = build(rollout_seeded=True)
    for _ in range(3):
        step(first)
    state = CheckpointedLoader(first.prompts_dataloader, first).state_dict()
    second, _ = build(rollout_seeded=True)
    CheckpointedLoader(second.prompts_dataloader, second).load_state_dict(state)
    assert [step(second)[:2] for _ in range(3)] == expected[3:]


@pytest.mark.parametrize("filtering", [False, True])
@pytest.mark.parametrize("stop_after", [2, 3])
def test_a_run_resumed_at_the_end_of_an_episode_does_not_repeat_it(build, stop_after, filtering):
    # 10 prompts, batches of 4, all pass: 4, 4, 2 and the next episode; a full iterator starts the next one
    settings = dict(prompts=10, episodes=2, filtering=filtering, score=lambda p: [1.0, 0.0])

    def rest_of_run(generator, episode):
        batches = []
        while episode < 2:
            taken, _, exhausted = step(generator)
            batches += [taken] if taken else []
            episode += exhausted
        return batches

    straight, _ = build(**settings)
    expected = rest_of_run(straight, 0)
    first, _ = build(**settings)
    steps = [step(first) for _ in range(stop_after)]
    done, ends = sum(bool(taken) for taken, _, _ in steps), [exhausted for _, _, exhausted in steps]
    state = CheckpointedLoader(first.prompts_dataloader, first).state_dict()
    second, _ = build(**settings)
    CheckpointedLoader(second.prompts_dataloader, second).load_state_dict(state)
    if second.prompts_dataloader.place == 10:
        second.prompts_dataloader.resumed = False  # as torchdata's loader: an ended epoch is followed by the next
    # upstream saves the episode before it counts the end of the data
    assert rest_of_run(second, sum(ends[:-1])) == expected[done:]


def over(generator) -> bool:
    """What a checkpoint says, and the controller reads."""
    return CheckpointedLoader(generator.prompts_dataloader, generator).state_dict()["generator"]["is_over"]


@pytest.mark.parametrize(("prompts", "episodes"), [(8, 1), (10, 1), (4, 2), (5, 2)])
@pytest.mark.parametrize("filtering", [False, True])
def test_a_run_is_over_after_its_last_step_and_not_before(build, filtering, prompts, episodes):
    # batches of 4 of which all pass; the end of the data is noticed with the last batch or one call later
    settings = dict(prompts=prompts, episodes=episodes, filtering=filtering, score=lambda p: [1.0, 0.0])
    generator, _ = build(**settings)
    seen, ends = [], 0
    while ends < episodes:
        taken, _, exhausted = step(generator)
        ends += exhausted
        if taken:
            seen.append(over(generator))
    assert seen == [False] * (len(seen) - 1) + [True]


def test_samples_that_upstream_generated_ahead_keep_a_run_open(build):
    generator, _ = build(prompts=8, filtering=False, generated=8)  # both batches at once
    assert [(step(generator)[0], over(generator)) for _ in range(2)] == [([0, 1, 2, 3], False), ([4, 5, 6, 7], True)]


def test_groups_that_will_train_keep_a_run_open(build):
    generator, _ = build(prompts=7, score=lambda p: [1.0, 0.0])
    generator.pass_rate.add(1, 2)  # it asks for 8 at once and gets all 7: 4 train, 3 wait
    step(generator)
    assert over(generator) is False
    step(generator)
    assert over(generator) is True


@pytest.mark.parametrize("pass_rate", [None, (1, 2)])
@pytest.mark.parametrize(("prompts", "expected"), [(5, True), (6, False)])
def test_what_can_make_no_update_does_not(build, prompts, expected, pass_rate):
    # 2 groups of 2 make an update; what is beyond the first 4 is not drawn yet, or waits if 8 were asked for at once
    generator, _ = build(prompts=prompts, score=lambda p: [1.0, 0.0], train_batch=4)
    if pass_rate:
        generator.pass_rate.add(*pass_rate)
    assert step(generator)[0] == [0, 1, 2, 3]
    assert len(generator.buffer) == (prompts - 4 if pass_rate else 0)
    assert over(generator) is expected


def test_evaluation_takes_all_prompts_in_order_and_leaves_the_training_data_alone(build):
    generator, _ = build(engines=2)
    for _ in range(2):
        samples = generator.generate_eval_samples(max_len=100, max_new_tokens=10)
        assert prompts_of(samples) == [0, 1, 2]
    assert generator.prompts_drawn == 0
    assert step(generator)[0] == [1, 3, 5, 7]


def test_a_rollout_keeps_its_metrics_when_it_travels():
    import pickle

    rollout = pickle.loads(pickle.dumps(Rollout([torch.tensor(1)], {"sampling/rounds": 1.0})))
    assert (len(rollout), rollout.metrics) == (1, {"sampling/rounds": 1.0})
