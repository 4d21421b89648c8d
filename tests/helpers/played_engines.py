"""Engines that answer on a clock, and the steps of a ``Sampler`` over them; no Ray and no vLLM."""

import math
import random

from played_ray import Now

# Samples of each prompt, and tokens of each response.
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
        self.generate_responses, self.group = Now(self._generate), Now(self._group)
        self.begin_groups = Now(lambda requests, **common: {key: each | common for key, each in requests.items()})
        for method in ("check_health", "pause_generation", "resume_generation", "wake_up", "sleep"):
            setattr(self, method, Now(lambda: None))

    @property
    def seeds(self) -> list:
        return [request["seeds"] for request in self.asked]

    def _group(self, key: str, begun: dict) -> int:
        return self.generate_responses.remote(**begun[key])

    def _generate(self, prompt, label, **request) -> int:
        self.requests.append(prompt)
        self.asked.append(request)
        result = self.failures.get(len(self.requests)) or [
            answered(prompt, label, score) for score in self.score(int(prompt))
        ]
        return self.clock.send(self.delays.random(), result)


def answered(prompt: str, label: str, score: float) -> dict:
    """Return what an engine answers for one sample."""
    return {
        "prompt": prompt,
        "label": label,
        "observation_tokens": [1, 2, *[3] * TOKENS],
        "action_ranges": [(2, 2 + TOKENS)],
        "rollout_log_probs": None,
        "reward": score,
        "scores": score,
    }


def failed(prompt: str, label: str) -> dict:
    """Return what an engine answers when the reward of a response failed."""
    return answered(prompt, label, 0.0) | {"extra_logs": {"reward/error_frac": 1.0}}


def half_pass(prompt: int) -> list[float]:
    """Odd prompts have one right answer of two; of the even ones every second is all right."""
    return [1.0, 0.0] if prompt % 2 else [float(prompt % 4 == 0)] * SAMPLES


def prompts_of(samples) -> list[int]:
    """The prompt of each group, after a check that no group is torn."""
    names = [int(sample.prompt) for sample in samples]
    assert names[::SAMPLES] == names[1::SAMPLES]
    return names[::SAMPLES]


def one_step(sampler) -> tuple[list[int], dict] | None:
    """Return (prompts of the groups, metrics) of the next step, without staleness; None at the end of the data.

    Metrics that are no numbers are None, so that equal steps compare equal.
    """
    rollout = sampler.next_batch(version=sampler.step)
    if rollout is None:
        return None
    metrics = {name: None if math.isnan(value) else value for name, value in rollout.metrics.items()}
    return prompts_of(rollout.samples), metrics


def all_steps(sampler, count: int = 10**9) -> list:
    """Return what ``one_step`` gives, at most ``count`` times, up to the end of the data."""
    found = []
    while len(found) < count and (outcome := one_step(sampler)) is not None:
        found.append(outcome)
    return found
