"""Waiting for processes of others, on a host of any load: limits end a test that hangs, and nothing else."""

import time
from collections.abc import Callable, Iterable

import psutil

# Seconds after which a test is taken to hang. A wait ends as soon as its end is known.
HANGS = 1800.0


def wait_until(
    happened: Callable[[], object], what: str, *, still_possible: Callable[[], object] = lambda: True
) -> None:
    """Wait for a condition; AssertionError where ``still_possible`` fails first, or after ``HANGS`` seconds."""
    deadline = time.monotonic() + HANGS
    while not happened():
        # The condition may have come true just before the process ended.
        assert still_possible() or happened(), f"expected: {what}; it can no longer happen"
        assert time.monotonic() < deadline, f"expected within {HANGS:.0f} s: {what}"
        time.sleep(0.1)


def is_running(process: psutil.Process) -> bool:
    """Return True if a process lives. A zombie has ended: its parent has not asked for its status yet."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # also of a zombie
        return False


def command_line(process: psutil.Process) -> str:
    """Return the words of a process with spaces between; an empty text for one that has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def actors_of_engines(pid: int) -> list[psutil.Process]:
    """Return the processes of vLLM's engines under a process."""
    return [each for each in children_of(pid) if "ray::CovRolloutActor" in command_line(each)]


def children_of(pid: int, *, recursive: bool = True) -> list[psutil.Process]:
    """Return the living children of a process, or none if the process has ended."""
    try:
        found = psutil.Process(pid).children(recursive=recursive)
    except psutil.NoSuchProcess:
        return []
    return [each for each in found if is_running(each)]


def wait_for_end_of(processes: Iterable[psutil.Process]) -> None:
    """Wait until all of these processes have ended."""
    members = list(processes)

    def have_ended() -> bool:
        return not any(map(is_running, members))

    wait_until(have_ended, f"the processes {[each.pid for each in members]} end")


def kill(processes: Iterable[psutil.Process]) -> None:
    """Send SIGKILL to these processes and wait for their end; some of them may have ended already."""
    members = list(processes)
    for member in members:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            continue
    wait_for_end_of(members)
