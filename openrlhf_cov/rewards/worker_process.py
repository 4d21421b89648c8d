"""One place of a worker pool, seen from the pool: it starts, uses, kills and replaces one process of ``worker.py``.

The process is a program of its own with one socket to it. Neither ``multiprocessing`` nor the pools built on it can
serve here: they run the caller's script again (spawn), or copy locks that other threads of the caller hold (fork).
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from openrlhf_cov.errors import RunStopped

# Run by its path: until it drops this folder it imports from here first, hence ``maths``, not ``math``.
WORKER_PROGRAM = Path(__file__).with_name("worker.py")

MAX_REPLY_BYTES = 1 << 20
# How long to wait for the end of a killed process; only one that is stuck in the kernel takes longer.
REAP_SECONDS = 5.0

# Endings of a process that come from its own work, while SIGKILL comes from a machine without memory.
CRASHES = tuple(-each for each in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL))

# Workers run side by side, so the threads of libraries in them would only compete for the cores.
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}


class PoolError(Exception):
    """A call that a worker did not answer with a value."""


class WorkerTimeout(PoolError):
    """The work took longer than the timeout of the call; its worker was killed."""


class WorkerDied(PoolError, RunStopped):
    """The worker could not start, ended during the call or broke the protocol; the message says which.

    A command that this reaches ends with its message: the machine cannot keep a process alive.
    """


class WorkerCrashed(WorkerDied):
    """The worker ended with one of ``CRASHES`` during the call."""


class WorkerError(PoolError):
    """The function raised; ``type_name`` and ``message`` are those of its exception."""

    def __init__(self, type_name: str, message: str) -> None:
        super().__init__(type_name, message)
        self.type_name = type_name
        self.message = message

    def __str__(self) -> str:
        return f"{self.type_name}: {self.message}"


class WorkerProcess:
    """One place of a pool: a process, and after its end the next one.

    All methods except ``retire`` are for one thread at a time.
    """

    def __init__(self, target: str, memory_bytes: int, file_bytes: int, startup_seconds: float) -> None:
        self._target = target
        self._memory_bytes = memory_bytes
        self._file_bytes = file_bytes
        self._startup_seconds = startup_seconds
        self._retired = False
        self._lock = threading.Lock()
        self._sockets: tuple[socket.socket, ...] = ()
        self._clear()

    def start(self) -> None:
        """Start a process without waiting until it is ready.

        Raises:
            WorkerDied: The pool was closed, or the process cannot be started.
        """
        with self._lock:
            if self._retired:
                raise WorkerDied("the worker pool was closed")
            try:
                self._sockets = socket.socketpair()
                self._process = self._spawn(*self._sockets)
            except OSError as error:
                self._clear()
                raise WorkerDied(f"no worker could be started: {error}") from error

    def is_ready(self) -> bool:
        """Return True if a call would not have to wait for the process to start up."""
        return self._process is not None and (self._ready or self._has_output())

    def work(self, request: bytes, timeout: float) -> Any:
        """Return the value that the process replies to a request. A process that is gone is replaced first.

        Args:
            request: One line of JSON with ``args`` and ``timeout``, as ``answer`` of ``worker.py`` reads it.
            timeout: Seconds that the work itself may take. Waiting for a new process to be ready does not count.

        Raises:
            WorkerTimeout: The work takes longer.
            WorkerDied: The process ends, does not start, or breaks the protocol.
            WorkerError: The function raises.
        """
        if not self.reusable or (self._ready and self._has_output()):
            self.stop()  # a call was broken off, or it died while it was idle, or it speaks unasked
        if self._process is None:
            self.start()
        self.reusable = False
        if not self._ready:
            self._await_ready()
        try:
            reply = self._exchange(request, time.monotonic() + timeout)
        except TimeoutError:
            raise WorkerTimeout(f"no answer within {timeout} seconds") from None
        match reply:
            case {"value": value}:
                self.reusable = True
                return value
            case {"error": [str(type_name), str(message)], "last": bool(last)}:
                self.reusable = not last
                raise WorkerError(type_name, message)
        raise WorkerDied("the worker broke the protocol")

    def stop(self) -> None:
        """Kill the process, if there is one. Not while another thread is in ``work``."""
        self._kill()
        self._clear()

    def retire(self) -> None:
        """Kill the process and never start another; the connection is left to the thread that reads from it."""
        with self._lock:
            self._retired = True
        self._kill()

    def forget(self) -> None:
        """Close the connection in a forked process, and leave the worker to the process that started it."""
        if self._process is not None:
            self._process.returncode = 0  # nothing to wait for
        self._lock = threading.Lock()
        self._clear()

    def _spawn(self, ours: socket.socket, theirs: socket.socket) -> subprocess.Popen[bytes]:
        arguments = (theirs.fileno(), self._target, self._memory_bytes, self._file_bytes, self._startup_seconds)
        with theirs:
            return subprocess.Popen(
                [sys.executable, str(WORKER_PROGRAM), *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                # A process group of its own, so that ``_kill`` also ends what the worker has started.
                start_new_session=True,
                env=os.environ | ONE_THREAD | {"PYTHONPATH": os.pathsep.join(map(str, sys.path))},
            )

    def _await_ready(self) -> None:
        try:
            # counted from here, not from the start: a replacement may have been ready, unread, for longer than that
            reply = self._exchange(b"", time.monotonic() + self._startup_seconds)
        except TimeoutError:
            raise WorkerDied(f"the worker was not ready within {self._startup_seconds} seconds") from None
        match reply:
            case {"ready": True}:
                self._ready = True
            case {"error": [str(type_name), str(message)]}:
                raise WorkerDied(f"the worker cannot import {self._target}: {type_name}: {message}")
            case _:
                raise WorkerDied("the worker broke the protocol")

    def _exchange(self, request: bytes, deadline: float) -> Any:
        """Return the next message of the process after ``request``.

        Raises:
            TimeoutError: The deadline has passed.
            WorkerDied: The process has ended, or replied with something else than a line of JSON.
        """
        connection = self._sockets[0]
        try:
            connection.settimeout(_until(deadline))
            connection.sendall(request, socket.MSG_NOSIGNAL)  # bounded in time: the process may not be reading
            return json.loads(_read_line(connection, deadline))
        except TimeoutError:
            raise
        except OSError:
            ending = self._kill()
            crashed = self._process is not None and self._process.returncode in CRASHES
            raise (WorkerCrashed if crashed else WorkerDied)(f"the worker {ending}") from None
        except (ValueError, RecursionError):
            raise WorkerDied(f"the worker did not reply with one line of JSON of up to {MAX_REPLY_BYTES} B") from None

    def _has_output(self) -> bool:
        """Return True if the process has sent something, or ended."""
        poll = select.poll()
        poll.register(self._sockets[0], select.POLLIN)
        return bool(poll.poll(0))

    def _kill(self) -> str:
        """Kill the process and its whole group, unless it has ended, and return how it ended."""
        with self._lock:
            process = self._process
            if process is None:
                return "is gone"
            if process.returncode is None:  # not reaped, so its id, which is the group's, cannot be another's by now
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(REAP_SECONDS)
            return _ending(process.returncode)

    def _clear(self) -> None:
        for end in self._sockets:
            end.close()
        self._sockets = ()
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False
        self.reusable = True


def _read_line(connection: socket.socket, deadline: float) -> bytes:
    """Return one line.

    Raises:
        TimeoutError: The deadline has passed.
        ConnectionError: The process is gone.
        ValueError: The line is too long.
    """
    line = b""
    while not line.endswith(b"\n"):
        connection.settimeout(_until(deadline))
        chunk = connection.recv(1 << 16)
        if not chunk:
            raise ConnectionError
        line += chunk
        if len(line) > MAX_REPLY_BYTES:
            raise ValueError
    return line


def _until(deadline: float) -> float:
    """Return the seconds until a deadline, more than 0. Raise TimeoutError if it has passed."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _ending(returncode: int | None) -> str:
    if returncode is None:
        return "does not end although it was killed"
    if returncode < 0:
        return f"was killed by signal {-returncode} ({signal.strsignal(-returncode)})"
    return f"ended with exit status {returncode}"
