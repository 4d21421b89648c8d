"""A machine that cannot keep a grading process alive says nothing about an answer: no grade is given."""

import contextlib
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from openrlhf_cov.config import RewardConfig
from openrlhf_cov.rewards import worker_process
from openrlhf_cov.rewards.maths import grading
from openrlhf_cov.rewards.maths.grading import grade
from openrlhf_cov.rewards.pool import WorkerDied, WorkerError, shared_pool
from openrlhf_cov.rewards.reward_func import make_reward_func

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_shared_pool")]

RIGHT = (r"\boxed{\sqrt{8}}", r"2\sqrt{2}")


@contextlib.contextmanager
def no_descriptors():
    """No descriptor can be opened, so that neither a socket nor a process can be made."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_without_descriptors_there_is_no_grade():
    reward_func = make_reward_func(RewardConfig())
    with no_descriptors():
        with pytest.raises(WorkerDied, match="Too many open files"):
            grade(*RIGHT)
        with pytest.raises(WorkerDied):
            reward_func([RIGHT[0]], [""], [RIGHT[1]])
        assert grade(r"\boxed{8}", "8").correct  # needs no worker
    assert grade(*RIGHT).correct


@pytest.mark.parametrize("name", ["executable", "program"])
def test_without_a_program_there_is_no_grade(name, monkeypatch, tmp_path):
    if name == "executable":
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    else:
        monkeypatch.setattr(worker_process, "WORKER_PROGRAM", tmp_path / "worker.py")
    with pytest.raises(WorkerDied):
        grade(*RIGHT)


def kill_busy_workers(times: int) -> threading.Thread:
    """A thread that kills the worker of the call that is under way, and those that follow it."""

    def kill() -> None:
        for _ in range(times):
            killed = None
            while killed is None:
                time.sleep(0.05)
                busy = (child for child in psutil.Process().children() if child.cpu_times().user > 1.0)
                killed = next(busy, None)
            os.kill(killed.pid, signal.SIGKILL)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    return thread


@pytest.fixture
def endless(monkeypatch):
    """Comparisons of two texts that never end: the worker of each is busy until it is killed."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    monkeypatch.setattr(grading, "COMPARE_TARGET", "pool_targets:spin_for_ever")
    yield
    shared_pool(target="pool_targets:spin_for_ever").close()


def test_a_worker_that_is_killed_once_is_replaced_and_the_call_repeated(endless, monkeypatch):
    killer = kill_busy_workers(1)
    # The replacement works on the same call until the time is over.
    assert grade(*RIGHT, timeout=8).status == "timeout"
    killer.join(30)
    assert not killer.is_alive()
    monkeypatch.undo()
    assert grade(*RIGHT).correct


def test_a_worker_that_is_killed_twice_gives_no_grade(endless, monkeypatch):
    killer = kill_busy_workers(2)
    with pytest.raises(WorkerDied, match="killed by signal 9"):
        grade(*RIGHT, timeout=120)
    killer.join(30)
    assert not killer.is_alive()
    monkeypatch.undo()
    assert grade(*RIGHT).correct


class Pool:
    """Answers each call with the next of its outcomes."""

    def __init__(self, *outcomes):
        self.outcomes = list(outcomes)

    def call(self, *_, **__):
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ([WorkerDied("killed"), True], (True, "graded")),
        ([WorkerError("MemoryError", "")], (False, "unparsable")),  # the worker's own refusal
        ([WorkerDied("killed"), WorkerError("MemoryError", "")], (False, "unparsable")),
    ],
)
def test_one_dead_worker_is_forgiven(outcomes, expected, monkeypatch):
    pool = Pool(*outcomes)
    monkeypatch.setattr(grading, "shared_pool", lambda target: pool)
    result = grade(*RIGHT)
    assert (result.correct, result.status) == expected
    assert pool.outcomes == []
