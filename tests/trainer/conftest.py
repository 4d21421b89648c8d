"""Upstream's modules import on a CPU host only with the stand-ins installed; Ray and engines without processes."""

import random
from collections.abc import Callable

import pytest
import torch
from played_ray import Now, PlayedRay, install
from run_flags import run_flags

from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.config import SamplingConfig

cpu_host.install()


@pytest.fixture
def uncompiled(monkeypatch):
    """In fp32. Upstream compiles its entropy, anew for every shape."""
    from openrlhf.utils import utils

    monkeypatch.setattr(utils, "convert_to_torch_dtype", utils.convert_to_torch_dtype)  # as it was, afterwards
    cpu_host.accept_fp32()
    with torch.compiler.set_stance("force_eager"):
        yield


@pytest.fixture
def played_ray(monkeypatch) -> PlayedRay:
    """Ray's functions on references, played until the end of the test."""
    played = PlayedRay()
    install(monkeypatch, played)
    return played


@pytest.fixture
def gpu_host(monkeypatch):
    """A host with GPUs, as far as flags and arguments follow from it."""
    monkeypatch.setattr(cpu_host, "is_cpu_host", lambda: False)


@pytest.fixture
def one_process(tmp_path):
    """A process group of one; upstream's trainer asks for the rank and waits at barriers."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


SAMPLES = 2
TOKENS = 3


class Clock:
    """``ray.wait`` and ``ray.get`` over requests that take the time their engine says."""

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
        result = self.results.pop(reference)
        if isinstance(result, Exception):
            raise result
        return result


class Engine:
    """Answers prompt ``p`` with the scores of ``score(p)``, after a delay; may fail at its n-th request."""

    def __init__(self, clock: Clock, score, delays: random.Random, failures=None) -> None:
        self.clock, self.score, self.delays, self.failures = clock, score, delays, failures or {}
        # What each request asked for: prompts, and all arguments.
        self.requests, self.asked = [], []
        self.generate_responses = Now(self._generate)
        for method in ("check_health", "pause_generation", "resume_generation", "wake_up", "sleep"):
            setattr(self, method, Now(lambda: None))

    @property
    def seeds(self) -> list:
        return [request["seeds"] for request in self.asked]

    def _generate(self, prompt, label, **request) -> int:
        self.requests.append(prompt)
        self.asked.append(request)
        result = self.failures.get(len(self.requests)) or [
            answered(prompt, label, score) for score in self.score(int(prompt))
        ]
        return self.clock.send(self.delays.random(), result)


def answered(prompt: str, label: str, score: float) -> dict:
    return {
        "prompt": prompt,
        "label": label,
        "observation_tokens": [1, 2, *[3] * TOKENS],
        "action_ranges": [(2, 2 + TOKENS)],
        "rollout_log_probs": None,
        "reward": score,
        "scores": score,
    }


@pytest.fixture(scope="session")
def response() -> Callable[[str, str, float], dict]:
    """Function (prompt, label, score) -> what an engine answers for one sample."""
    return answered


def half_pass(prompt: int) -> list[float]:
    """Odd prompts have one right answer of two; of the even ones every second is all right."""
    return [1.0, 0.0] if prompt % 2 else [float(prompt % 4 == 0)] * SAMPLES


@pytest.fixture
def make_sampler(monkeypatch):
    """Function (settings...) -> (``Sampler`` of two samples per prompt, its engines); prompts are "0", "1", ..."""
    from openrlhf_cov.trainer.rollout import generation
    from openrlhf_cov.trainer.rollout.generation import EngineGroup
    from openrlhf_cov.trainer.rollout.prompts import Prompt, PromptOrder
    from openrlhf_cov.trainer.rollout.requests import RolloutRequests
    from openrlhf_cov.trainer.rollout.sampler import Sampler

    class DataOrder(PromptOrder):
        """Draws prompts in the order of the data, so that tests can say which ones a step has."""

        def permutation(self, episode):
            return list(range(self.prompts))

    def make(score=half_pass, prompts=1000, batch=4, engines=1, delays=0, failures=None, filtering=True, **settings):
        episodes, ranks = settings.pop("episodes", 1), settings.pop("ranks", 1)
        train_batch, generated = settings.pop("train_batch", SAMPLES), settings.pop("generated", None)
        dynamic_batch, micro = settings.pop("dynamic_batch", False), settings.pop("micro", 2)
        queue = settings.pop("queue", 0)
        clock = Clock()
        monkeypatch.setattr(generation, "ray", clock)
        chance = random.Random(delays)
        handles = [Engine(clock, score, chance, (failures or {}).get(place)) for place in range(engines)]
        args = run_flags({
            **vars(SamplingConfig(**settings)), "data.max_len": 100, "rollout.batch_size": batch,
            "rollout.n_samples_per_prompt": SAMPLES, "rollout.vllm_generate_batch_size": generated or batch,
            "rollout.micro_batch_size": micro, "rollout.max_new_tokens": 10, "train.seed": 1,
            "algo.dynamic_filtering_enable": filtering, "train.num_episodes": episodes,
            "train.batch_size": train_batch, "train.dynamic_batch_enable": dynamic_batch,
            "train.async_enable": queue > 0,
            "train.async_queue_size": max(1, queue), "eval.temperature": 0.5, "eval.n_samples_per_prompt": SAMPLES,
            "ds.zero_stage": 3, "actor.num_gpus_per_node": ranks,
        })  # fmt: skip
        data = [Prompt(place, str(place), f"label {place}", source="numbers") for place in range(prompts)]
        sampler = Sampler(args, data, EngineGroup(handles), RolloutRequests(args, "tokenizer"))
        sampler.order = DataOrder(prompts, seed=1)
        return sampler, handles

    return make


def groups_of(samples) -> list[int]:
    """The prompt of each group, after a check that no group is torn."""
    names = [int(sample.prompt) for sample in samples]
    assert names[::SAMPLES] == names[1::SAMPLES]
    return names[::SAMPLES]


def one_step(sampler) -> tuple[list[int], dict] | None:
    rollout = sampler.next_batch(version=sampler.step)
    return None if rollout is None else (groups_of(rollout.samples), dict(rollout.metrics))


def all_steps(sampler, count: int = 10**9) -> list:
    found = []
    while len(found) < count and (outcome := one_step(sampler)) is not None:
        found.append(outcome)
    return found


@pytest.fixture(scope="session")
def prompts_of() -> Callable[..., list[int]]:
    """Function (samples) -> the prompt of each group."""
    return groups_of


@pytest.fixture(scope="session")
def step() -> Callable[..., tuple[list[int], dict] | None]:
    """Function (sampler) -> (prompts of the groups, metrics) of the next step, without staleness; None at the end."""
    return one_step


@pytest.fixture(scope="session")
def outcomes() -> Callable[..., list]:
    """Function (sampler, count) -> what ``step`` gives, at most so many times, up to the end of the data."""
    return all_steps


@pytest.fixture
def check_resuming(make_sampler, outcomes):
    """Function (arguments of a sampler) that stops such a run after each of its steps, in turn, and resumes it."""

    def check(run: dict) -> None:
        expected = outcomes(make_sampler(**run)[0])
        for done in range(1, len(expected) + 1):
            first, _ = make_sampler(**run)
            assert outcomes(first, done) == expected[:done]
            second, _ = make_sampler(**run)
            second.load_state_dict(first.state_dict())
            assert outcomes(second) == expected[done:]

    return check
