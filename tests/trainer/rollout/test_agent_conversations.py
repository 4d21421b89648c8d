"""Conversations of an agent through our executor: what is truncated, and how long a turn may be."""

import asyncio
from types import SimpleNamespace

import pytest
import torch
from character_tokenizer import character_tokenizer
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor
from vllm import SamplingParams

from openrlhf_cov.trainer.rollout.reward_executor import MultiTurnExecutor
from openrlhf_cov.trainer.rollout.rollouts import sample_of

PROMPT = "abcde"  # 5 tokens, one for each character


class Engine:
    """Answers with 4 tokens and an end, or with as many tokens as the limit allows."""

    def __init__(self, wanted=4):
        self.wanted = wanted
        self.limits = []

    async def generate(self, prompt_token_ids, sampling_params, multi_modal_data=None):
        self.limits.append(sampling_params.max_tokens)
        length = min(self.wanted, sampling_params.max_tokens)
        finish_reason = "stop" if length == self.wanted else "length"
        output = SimpleNamespace(token_ids=[1] * length, finish_reason=finish_reason, text="x" * length)
        return SimpleNamespace(outputs=[output])


def agent(feedback, turns):
    """Return the class of an environment that answers each turn with a text, and ends after some of them."""

    class Agent(AgentInstanceBase):
        def __init__(self):
            self.steps = 0

        async def step(self, state_dict):
            self.steps += 1
            return {"rewards": torch.tensor(0.5), "environment_feedback": feedback, "done": self.steps == turns}

    return Agent


def converse(engine, *, feedback, turns, max_length=20, limit=None, samples=1):
    """Return the outputs of some conversations that share their sampling parameters, as the samples of a prompt do."""
    executor = MultiTurnExecutor(MultiTurnAgentExecutor(agent(feedback, turns)))
    params = SamplingParams(max_tokens=limit)

    async def conversations():
        requests = [
            executor.execute(PROMPT, "", params, max_length, character_tokenizer(), engine) for _ in range(samples)
        ]
        return await asyncio.gather(*requests)

    outputs = asyncio.run(conversations())
    assert params.max_tokens == limit
    return outputs


# The prompt has 5 tokens and a turn 4.
CONVERSATIONS = {
    # 5 + 4 + 3 = 12 tokens after the first turn, 19 after the second one, which ends the conversation.
    "it ends": dict(feedback="abc", turns=2, truncated=False),
    # 19 tokens after the second turn: the third one has room for one token.
    "a turn is cut": dict(feedback="abc", turns=3, truncated=True),
    # 5 + 4 + 11 = 20 tokens after the first turn: no second turn begins.
    "the environment fills the context": dict(feedback="a" * 11, turns=2, truncated=True),
    "the environment exceeds the context": dict(feedback="a" * 50, turns=2, truncated=True),
    # The same number of tokens after the last turn: the environment had ended the conversation.
    "the last answer fills the context": dict(feedback="a" * 11, turns=1, truncated=False),
}


@pytest.mark.parametrize("case", CONVERSATIONS.values(), ids=CONVERSATIONS)
def test_a_conversation_that_did_not_end_is_truncated(case):
    case = dict(case)
    truncated = case.pop("truncated")
    (output,) = converse(Engine(), **case)
    assert sample_of(output, SimpleNamespace(number=0, source="default", label=""), 20).truncated == truncated


def test_every_turn_has_the_limit_of_a_response():
    """Without a limit the turns may fill the context: 20 - 5 = 15 tokens, then 20 - 5 - 4 - 1 = 10."""
    free = Engine()
    converse(free, feedback="a", turns=2)
    assert free.limits == [15, 10]
    limited = Engine(wanted=9)
    (output,) = converse(limited, feedback="a", turns=2, limit=6)
    # 6 tokens of the first turn and 1 of the environment leave 20 - 5 - 7 = 8 tokens, more than a turn may have.
    assert limited.limits == [6, 6]
    assert output["action_ranges"] == [(5, 11), (12, 18)]
    assert output["truncated"]  # the last turn


def test_the_samples_of_a_prompt_do_not_change_each_others_limits():
    engine = Engine()
    outputs = converse(engine, feedback="a", turns=2, samples=3)
    assert sorted(engine.limits) == [10] * 3 + [15] * 3
    assert [len(output["observation_tokens"]) for output in outputs] == [5 + 4 + 1 + 4 + 1] * 3
