"""What the engine actor asks its executor for."""

import asyncio
from types import SimpleNamespace

import pytest

from openrlhf_cov.trainer.ray.rollout_actor import CovRolloutActor


@pytest.fixture
def asked():
    """Function (log_probs, seeds, samples) -> (logprobs, seed) of each request; the caller's own stay as they were."""

    def ask(log_probs, seeds, samples):
        requests = []

        async def execute(sampling_params, **request):
            requests.append((sampling_params.logprobs, sampling_params.seed))

        actor = object.__new__(CovRolloutActor)
        actor.log_probs, actor.executor = log_probs, SimpleNamespace(execute=execute)
        own = SimpleNamespace(logprobs=None, seed=None)
        request = dict(prompt="p", label="l", max_length=9, hf_tokenizer=None, num_samples=samples)
        asyncio.run(actor.generate_responses(sampling_params=own, seeds=seeds, **request))
        assert vars(own) == {"logprobs": None, "seed": None}
        return requests

    return ask


@pytest.mark.parametrize(
    ("log_probs", "seeds", "samples", "requests"),
    [
        (False, None, 2, [(None, None)] * 2),
        (True, None, 2, [(1, None)] * 2),
        (False, [3, 4], 1, [(None, 3), (None, 4)]),
        (True, [3, 4], 1, [(1, 3), (1, 4)]),
    ],
)
def test_log_probs_and_seeds_are_asked_for(asked, log_probs, seeds, samples, requests):
    assert asked(log_probs, seeds, samples) == requests
