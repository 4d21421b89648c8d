"""No process outlives the one that started it (Linux; elsewhere nothing happens)."""

import ctypes
import multiprocessing
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent(signum: int = signal.SIGKILL) -> None:
    """Have the kernel send this process ``signum`` when the thread that started it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signum)


def end_engine_with_actor() -> None:
    """End vLLM's core and workers with the process that started them, however that ended.

    This is a plug-in of vLLM, which calls it first in each of its processes. The signal is SIGKILL: a core that is
    told to terminate waits for its engine, which waits for others.
    """
    parent = multiprocessing.parent_process()
    if parent is None:  # the actor itself, or a server's command
        return
    die_with_parent()
    if not parent.is_alive():  # before the kernel was asked
        os._exit(1)
