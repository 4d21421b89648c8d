import asyncio
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import ray
from idle_actor import IdleActor
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind

from openrlhf_cov.evaluation.plan import Completion, Request
from openrlhf_cov.trainer.ray import completions
from openrlhf_cov.trainer.ray.rollout_actor import CovRolloutActor
from openrlhf_cov.trainer.rollout import generation
from openrlhf_cov.trainer.rollout.generation import EngineGroup

SEEDED = Request(("sums", "p0", 3), "3+4=", (5, 6, 7), 17, 0.6, 0.9, 24)
GREEDY = Request(("sums", "p0", 0), "3+4=", (5, 6, 7), None, 0.0, 1.0, 8, log_probs=True)


def params(request):
    return completions.sampling_params(request)


def test_sampling_params_of_a_seeded_request():
    how = params(SEEDED)
    assert (how.n, how.seed, how.temperature, how.top_p, how.max_tokens, how.logprobs) == (1, 17, 0.6, 0.9, 24, None)
    assert (how.skip_special_tokens, how.include_stop_str_in_output) == (False, True)  # as in training
    # nothing that would change what the model says: no stop words, no penalties, no other cut of the distribution
    assert (how.stop, how.top_k, how.min_p, how.min_tokens, how.ignore_eos) == ([], 0, 0.0, 0, False)
    assert (how.presence_penalty, how.frequency_penalty, how.repetition_penalty) == (0.0, 0.0, 1.0)


def output(ids, logprobs=None, finish_reason="stop", prompt=(5, 6, 7)):
    """What vLLM gives: per position the log-probs of some tokens, by id."""
    response = SimpleNamespace(
        text="7<eos>",
        token_ids=ids,
        finish_reason=finish_reason,
        logprobs=None if logprobs is None else [
            {token: SimpleNamespace(logprob=value) for token, value in position.items()} for position in logprobs
        ],
    )  # fmt: skip
    return SimpleNamespace(outputs=[response], prompt_token_ids=list(prompt))


def test_surprisal_by_hand():
    # tokens 9 and 2 with -log p of 0.5 and 1.5; the more likely token 4 was not drawn: (0.5 + 1.5) / 2 = 1
    completion = completions.completion_of(output([9, 2], [{9: -0.5}, {4: -0.25, 2: -1.5}]))
    assert completion.surprisal == 1.0
    assert completions.completion_of(output([9] * 8, finish_reason="length")).truncated


@pytest.mark.parametrize(
    ("ids", "logprobs"), [([], []), ([9], [{9: math.nan}]), ([9, 2], [{9: -1.0}, {2: -math.inf}])]
)
def test_a_surprisal_that_is_no_number_is_none(ids, logprobs):
    assert completions.completion_of(output(ids, logprobs)).surprisal is None


class Engine:
    """An actor handle whose requests are done at once; its text tells who answered."""

    def __init__(self, name):
        self.complete = SimpleNamespace(remote=lambda request: Reference(name, request))


class Reference:
    def __init__(self, name, request):
        self.completion = Completion(f"{name} {request.seed}", 1, 3, False)


@pytest.fixture
def two_engines(monkeypatch):
    fake = SimpleNamespace(
        exceptions=ray.exceptions,
        wait=lambda references, num_returns, timeout: (references[:num_returns], references[num_returns:]),
        get=lambda reference: reference.completion,
    )
    monkeypatch.setattr(generation, "ray", fake)
    return EngineGroup([Engine("a"), Engine("b")])


def test_no_more_than_a_window_for_each_engine_is_under_way(two_engines, monkeypatch):
    under_way = []
    wait = generation.ray.wait

    def note(references, num_returns, timeout):
        under_way.append(len(references))
        return wait(references, num_returns, timeout)

    monkeypatch.setattr(generation.ray, "wait", note)
    requests = [replace(SEEDED, seed=seed) for seed in range(20)]
    assert len(list(completions.generate(two_engines, requests, sequences=3))) == 20
    assert max(under_way) == 12  # twice the 3 sequences of each of two engines


def test_the_actor_generates_from_the_tokens_of_the_prompt():
    calls = []

    class Actor(IdleActor):
        async def generate(self, prompt_token_ids, sampling_params, multi_modal_data=None):
            calls.append((prompt_token_ids, sampling_params))
            return output([9, 2], [{9: -0.5}, {2: -1.5}])

    completion = asyncio.run(Actor().complete(GREEDY))
    assert completion == Completion("7<eos>", 2, 3, truncated=False, surprisal=1.0)
    assert calls == [([5, 6, 7], params(GREEDY))]


@pytest.mark.parametrize(("seeds", "expected"), [(None, [(None, 2)]), ([7, 8], [(7, 1), (8, 1)])])
def test_a_group_of_rollouts_comes_whole_and_leaves_the_callers_parameters_alone(monkeypatch, seeds, expected):
    calls = []

    async def upstream(self, *, sampling_params, num_samples=1, **request):
        calls.append((sampling_params.seed, num_samples, sampling_params.output_kind, request))
        return [f"{sampling_params.seed}-{sample}" for sample in range(num_samples)]

    monkeypatch.setattr(CovRolloutActor.__mro__[1], "generate_responses", upstream)
    actor = IdleActor(log_probs=False, executor=None)
    given = SamplingParams(temperature=1.0)
    responses = asyncio.run(
        actor.generate_responses(sampling_params=given, num_samples=2, seeds=seeds, prompt="3+4=", label="7")
    )
    whole, request = RequestOutputKind.FINAL_ONLY, {"prompt": "3+4=", "label": "7"}
    assert calls == [(seed, count, whole, request) for seed, count in expected]
    assert responses == [f"{seed}-{sample}" for seed, count in expected for sample in range(count)]
    assert (given.output_kind, given.seed) == (RequestOutputKind.CUMULATIVE, None)
