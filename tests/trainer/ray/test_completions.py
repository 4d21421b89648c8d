import asyncio
import math
from dataclasses import replace

import pytest
from idle_actor import IdleActor
from played_ray import PlayedActor, PlayedRay, install
from vllm_outputs import request_output

from openrlhf_cov.evaluation.plan import Completion, Request
from openrlhf_cov.trainer.ray import completions
from openrlhf_cov.trainer.rollout.generation import EngineGroup

SEEDED = Request(("sums", "p0", 3), "3+4=", (5, 6, 7), 17, 0.6, 0.9, 24)
GREEDY = Request(("sums", "p0", 0), "3+4=", (5, 6, 7), None, 0.0, 1.0, 8, log_probs=True)


def test_sampling_params_of_a_seeded_request():
    how = completions.sampling_params(SEEDED)
    assert (how.n, how.seed, how.temperature, how.top_p, how.max_tokens, how.logprobs) == (1, 17, 0.6, 0.9, 24, None)
    assert (how.skip_special_tokens, how.include_stop_str_in_output) == (False, True)  # as in training
    # nothing that would change what the model says: no stop words, no penalties, no other cut of the distribution
    assert (how.stop, how.top_k, how.min_p, how.min_tokens, how.ignore_eos) == ([], 0, 0.0, 0, False)
    assert (how.presence_penalty, how.frequency_penalty, how.repetition_penalty) == (0.0, 0.0, 1.0)


def test_a_response_that_was_cut_off_says_so():
    assert completions.completion_of(request_output([9] * 8, finish_reason="length")).truncated


@pytest.mark.parametrize(
    ("ids", "log_probs"), [([], []), ([9], [{9: math.nan}]), ([9, 2], [{9: -1.0}, {2: -math.inf}])]
)
def test_a_surprisal_that_is_no_number_is_none(ids, log_probs):
    assert completions.completion_of(request_output(ids, log_probs=log_probs)).surprisal is None


def test_the_actor_generates_from_the_tokens_of_the_prompt():
    calls = []

    class Actor(IdleActor):
        async def generate(self, prompt_token_ids, sampling_params, multi_modal_data=None):
            calls.append((prompt_token_ids, sampling_params))
            return request_output([9, 2], "7<eos>", log_probs=[{9: -0.5}, {4: -0.25, 2: -1.5}])

    # tokens 9 and 2 have -log p of 0.5 and 1.5; the more likely token 4 was not sampled: (0.5 + 1.5) / 2 = 1
    assert asyncio.run(Actor().complete(GREEDY)) == Completion("7<eos>", 2, 3, truncated=False, surprisal=1.0)
    assert calls == [([5, 6, 7], completions.sampling_params(GREEDY))]


def test_no_more_than_a_window_for_each_engine_is_under_way(monkeypatch):
    under_way = []

    class OneByOne(PlayedRay):
        def wait(self, references, num_returns=1, timeout=None):
            under_way.append(len(references))
            return references[:num_returns], references[num_returns:]

    def complete(request):
        return Completion(str(request.seed), 1, 3, False)

    install(monkeypatch, OneByOne())
    engines = EngineGroup([PlayedActor(complete=complete), PlayedActor(complete=complete)])
    requests = [replace(SEEDED, seed=seed) for seed in range(20)]
    assert len(list(completions.generate(engines, requests, sequences=3))) == 20
    assert max(under_way) == 12  # twice the 3 sequences of each of two engines
