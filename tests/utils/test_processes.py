"""The waiting of end-to-end tests (``helpers/processes.py``): what has ended, and when a wait is over."""

import os
import subprocess
import sys

import processes
import psutil
import pytest


@pytest.fixture
def zombie():
    """A process that has ended and whose status nobody has asked for."""
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    yield psutil.Process(child.pid)
    child.wait()


def test_a_zombie_has_ended(zombie):
    assert zombie.status() == psutil.STATUS_ZOMBIE
    assert not processes.is_running(zombie)
    assert processes.command_line(zombie) == ""
    assert zombie not in processes.children_of(os.getpid())
    processes.wait_for_end_of([zombie])
    processes.kill([zombie])


def test_a_process_that_is_gone_has_ended():
    child = subprocess.Popen(["sleep", "600"])
    process = psutil.Process(child.pid)
    try:
        assert process in processes.children_of(os.getpid())
        # For a moment after the exec the kernel has an empty command line.
        processes.wait_until(lambda: processes.command_line(process) == "sleep 600", "the command line of a sleep")
    finally:
        processes.kill([process])
        child.wait()
    assert not processes.is_running(process)
    assert processes.command_line(process) == ""
    assert processes.children_of(child.pid) == []
    processes.kill([process])


def test_a_wait_ends_when_its_condition_can_no_longer_come_true(monkeypatch):
    with pytest.raises(AssertionError, match="expected: a file; it can no longer happen"):
        processes.wait_until(lambda: False, "a file", still_possible=lambda: False)
    answers = iter([False, True, True])
    processes.wait_until(lambda: next(answers), "a file", still_possible=lambda: False)  # it came true at the end
    monkeypatch.setattr(processes, "HANGS", 0.0)
    with pytest.raises(AssertionError, match="expected within 0 s: a file"):
        processes.wait_until(lambda: False, "a file")
