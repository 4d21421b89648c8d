"""What the engine actor asks its executor for."""

import asyncio
from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch
from character_tokenizer import character_tokenizer
from idle_actor import IdleActor
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.exceptions import EngineDeadError
from vllm_outputs import request_output

from openrlhf_cov.config import RewardConfig
from openrlhf_cov.trainer.rollout.reward_executor import RewardExecutor
from openrlhf_cov.utils.seeds import seed_of

REQUEST = {"prompt": "p", "label": "l", "max_length": 9, "hf_tokenizer": None}


class Agent:
    """An executor that notes the parameters of its requests, and answers with their number."""

    def __init__(self):
        self.asked = []

    async def execute(self, sampling_params, **request):
        self.asked.append(sampling_params)
        return len(self.asked)


class Graded(RewardExecutor):
    """Our executor, which notes its parameters as well."""

    def __init__(self):
        super().__init__(None, RewardConfig())
        self.asked = []

    execute = Agent.execute


def ask(executor, *, log_probs=False, **request):
    """Return the parameters of each request of a group and the responses; the caller's own stay as they were."""
    own = SamplingParams(temperature=1.0)
    before = deepcopy(own)
    actor = IdleActor(log_probs=log_probs, executor=executor)
    responses = asyncio.run(actor.generate_responses(sampling_params=own, **REQUEST, **request))
    assert own == before
    return executor.asked, responses


def test_a_run_on_a_used_engine_has_a_reward_function_of_its_own():
    """Numbers of rewards that a function keeps would go on from one run to the next."""
    made = iter(range(9))

    class Engine:
        is_alive = True

        async def check_health(self):
            if not self.is_alive:
                raise EngineDeadError

    actor = IdleActor(new_executor=lambda: next(made), llm=Engine())
    assert asyncio.run(actor.begin_a_run()) is None  # the first run has it
    executors = []
    for _ in range(2):
        asyncio.run(actor.wait_for_a_run())
        assert all(isinstance(size, int) for size in asyncio.run(actor.begin_a_run()).values())
        assert asyncio.run(actor.begin_a_run()) is None  # one run at a time
        executors.append(actor.executor)
    assert executors == [0, 1]
    asyncio.run(actor.wait_for_a_run())
    actor.llm.is_alive = False
    with pytest.raises(EngineDeadError):  # the process behind the actor, which itself answers
        asyncio.run(actor.begin_a_run())
    assert asyncio.run(actor.begin_a_run()) is None


@pytest.mark.parametrize("log_probs", [False, True])
@pytest.mark.parametrize("seeds", [None, [3, 4]])
def test_log_probs_and_seeds_are_asked_for_and_responses_come_whole(log_probs, seeds):
    samples = {"num_samples": 2} if seeds is None else {"seeds": seeds}
    asked, responses = ask(Agent(), log_probs=log_probs, **samples)
    assert [each.seed for each in asked] == (seeds or [None] * 2)
    assert {each.logprobs for each in asked} == {1 if log_probs else None}
    assert {each.output_kind for each in asked} == {RequestOutputKind.FINAL_ONLY}
    assert sorted(responses) == [1, 2]


def test_vllm_gives_our_executor_neither_text_nor_other_tokens_than_the_sampled_ones():
    (asked,), _ = ask(Graded(), log_probs=True)
    # logprobs=0 is the sampled token alone, 1 is the most probable one as well.
    assert (asked.detokenize, asked.logprobs) == (False, 0)


@pytest.mark.parametrize("samples", [{"num_samples": 2}, {"seeds": [3, 4]}])
def test_no_request_shares_what_vllm_changes_in_its_parameters(samples):
    """The copy that vLLM makes of them is a shallow one (``skip_clone``)."""

    class Engine:
        clones = ()

        async def generate(self, prompt, sampling_params, request_id):
            own = sampling_params.clone()
            # It adds the token that ends responses, here the number of the request, to those that end a response.
            own.update_from_generation_config({}, len(self.clones))
            self.clones = (*self.clones, own)
            yield request_output([1])

    engine, own = Engine(), SamplingParams()
    actor = IdleActor(executor=RewardExecutor(None, RewardConfig()), llm=engine)
    request = REQUEST | {"hf_tokenizer": character_tokenizer()}
    asyncio.run(actor.generate_responses(sampling_params=own, **request, **samples))
    assert [each.all_stop_token_ids for each in engine.clones] == [{0}, {1}]
    assert own.all_stop_token_ids == set()


def test_groups_that_begin_together_end_one_by_one_and_a_failure_is_that_of_its_group():
    class Answers:
        async def execute(self, prompt, **request):
            if prompt == "bad":
                raise ValueError(prompt)
            if prompt == "slow":
                await quick_is_there.wait()
            return prompt

    async def ask_for_groups():
        common = {"sampling_params": SamplingParams(), "num_samples": 2, "max_length": 9, "hf_tokenizer": None}
        requests = {prompt[0]: {"prompt": prompt, "label": "l"} for prompt in ("slow", "bad", "quick")}
        actor = IdleActor(executor=Answers(), begun={})
        begun = await actor.begin_groups(requests, **common)
        assert await actor.group("q", begun) == ["quick"] * 2
        quick_is_there.set()
        assert await actor.group("s", begun) == ["slow"] * 2
        with pytest.raises(ValueError, match="bad"):
            await actor.group("b", begun)
        assert actor.begun == {}

    quick_is_there = asyncio.Event()
    asyncio.run(ask_for_groups())


class ThreeTurns(AgentInstanceBase):
    """An environment that answers with "ab" and ends after the third turn; the second one sets its own parameters."""

    def __init__(self):
        self.steps = 0

    async def step(self, state_dict):
        self.steps += 1
        own = {"sampling_params": SamplingParams(top_p=0.5)} if self.steps == 2 else {}
        return {"rewards": torch.tensor(1.0), "environment_feedback": "ab", "done": self.steps == 3, **own}


class NotingActor(IdleActor):
    """An actor whose engine answers each request with two tokens, and notes the seed and the length of the prompt."""

    async def generate(self, prompt_token_ids, sampling_params, multi_modal_data=None):
        self.asked.append((len(prompt_token_ids), sampling_params.seed))
        return SimpleNamespace(outputs=[SimpleNamespace(token_ids=[1, 2], finish_reason="stop", text="xy")])


def seeds_by_turn(seeds):
    """Return {length of the prompt: seeds of the requests} of a group of conversations of three turns."""
    actor = NotingActor(executor=MultiTurnAgentExecutor(ThreeTurns), asked=[])
    request = {"prompt": "p", "label": "l", "max_length": 99, "hf_tokenizer": character_tokenizer()}
    responses = asyncio.run(actor.generate_responses(sampling_params=SamplingParams(), seeds=seeds, **request))
    assert [response["reward"] for response in responses] == [3.0] * len(seeds)
    found = {}
    for length, seed in actor.asked:
        found.setdefault(length, []).append(seed)
    return found


def test_every_turn_of_a_seeded_agent_draws_random_numbers_of_its_own():
    """A turn adds 2 sampled tokens and the 2 of "ab" to a prompt of 1 token: the turns begin after 1, 5 and 9."""
    found = seeds_by_turn([3, 4])
    assert found == {
        1: [3, 4],  # the first turn is that of a sample without an agent
        5: [seed_of(3, 1), seed_of(4, 1)],
        9: [seed_of(3, 2), seed_of(4, 2)],  # also where the environment has set parameters without a seed
    }
    assert len({seed for seeds in found.values() for seed in seeds}) == 6
    assert seeds_by_turn([3, 4]) == found
