"""The engine actor of a run, with methods by which a test looks into its process."""

import asyncio
import os
import time
from typing import Any

import psutil
import torch
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind

from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.trainer.ray.rollout_actor import CovRolloutActor


class ActorOfAnotherProcess(CovRolloutActor):
    """An engine whose scheduler and model have a process of their own, as on a GPU host."""

    async def __init__(self, *args: Any, **kwargs: Any) -> None:
        cpu_host.prepare_engine = lambda arguments, computing: None
        await super().__init__(*args, **kwargs)

    async def process(self) -> int:
        """Return the number of the actor's process."""
        return os.getpid()


class EngineActor(CovRolloutActor):
    """An engine on which a test acts from inside of its process."""

    async def process(self) -> tuple[int, list[str]]:
        """Return the number of the process, and the command lines of its children."""
        return os.getpid(), [" ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)]

    async def respond(self, prompt: list[int], tokens: int) -> list[int]:
        """Return the greedy response to a prompt, with as many tokens."""
        limits = {"max_tokens": tokens, "min_tokens": tokens, "temperature": 0.0}
        output = await self.generate(prompt, SamplingParams(output_kind=RequestOutputKind.FINAL_ONLY, **limits))
        return list(output.outputs[0].token_ids)

    async def response_of_slept(self, prompt: list[int]) -> None:
        """Put the engine to sleep while it generates, wake it, and wait for the response."""
        task = asyncio.create_task(self.respond(prompt, 50))
        while not self.get_num_unfinished_requests():
            await asyncio.sleep(0)
        await self.llm.sleep(level=0)
        await self.llm.wake_up(tags=["scheduling"])
        await asyncio.wait_for(task, 60)

    async def drawn(self, prompt: list[int], step: int, seed: int) -> tuple[list[int], float]:
        """Return a response without a seed of its own, and a random number that the process draws after it.

        Args:
            prompt: Tokens of the prompt.
            step: Number of the first step of the engine.
            seed: Seed that the process gets before, as by a reward function.
        """
        self.llm.engine_core.steps = step
        torch.manual_seed(seed)
        limits = {"max_tokens": 30, "min_tokens": 30}
        output = await self.generate(prompt, SamplingParams(output_kind=RequestOutputKind.FINAL_ONLY, **limits))
        return list(output.outputs[0].token_ids), torch.rand(()).item()

    async def give_up(self, prompt: list[int], tokens: int) -> int:
        """Ask for a response, give up when it has begun, and return the number of requests that are left."""
        scheduler = self.llm.engine_core.engine.engine_core.scheduler
        task = asyncio.create_task(self.respond(prompt, tokens))
        while not scheduler.running:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        return len(scheduler.requests)

    async def paused(self, prompt: list[int], tokens: int, seconds: float) -> tuple[bool, list[int]]:
        """Ask for a response of a paused engine; return whether it had come before the engine went on, and it."""
        task = asyncio.create_task(self.respond(prompt, tokens))
        while not self.get_num_unfinished_requests():
            await asyncio.sleep(0)
        await self.pause_generation()
        await asyncio.sleep(seconds)
        was_done = task.done()
        await self.resume_generation()
        return was_done, await task

    async def answers_meanwhile(self, seconds: float) -> int:
        """Return how often the actor could answer while the engine waited in a call, as for weights."""
        core: Any = self.llm.engine_core.engine.engine_core
        core.wait = time.sleep
        call = asyncio.create_task(self.llm.engine_core.call_utility_async("wait", seconds))
        answers = 0
        while not call.done():
            await self.check_health()
            await asyncio.sleep(seconds / 20)
            answers += 1
        return answers

    async def fail(self) -> None:
        """Make every later step of the engine fail."""
        core: Any = self.llm.engine_core.engine.engine_core

        def step() -> None:
            raise RuntimeError("out of order")

        core.step_fn = step
