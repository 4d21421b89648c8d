"""An asynchronous vLLM engine that computes in the process of its front end, for hosts without a GPU.

vLLM's AsyncLLM, the front end, starts another process for the scheduler and the model. That keeps a GPU busy while
requests and responses are handled. On a CPU host both share the cores, and the other process costs memory and time:
it imports everything once more, and every token is serialized. ``cpu_host.prepare_engine`` puts ``InProcessClient`` in
its place.
"""

import asyncio
import queue
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
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

from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.utils.seeds import seed_of

logger = init_logger(__name__)

# Turns of the event loop between two steps of the engine: a response passes vLLM's front end, the executor of the
# reward and the group of its prompt, and whoever waits for the group gets it.
TURNS = 4


class InProcessClient(AsyncMPClient):
    """The client of vLLM's AsyncLLM for scheduler and model in this process.

    A step of the engine runs in the event loop, between its other tasks. Python computes in one thread at a time, so a
    thread for the steps would only lose time whenever it takes turns with the loop. The other calls
    (``call_utility_async``) may wait for the processes that train. They run in a thread, one at a time, while no step
    runs.

    Every step draws from a random state of its own, which follows from the seed of the engine and the number of the
    step. A reward in this process that seeds torch changes at most the draws of the step that is under way.

    Args:
        vllm_config: vLLM's configuration, without asynchronous scheduling: a call finds no step under way.
        executor_class: vLLM's executor of an engine that computes in the process of its scheduler.
        log_stats: True to collect vLLM's statistics.
        calls_in_one_thread: True if the thread of the calls starts no helpers of OpenMP.
    """

    def __init__(
        self, vllm_config: VllmConfig, executor_class: type[Executor], log_stats: bool, *, calls_in_one_thread: bool
    ) -> None:
        # AsyncMPClient's own __init__ starts the other process.
        self.vllm_config = vllm_config
        self.engine_ranks_managed = [0]
        self.engines_running = False
        self.resources = BackgroundResources(ctx=None)  # pyright: ignore[reportArgumentType]
        self.steps = 0
        # vLLM seeds all generators of its process.
        of_python, of_numpy, of_torch = random.getstate(), np.random.get_state(), torch.get_rng_state()
        self.engine = InprocClient(vllm_config, executor_class, log_stats)
        random.setstate(of_python)
        np.random.set_state(of_numpy)
        torch.set_rng_state(of_torch)
        # Held by the step or the call that is under way.
        self.lock = asyncio.Lock()
        # Calls and the futures of their results, for the thread that carries them out. It does not keep the process
        # from ending where a call waits for another one.
        self.calls: queue.SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        arguments = (calls_in_one_thread,)
        threading.Thread(target=self._carry_out_calls, args=arguments, name="EngineCalls", daemon=True).start()
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
                    with self._random_state_of_step():
                        outputs = self.engine.get_output()
                except Exception as error:
                    logger.exception("the engine failed in a step")
                    self.resources.engine_dead = True
                    raise EngineDeadError from error
            if outputs.outputs or outputs.scheduler_stats:
                return outputs

    async def add_request_async(self, request: EngineCoreRequest) -> None:
        """Give the engine a request, which its next step considers. One that it cannot take ends with an error."""
        async with self.lock:
            self.ensure_alive()
            try:
                self.engine.add_request(request)
            except Exception as error:
                logger.exception("the engine cannot take request %s", request.request_id)
                self.engine.abort_requests([request.request_id])
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
        return await asyncio.shield(self._call(getattr(self.engine.engine_core, method), *args))

    def shutdown(self, timeout: float | None = None) -> None:
        """Let the engine take no more requests. It ends with its process, and so does its memory.

        vLLM's own shutdown would look through all objects of the process for those of the engine, for over a second.
        """
        self.resources.engine_dead = True

    async def _call(self, method: Callable[..., Any], *args: Any) -> Any:
        # vLLM's interface of schedulers does not name the requests.
        scheduler: Any = self.engine.engine_core.scheduler
        async with self.lock:
            self.ensure_alive()
            unfinished = [each for each in scheduler.requests.values() if not each.is_finished()]
            result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self.calls.put((result, partial(method, *args)))
            try:
                return await result
            finally:
                self._end([each.request_id for each in unfinished if each.is_finished()], FinishReason.ABORT)
                self.changed.set()

    def _carry_out_calls(self, in_one_thread: bool) -> None:
        if in_one_thread:
            cpu_host.compute_in_one_thread()
        while True:
            result, call = self.calls.get()
            try:
                value = call()
            except Exception as error:
                result.get_loop().call_soon_threadsafe(result.set_exception, error)
            else:
                result.get_loop().call_soon_threadsafe(result.set_result, value)

    def _end(self, request_ids: list[str], reason: FinishReason, **fields: Any) -> None:
        self.ended += [EngineCoreOutput(each, [], finish_reason=reason, **fields) for each in request_ids]

    @contextmanager
    def _random_state_of_step(self) -> Iterator[None]:
        """Let the body draw from the random state of the next step, and restore that of the process."""
        of_process = torch.get_rng_state()
        torch.default_generator.manual_seed(seed_of(self.vllm_config.model_config.seed, self.steps))
        self.steps += 1
        try:
            yield
        finally:
            torch.set_rng_state(of_process)
