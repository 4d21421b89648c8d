"""The engine as one sample sees it: every turn of an agent is a request of its own."""

from copy import copy
from typing import Any

from openrlhf_cov.utils.seeds import seed_of


def turn_seed(sample_seed: int, turn: int) -> int:
    """Return the seed of one request of a sample.

    The first request has the seed of the sample, so that samples of one turn are what they are without agents.

    Args:
        sample_seed: The seed of the sample.
        turn: Number of the request within the sample, from 0.
    """
    return sample_seed if turn == 0 else seed_of(sample_seed, turn)


class SeededEngine:
    """The engine of one seeded sample, which gives every request of the sample a seed of its own.

    vLLM starts the random numbers of a request from its seed. With one seed for all turns, a later turn would draw
    what the first turn drew. A request whose seed was chosen by the agent keeps it.

    Args:
        engine: The engine, or what stands for it; ``generate`` is called, everything else is passed on.
        seed: The seed of the sample.
    """

    def __init__(self, engine: Any, seed: int) -> None:
        self._engine = engine
        self._seed = seed
        self._requests = 0

    async def generate(self, prompt_token_ids: list[int], sampling_params: Any, multi_modal_data: Any = None) -> Any:
        """Return vLLM's output of one request; the arguments are those of upstream's engine actor."""
        turn = self._requests
        self._requests += 1
        # An environment may return sampling parameters of its own, which have no seed.
        if sampling_params.seed in (None, self._seed):
            sampling_params = copy(sampling_params)
            sampling_params.seed = turn_seed(self._seed, turn)
        return await self._engine.generate(prompt_token_ids, sampling_params, multi_modal_data=multi_modal_data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class CappedEngine:
    """The engine of one conversation, which limits the tokens of every turn.

    Upstream replaces the limit of a request by all that the context leaves, so that ``--rollout.max_new_tokens`` would
    limit no turn.

    Args:
        engine: The engine, or what stands for it; ``generate`` is called, everything else is passed on.
        limit: Most tokens of a turn; None for no limit other than the context.
    """

    def __init__(self, engine: Any, limit: int | None) -> None:
        self._engine = engine
        self._limit = limit

    async def generate(self, prompt_token_ids: list[int], sampling_params: Any, multi_modal_data: Any = None) -> Any:
        """Return vLLM's output of one request; the arguments are those of upstream's engine actor."""
        if self._limit is not None and sampling_params.max_tokens > self._limit:
            sampling_params = copy(sampling_params)
            sampling_params.max_tokens = self._limit
        return await self._engine.generate(prompt_token_ids, sampling_params, multi_modal_data=multi_modal_data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class WatchedAgent:
    """The environment of one conversation, with a note whether it ended the conversation.

    Args:
        agent: The environment, an ``AgentInstanceBase`` of upstream.
    """

    def __init__(self, agent: Any) -> None:
        self._agent = agent
        # True if the last step ended the conversation.
        self.is_done = False

    async def reset(self, states: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Return the first observation of the environment."""
        return await self._agent.reset(states, **kwargs)

    async def step(self, states: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Return what the environment answers to one turn."""
        result = await self._agent.step(states, **kwargs)
        self.is_done = bool(result["done"])
        return result
