"""An asynchronous vLLM engine in one process: what ``cpu_host`` puts in the place of vLLM's client of another process.

vLLM's AsyncLLM keeps requests and responses in its own process, and starts another one for scheduler and model. That
keeps a GPU busy. On a CPU host both share the cores, and the other process imports everything once more, which takes
a quarter of the start of a small training, and serializes every token.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.v1.engine import EngineCoreOutputs, EngineCoreRequest
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
        self.engine = InprocClient(vllm_config, executor_class, log_stats)
        # Held by the step or the call that is under way.
        self.lock = asyncio.Lock()
        self.calls = ThreadPoolExecutor(1, "EngineCalls")
        # Set by everything after which the engine may have work.
        self.changed = asyncio.Event()

    async def get_output_async(self) -> EngineCoreOutputs:
        """Return what the next steps of the engine give; wait while there is nothing to compute.

        Raises:
            EngineDeadError: A step failed. The cause is in the log.
        """
        scheduler = self.engine.engine_core.scheduler
        while True:
            self.changed.clear()
            if not scheduler.has_requests():
                await self.changed.wait()
            for _ in range(TURNS):
                await asyncio.sleep(0)
            async with self.lock:
                try:
                    outputs = self.engine.get_output()
                except Exception as error:
                    logger.exception("the engine failed in a step")
                    self.resources.engine_dead = True
                    raise EngineDeadError from error
            if outputs.outputs or outputs.scheduler_stats:
                return outputs

    async def add_request_async(self, request: EngineCoreRequest) -> None:
        """Give the engine a request, which its next step considers."""
        self.ensure_alive()
        await self._between_steps(self.engine.add_request, request)

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        """End requests; the engine gives no more outputs of them."""
        if request_ids and not self.resources.engine_dead:
            await self._between_steps(self.engine.abort_requests, request_ids)

    async def call_utility_async(self, method: str, *args: Any) -> Any:
        """Return the result of a method of vLLM's EngineCore, which all other methods of the client call."""
        self.ensure_alive()
        call: Callable[..., Any] = getattr(self.engine.engine_core, method)
        async with self.lock:
            result = await asyncio.get_running_loop().run_in_executor(self.calls, call, *args)
        self.changed.set()
        return result

    def shutdown(self, timeout: float | None = None) -> None:
        """End the engine."""
        self.calls.shutdown()
        self.engine.shutdown(timeout)

    async def _between_steps(self, call: Callable[..., Any], *args: Any) -> None:
        """Call a method that changes what the engine has to do, in the event loop."""
        async with self.lock:
            call(*args)
        self.changed.set()
