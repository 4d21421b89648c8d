"""An asynchronous vLLM engine in one process: what ``cpu_host`` puts in the place of vLLM's client of another process.

vLLM's AsyncLLM keeps requests and responses in its own process, and starts another one for scheduler and model. That
keeps a GPU busy. On a CPU host both share the cores, and the other process imports everything once more, which takes
a quarter of the start of a small training, and serializes every token.
"""

import asyncio
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.multimodal.cache import MultiModalCacheMissError
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, FinishReason
from vllm.v1.engine.core_client import AsyncMPClient, BackgroundResources, InprocClient
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.executor import Executor

logger = init_logger(__name__)

# Turns of the event loop between two steps of the engine: a response passes vLLM's front end, the executor of the
# reward and the group of its prompt, and whoever waits for the group gets it.
TURNS = 4


class InProcessClient(AsyncMPClient):
    """The client of vLLM's AsyncLLM for scheduler and model in this process.

    A step of the engine runs in the event loop, between its other tasks: Python computes in one thread at a time, and
    a thread of the engine would lose time by changing turns with the loop after each operation of the model. The
    other calls (``call_utility_async``), which may wait for the processes that train, run in a thread, one at a time,
    while no step runs.

    The engine draws samples from a random state of its own, which rewards in this process do not change.

    Args:
        vllm_config: vLLM's configuration, without asynchronous scheduling: a call finds no step under way.
        executor_class: vLLM's executor of an engine that computes in the process of its scheduler.
        log_stats: True to collect vLLM's statistics.
    """

    def __init__(self, vllm_config: VllmConfig, executor_class: type[Executor], log_stats: bool) -> None:
        # AsyncMPClient's own __init__ starts the other process.
        self.vllm_config = vllm_config
        self.engine_ranks_managed = [0]
        self.engines_running = False
        self.resources = BackgroundResources(ctx=None)  # pyright: ignore[reportArgumentType]
        self.is_shut_down = False
        # vLLM seeds all generators of its process.
        of_python, of_numpy = random.getstate(), np.random.get_state()
        self.random_state = torch.get_rng_state()
        with self._own_random_state():
            self.engine = InprocClient(vllm_config, executor_class, log_stats)
        random.setstate(of_python)
        np.random.set_state(of_numpy)
        # Held by the step or the call that is under way.
        self.lock = asyncio.Lock()
        self.calls = ThreadPoolExecutor(1, "EngineCalls")
        # Set by everything after which the engine may have work, or outputs.
        self.changed = asyncio.Event()
        # Ends of requests outside of a step.
        self.ended: list[EngineCoreOutput] = []

    async def get_output_async(self) -> EngineCoreOutputs:
        """Return what the next steps of the engine give; wait while there is nothing to compute.

        Raises:
            EngineDeadError: A step failed. The cause is in the log.
        """
        scheduler = self.engine.engine_core.scheduler
        while True:
            self.changed.clear()
            if not scheduler.has_requests() and not self.ended:
                await self.changed.wait()
            if self.ended:
                ended, self.ended = self.ended, []
                return EngineCoreOutputs(outputs=ended)
            for _ in range(TURNS):
                await asyncio.sleep(0)
            async with self.lock:
                try:
                    with self._own_random_state():
                        outputs = self.engine.get_output()
                except Exception as error:
                    logger.exception("the engine failed in a step")
                    self.resources.engine_dead = True
                    raise EngineDeadError from error
            if outputs.outputs or outputs.scheduler_stats:
                return outputs

    async def add_request_async(self, request: EngineCoreRequest) -> None:
        """Give the engine a request, which its next step considers. One that it cannot take ends with an error."""
        self.ensure_alive()
        async with self.lock:
            try:
                self.engine.add_request(request)
            except Exception as error:
                logger.exception("the engine cannot take request %s", request.request_id)
                # The front end sends these images again with the next request.
                missing = error.mm_hashes if isinstance(error, MultiModalCacheMissError) else None
                self._end([request.request_id], FinishReason.ERROR, mm_cache_miss_hashes=missing)
        self.changed.set()

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        """End requests; the engine gives no more outputs of them."""
        if request_ids and not self.resources.engine_dead:
            async with self.lock:
                self.engine.abort_requests(request_ids)
            self.changed.set()

    async def call_utility_async(self, method: str, *args: Any) -> Any:
        """Return the result of a method of vLLM's EngineCore, which all other methods of the client call.

        A call goes on to its end where the task that waits for it is cancelled. Requests that it ends, as the mode
        "abort" of a pause does, are reported to the front end.
        """
        self.ensure_alive()
        return await asyncio.shield(self._call(getattr(self.engine.engine_core, method), *args))

    def shutdown(self, timeout: float | None = None) -> None:
        """End the engine; a call that waits for other processes is not waited for."""
        if not self.is_shut_down:
            self.is_shut_down = self.resources.engine_dead = True
            self.calls.shutdown(wait=False, cancel_futures=True)
            self.engine.shutdown(timeout)

    async def _call(self, method: Callable[..., Any], *args: Any) -> Any:
        # vLLM's interface of schedulers does not name the requests.
        scheduler: Any = self.engine.engine_core.scheduler
        async with self.lock:
            before = list(scheduler.requests)
            try:
                return await asyncio.get_running_loop().run_in_executor(self.calls, method, *args)
            finally:
                self._end([each for each in before if each not in scheduler.requests], FinishReason.ABORT)
                self.changed.set()

    def _end(self, request_ids: list[str], reason: FinishReason, **fields: Any) -> None:
        self.ended += [EngineCoreOutput(each, [], finish_reason=reason, **fields) for each in request_ids]

    @contextmanager
    def _own_random_state(self) -> Iterator[None]:
        """Let the body draw from the random state of the engine, and restore that of the process."""
        of_process = torch.get_rng_state()
        torch.set_rng_state(self.random_state)
        try:
            yield
        finally:
            self.random_state = torch.get_rng_state()
            torch.set_rng_state(of_process)
