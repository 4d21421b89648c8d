"""Warm worker processes that can be killed: a call on hostile input may hang, crash or eat memory, its caller not."""

import atexit
import json
import logging
import math
import os
import threading
import weakref
from collections import deque
from typing import Any

from openrlhf_cov.rewards.worker_process import (
    PoolError,
    WorkerCrashed,
    WorkerDied,
    WorkerError,
    WorkerProcess,
    WorkerTimeout,
)

__all__ = ["PoolError", "WorkerCrashed", "WorkerDied", "WorkerError", "WorkerPool", "WorkerTimeout", "shared_pool"]

logger = logging.getLogger(__name__)

# Processes of ``shared_pool``; one that has imported SymPy holds about 50 MB.
DEFAULT_WORKERS = 2

COMPARE_TARGET = "openrlhf_cov.rewards.maths.symbolic:compare_texts"
# It has processes of its own: importing Math-Verify takes seconds, which no call of a strict run should pay for.
SECOND_OPINION_TARGET = "openrlhf_cov.rewards.maths.second_opinion:accepts"


class WorkerPool:
    """``size`` processes that each run ``target`` for one call at a time, from any thread of any process.

    ``target`` is "package.module:function", found where this process finds it; the function takes and returns what
    JSON can hold. All workers start at the first call. One that is killed or dies is replaced at once, and the call
    that takes the replacement waits for it to be ready. A process forked from this one gets workers of its own.

    ``memory_bytes`` limits the address space of each worker, ``file_bytes`` each file that it writes; one that is not
    ready within ``startup_seconds`` counts as dead.

    Raises:
        ValueError: ``target`` has another form, or ``size`` is below 1.
    """

    def __init__(
        self,
        target: str,
        size: int,
        *,
        memory_bytes: int = 1 << 30,
        file_bytes: int = 0,
        startup_seconds: float = 120.0,
    ) -> None:
        if not all(target.partition(":")):
            raise ValueError(f'target must be "package.module:function", got {target!r}')
        if size < 1:
            raise ValueError(f"size must be at least 1, got {size}")
        self.size = size
        self._workers = [WorkerProcess(target, memory_bytes, file_bytes, startup_seconds) for _ in range(size)]
        self._closed = False
        self._reset()
        _pools.add(self)

    def call(self, *args: Any, timeout: float, wait: float | None = None) -> Any:
        """Return the value of ``target(*args)``.

        A call waits for a free worker, each of which is busy for a bounded time.

        Args:
            args: Arguments that JSON can hold.
            timeout: Seconds that the work itself may take.
            wait: Seconds to wait for a free worker; None to wait for as long as it takes.

        Raises:
            WorkerTimeout: The work takes longer, or no worker becomes free.
            WorkerDied: The worker ends or does not start.
            WorkerError: The function raises.
            TypeError: JSON cannot hold ``args``.
            ValueError: ``timeout`` is not positive and finite.
            RuntimeError: The pool is closed.
        """
        if not 0 < timeout < math.inf:
            raise ValueError(f"timeout must be positive and finite, got {timeout}")
        # Before a worker is taken, so that arguments which JSON cannot hold cost none.
        request = json.dumps({"args": args, "timeout": timeout}).encode() + b"\n"
        worker = self._take(wait)
        try:
            return worker.work(request, timeout)
        finally:
            self._give_back(worker)

    def close(self) -> None:
        """Kill all workers; calls in progress end with WorkerDied. Closing again does nothing."""
        with self._changed:
            self._closed = True
            idle = self._idle
            self._idle = []
            self._changed.notify_all()
        for worker in self._workers:
            worker.retire()
        for worker in idle:
            worker.stop()  # a busy one is stopped by the thread that reads from it

    @property
    def closed(self) -> bool:
        """True after ``close``."""
        return self._closed

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self, wait: float | None) -> WorkerProcess:
        """Return the next free worker, a ready one if there is one. Callers are served in the order of their calls."""
        ticket = object()
        with self._changed:
            self._queue.append(ticket)
            try:
                # The queue keeps the order of the callers, which a condition does not.
                turn = lambda: self._closed or (self._idle and self._queue[0] is ticket)  # noqa: E731
                if not self._changed.wait_for(turn, wait):
                    raise WorkerTimeout(f"no worker was free within {wait:g} s")
                if self._closed:
                    raise RuntimeError("the worker pool is closed")
                if not self._started:
                    self._started = True
                    for worker in self._workers:
                        _warm_up(worker)
                worker = next((worker for worker in self._idle if worker.is_ready()), self._idle[0])
                self._idle.remove(worker)
                return worker
            finally:
                self._queue.remove(ticket)
                self._changed.notify_all()

    def _give_back(self, worker: WorkerProcess) -> None:
        try:
            if not worker.reusable:
                worker.stop()
                _warm_up(worker)
        finally:
            with self._changed:
                if self._closed:
                    worker.stop()
                else:
                    self._idle.append(worker)
                    self._changed.notify_all()

    def _reset(self) -> None:
        """Set the pool to the state before its first call, in which a forked process also begins."""
        self._changed = threading.Condition()
        self._queue: deque[object] = deque()
        self._idle = [] if self._closed else list(self._workers)
        self._started = False

    def forget(self) -> None:
        """Start anew in a forked process, and leave the workers to the process that started them."""
        for worker in self._workers:
            worker.forget()
        self._reset()


def _warm_up(worker: WorkerProcess) -> None:
    """Start a worker before it is needed; one that cannot be started is tried again by the call that needs it."""
    try:
        worker.start()
    except WorkerDied as error:
        logger.warning("%s", error)


_pools: weakref.WeakSet[WorkerPool] = weakref.WeakSet()
_shared: dict[str, WorkerPool] = {}
_shared_lock = threading.Lock()


def shared_pool(size: int | None = None, target: str = COMPARE_TARGET, **limits: Any) -> WorkerPool:
    """Return the one pool of this process for a target, which the first call makes.

    Args:
        size: Number of workers; None for as many as the pool that compares answers has, or ``DEFAULT_WORKERS``.
        target: The function that the workers run, as "package.module:function".
        limits: Further arguments of ``WorkerPool``, for a pool that is made.

    Raises:
        ValueError: The pool exists already and has another number of workers.
    """
    with _shared_lock:
        pool = _shared.get(target)
        if pool is None or pool.closed:
            first = _shared.get(COMPARE_TARGET)
            default = DEFAULT_WORKERS if first is None or first.closed else first.size
            pool = _shared[target] = WorkerPool(target, default if size is None else size, **limits)
        elif size not in (None, pool.size):
            raise ValueError(f"the shared pool has {pool.size} workers already, asked for {size}")
        return pool


def _close_all() -> None:
    for pool in list(_pools):
        pool.close()


def _after_fork_in_child() -> None:
    """Let go of the workers of the other process, and of locks that its other threads may have held."""
    global _shared_lock
    _shared_lock = threading.Lock()
    for pool in list(_pools):
        pool.forget()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_after_fork_in_child)
