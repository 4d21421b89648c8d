"""The program of one worker process of ``pool.py``, run by its path: worker.py FD TARGET MEMORY FILES STARTUP.

It answers over the socket FD, in one line of JSON each: first ``{"ready": true}``, then for every request
``{"args": [...], "timeout": seconds}`` either ``{"value": ...}`` or ``{"error": [type, message], "last": true or
false}``. Where the target cannot be imported, an error takes the place of the ready line. The process ends when the
pool has closed its end of the socket, be it by dying, and after an error that is the last.
"""

import importlib
import json
import math
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

# A worker ends itself this long after the timeout of a call, at which its pool would have killed it.
GRACE_SECONDS = 5.0

# Above Python's 1000, for deep expressions; recursion through C fits a stack of 8 MiB (at 10,000 it does not).
RECURSION_LIMIT = 3000

# Characters of an error message that are passed on; SymPy puts whole expressions into some.
MAX_MESSAGE = 500


def main() -> None:
    """Serve calls until the pool is gone."""
    descriptor, target, memory_bytes, file_bytes, startup_seconds = sys.argv[1:]
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # the directory of this file: its modules go by their full names
    reset_signals()
    sys.setrecursionlimit(RECURSION_LIMIT)
    fix_limit(resource.RLIMIT_AS, int(memory_bytes))
    fix_limit(resource.RLIMIT_CORE, 0)
    connection = socket.socket(fileno=int(descriptor))
    connection.set_inheritable(False)
    end_after(float(startup_seconds))
    try:
        function = load(target)
    except BaseException as error:  # an import can raise anything; the pool turns all of it into WorkerDied
        connection.sendall(encode({"error": describe(error), "last": True}))
        return
    # not before the import, which may have to write byte code: without it every start would compile SymPy anew
    fix_limit(resource.RLIMIT_FSIZE, int(file_bytes))
    sys.dont_write_bytecode = True
    disarm()
    connection.sendall(encode({"ready": True}))
    serve(connection, function)


def serve(connection: socket.socket, function: Callable[..., Any]) -> None:
    """Answer requests until the pool has closed the connection or memory has run out.

    Args:
        connection: The socket to the pool, which sends one line of JSON per request.
        function: The target of the worker.
    """
    for line in connection.makefile("rb"):
        if not line.endswith(b"\n"):
            return  # the pool died in the middle of a request
        reply, last = answer(function, line)
        connection.sendall(reply)
        if last:
            return
        disarm()


def answer(function: Callable[..., Any], line: bytes) -> tuple[bytes, bool]:
    """Return the reply to one request, and True if it is the last.

    Whatever the function raises becomes an error reply. After a MemoryError the state of the process is anyone's
    guess, so that one is the last.

    Args:
        function: The target of the worker.
        line: The request, one line of JSON with ``args`` and ``timeout`` in seconds.
    """
    try:
        request = json.loads(line)
        end_after(request["timeout"])
        return encode({"value": function(*request["args"])}), False
    except BaseException as error:  # the documented boundary: also SystemExit
        error.__traceback__ = None  # it holds the frames, and they may hold all the memory
        last = isinstance(error, MemoryError)
        return encode({"error": describe(error), "last": last}), last


def encode(message: dict[str, Any]) -> bytes:
    """Return one line of JSON.

    Raises:
        TypeError, RecursionError: JSON cannot hold the value.
    """
    return json.dumps(message).encode() + b"\n"


def describe(error: BaseException) -> tuple[str, str]:
    """Return the type and the message of an error."""
    try:
        return type(error).__name__, str(error)[:MAX_MESSAGE]
    except Exception:  # the error's own __str__ is foreign code
        return type(error).__name__, "(its message could not be formed)"


def load(target: str) -> Callable[..., Any]:
    """Return the function that "package.module:function" names."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def reset_signals() -> None:
    """Reset the signal handling inherited from the thread that started this process, and ignore Ctrl-C.

    The process of the pool handles Ctrl-C and ends its workers.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def end_after(seconds: float) -> None:
    """Have the kernel end this process ``seconds`` and a grace from now.

    That is for a worker whose pool has died during a call. The alarm also ends one that waits, the limit of CPU time
    also one that has switched off the alarm.
    """
    seconds += GRACE_SECONDS
    signal.setitimer(signal.ITIMER_REAL, seconds)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (at_most(hard, math.ceil(time.process_time() + seconds)), hard))


def disarm() -> None:
    """Wait as long as it takes: the alarm of ``end_after`` is off. CPU time does not pass while waiting."""
    signal.setitimer(signal.ITIMER_REAL, 0)


def fix_limit(kind: int, value: int) -> None:
    """Set the soft and the hard limit of a resource. A lower hard limit stays as it is.

    Args:
        kind: A constant of ``resource``, such as ``RLIMIT_AS``.
        value: The limit, in the unit of the resource.
    """
    value = at_most(resource.getrlimit(kind)[1], value)
    resource.setrlimit(kind, (value, value))


def at_most(hard: int, value: int) -> int:
    """Return a value, but no more than a hard limit.

    Args:
        hard: The hard limit; ``resource.RLIM_INFINITY`` for none.
        value: The wanted value, in the same unit.
    """
    return value if hard == resource.RLIM_INFINITY else min(value, hard)


if __name__ == "__main__":
    try:
        main()
    finally:
        os._exit(1)  # threads that the target left behind must not keep the process
