"""What the engine actor asks its executor for."""

import asyncio
from types import SimpleNamespace

import pytest
from idle_actor import IdleActor
from vllm.v1.engine.exceptions import EngineDeadError

from openrlhf_cov.config import RewardConfig
from openrlhf_cov.trainer.rollout.reward_executor import RewardExecutor


@pytest.fixture
def asked():
    """Function (log_probs, seeds, samples) -> (logprobs, seed) of each request; the caller's own stay as they were."""

    def ask(log_probs, seeds, samples):
        requests = []

        async def execute(sampling_params, **request):
            requests.append((sampling_params.logprobs, sampling_params.seed))

        actor = IdleActor(log_probs=log_probs, executor=SimpleNamespace(execute=execute))
        own = SimpleNamespace(logprobs=None, seed=None)
        request = dict(prompt="p", label="l", max_length=9, hf_tokenizer=None, num_samples=samples)
        asyncio.run(actor.generate_responses(sampling_params=own, seeds=seeds, **request))
        assert vars(own) == {"logprobs": None, "seed": None}
        return requests

    return ask


def test_a_run_on_a_used_engine_has_a_reward_function_of_its_own():
    """Numbers of rewards that a function keeps would go on from one run to the next."""
    made = iter(range(9))
    healthy = [True]

    async def check_health():
        if not healthy[0]:
            raise EngineDeadError

    actor = IdleActor(new_executor=lambda: next(made), llm=SimpleNamespace(check_health=check_health))
    assert asyncio.run(actor.begin_a_run()) is None  # the first run has it
    executors = []
    for _ in range(2):
        asyncio.run(actor.wait_for_a_run())
        outputs = asyncio.run(actor.begin_a_run())
        assert all(isinstance(size, int) for size in outputs.values())
        assert asyncio.run(actor.begin_a_run()) is None  # one run at a time
        executors.append(actor.executor)
    assert executors == [0, 1]
    asyncio.run(actor.wait_for_a_run())
    healthy[0] = False
    with pytest.raises(EngineDeadError):  # the process behind the actor, which itself answers
        asyncio.run(actor.begin_a_run())
    assert asyncio.run(actor.begin_a_run()) is None


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


def test_vllm_gives_our_executor_neither_text_nor_other_tokens_than_the_sampled_ones():
    found = []

    class Executor(RewardExecutor):
        async def execute(self, sampling_params, **request):
            found.append((sampling_params.detokenize, sampling_params.logprobs))

    actor = IdleActor()
    actor.log_probs, actor.executor = True, Executor(None, RewardConfig())
    request = dict(prompt="p", label="l", max_length=9, hf_tokenizer=None)
    asyncio.run(actor.generate_responses(sampling_params=SimpleNamespace(logprobs=None, detokenize=True), **request))
    # logprobs=0 is the sampled token alone, 1 is the most probable one as well.
    assert found == [(False, 0)]
