"""Generation and reward of one response inside the vLLM engine actor: upstream generates, the reward is never lost."""

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import lru_cache
from typing import Any

import torch
from openrlhf.utils.agent import AgentExecutorBase, MultiTurnAgentExecutor, SingleTurnAgentExecutor
from openrlhf.utils.logging_utils import init_logger

from openrlhf_cov.config import RewardConfig
from openrlhf_cov.data.templates import prompt_ids
from openrlhf_cov.rewards.loading import load_reward_module
from openrlhf_cov.rewards.pool import shared_pool
from openrlhf_cov.trainer.rollout.agent_engine import CappedEngine, WatchedAgent

logger = init_logger(__name__)

# Metric: 1 for a sample whose reward function abstained, else 0.
ABSTAINED = "reward/abstained_frac"
ERROR_METRIC = "reward/error_frac"
SECONDS_BETWEEN_WARNINGS = 60.0
# Prompts whose tokens are remembered.
KEPT_PROMPTS = 64


class PromptTokenizer:
    """The tokenizer that one call of upstream's executors gets: the first text that it tokenizes is the prompt.

    Upstream tokenizes every text without special tokens. Here the prompt has those of ``prompt_ids``; texts after the
    first, such as the answers of an environment in a rollout of several turns, are tokenized as upstream asks.

    Args:
        tokenizer: The tokenizer of the policy.
        tokenize: ``prompt_ids``, or a function that remembers what it returned.
    """

    def __init__(self, tokenizer: Any, tokenize: Callable[[str, Any], list[int]] = prompt_ids) -> None:
        self._tokenizer = tokenizer
        self._tokenize = tokenize
        self._has_prompt = False

    def __call__(self, text: Any, **settings: Any) -> Any:
        # Images expand to tokens of their own, which the processor of the model inserts.
        if self._has_prompt or "images" in settings:
            self._has_prompt = True
            return self._tokenizer(text=text, **settings)
        self._has_prompt = True
        return {"input_ids": torch.tensor([self._tokenize(text, self._tokenizer)])}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


class MultiTurnExecutor(AgentExecutorBase):
    """Upstream's ``MultiTurnAgentExecutor`` with the prompts and the limits of a run.

    Differs from upstream: the first observation has the special tokens of a prompt; a turn has at most the tokens of
    ``--rollout.max_new_tokens``; a conversation that fills the context before its environment ends it is truncated.

    Args:
        executor: Upstream's executor, or one of a subclass that has its ``execute``.
    """

    def __init__(self, executor: MultiTurnAgentExecutor) -> None:
        self._executor = executor

    async def execute(
        self, prompt, label, sampling_params, max_length: int, hf_tokenizer, llm_engine, images=None
    ) -> dict[str, Any]:
        """Return upstream's output of one conversation.

        Args:
            prompt: Text of the prompt, the first observation.
            label: Label of the prompt, which the environment of the agent gets.
            sampling_params: vLLM's sampling parameters of a turn, which stay as they are.
            max_length: Most tokens of the conversation.
            hf_tokenizer: The tokenizer of the policy.
            llm_engine: The vLLM engine that generates.
            images: Images of the prompt; None for text alone.
        """
        agent = WatchedAgent(self._executor.agent_instance_cls())
        # Upstream makes the environment of a conversation by this attribute; conversations run side by side.
        executor = copy(self._executor)
        executor.agent_instance_cls = lambda: agent
        output = await executor.execute(
            prompt,
            label,
            # Upstream changes the parameters in every turn, and all samples of a prompt share them.
            copy(sampling_params),
            max_length,
            PromptTokenizer(hf_tokenizer),
            CappedEngine(llm_engine, sampling_params.max_tokens),
            images,
        )
        # Upstream reports the last turn alone, which ended well where the answer of the environment fills the context.
        output["truncated"] = output["truncated"] or not agent.is_done
        return output


class RewardExecutor(AgentExecutorBase):
    """Upstream's ``SingleTurnAgentExecutor`` with a reward for every response.

    Differs from upstream: a reward that raises is counted (``reward/error_frac`` is 1 for that response, its score 0,
    its reward ``reward_incorrect``) and logged, at most once a minute for each kind of error; the query is the prompt
    as it was given plus the decoded response; the tokens of the prompt are those of ``prompt_ids``; a response that
    hit the length limit gets the ``truncated_rewards`` of the reward function, if it gives any, and the score 0,
    unless ``reward_keep_truncated``. A module with ``make_reward_func(config)`` gets the settings of the run. A reward
    of None abstains: see ``_values``.
    """

    def __init__(self, remote_rm_url: list[str] | str | None, config: RewardConfig) -> None:
        self._config = config
        self._generator = SingleTurnAgentExecutor(None)
        # The samples of a prompt are requests of their own, which come one after another.
        self._prompt_ids = lru_cache(KEPT_PROMPTS)(prompt_ids)
        self._endpoints = [remote_rm_url] if isinstance(remote_rm_url, str) else list(remote_rm_url or [])
        self._function = None
        if self._endpoints and self._endpoints[0].endswith(".py"):
            module = load_reward_module(self._endpoints[0])
            shared_pool(config.reward_workers)  # starts with its first use
            make = getattr(module, "make_reward_func", None)
            self._function = module.reward_func if make is None else make(config)
        self._servers = SingleTurnAgentExecutor(self._endpoints if self._function is None else None)
        self._last_warning: dict[str, float] = {}

    async def execute(
        self, prompt, label, sampling_params, max_length: int, hf_tokenizer, llm_engine, images=None
    ) -> dict[str, Any]:
        """Return upstream's output of one response with its reward.

        Args:
            prompt: Text of the prompt.
            label: Label of the prompt, for the reward.
            sampling_params: vLLM's sampling parameters.
            max_length: Most tokens of prompt and response together.
            hf_tokenizer: The tokenizer of the policy.
            llm_engine: The vLLM engine that generates.
            images: Images of the prompt; None for text alone.

        Returns:
            Upstream's dict; if the run has a reward function or server, with ``reward`` and ``scores`` as floats and
            ``extra_logs``, name -> float.
        """
        tokenizer = PromptTokenizer(hf_tokenizer, self._prompt_ids)
        output = await self._generator.execute(
            prompt, label, sampling_params, max_length, tokenizer, llm_engine, images
        )
        if not self._endpoints:
            return output
        ((start, end),) = output["action_ranges"]
        response = hf_tokenizer.decode(output["observation_tokens"][start:end], skip_special_tokens=False)
        try:
            reward = await self._reward(prompt + response, prompt, label)
            output.update(_values(reward, output["truncated"] and not self._config.reward_keep_truncated))
        except Exception as error:  # reward code is the user's and servers fail in any way; it is counted, not lost
            self._warn(error, prompt, response, label)
            output.update(reward=self._config.reward_incorrect, scores=0.0, extra_logs={ERROR_METRIC: 1.0})
        return output

    async def _reward(self, query: str, prompt: str, label: Any) -> dict[str, Any]:
        if self._function is not None:
            return await asyncio.to_thread(self._function, [query], [prompt], [label])
        (reward,) = await self._servers._fetch_rewards_via_http([query], [prompt], [label])
        return reward

    def _warn(self, error: Exception, prompt: str, response: str, label: Any) -> None:
        kind = type(error).__name__
        now = time.monotonic()
        if now - self._last_warning.get(kind, -SECONDS_BETWEEN_WARNINGS) < SECONDS_BETWEEN_WARNINGS:
            return
        self._last_warning[kind] = now
        logger.warning(
            f"the reward failed with {kind}: {error}; prompt …{prompt[-100:]!r}, response {response[:200]!r}, "
            f"label {label!r}"
        )


def _values(reward: dict[str, Any], truncated: bool) -> dict[str, Any]:
    """Return ``reward``, ``scores`` and ``extra_logs`` of a reward result for one response.

    A reward of None abstains, also from a truncated response. The sample then has the reward 0, the score NaN and 1 in
    ``reward/abstained_frac``, by which the controller leaves it out of the statistics of its group. Raises ValueError
    for a result of another form, which is no abstention.
    """
    if not isinstance(reward, Mapping) or "rewards" not in reward:
        got = (
            f"the keys {', '.join(map(str, reward)) or 'none'}" if isinstance(reward, Mapping) else repr(reward)[:100]
        )
        raise ValueError(f"a reward function or server must return an object with the key 'rewards'; got {got}")
    value = _number(reward["rewards"])
    score = _number(reward.get("scores"))
    score = value if score is None else score
    abstains = value is None
    if truncated and reward.get("truncated_rewards") is not None:
        value = _number(reward["truncated_rewards"])
        score = 0.0
    logs = {name: _number(log) for name, log in (reward.get("extra_logs") or {}).items()}
    logs = {name: log for name, log in logs.items() if log is not None}
    if abstains:
        return {"reward": 0.0, "scores": math.nan, "extra_logs": {ERROR_METRIC: 0.0} | logs | {ABSTAINED: 1.0}}
    return {"reward": value, "scores": score, "extra_logs": {ERROR_METRIC: 0.0} | logs}


def _number(value: Any) -> float | None:
    """Return the one number in a tensor, array or list, or the number itself; None stays None.

    Raises ValueError for several numbers, for none and for one that is not finite.
    """
    value = value.tolist() if hasattr(value, "tolist") else value  # tensors of any type and device, arrays
    while isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) != 1:
            raise ValueError(f"a reward is one number, got {len(value)}")
        value = value[0].tolist() if hasattr(value[0], "tolist") else value[0]
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"a reward must be a number; got {repr(value)[:100]}") from error
    if not math.isfinite(number):
        raise ValueError(f"the reward is {number}")
    return number
