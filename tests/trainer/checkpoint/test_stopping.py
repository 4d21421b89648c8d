import os
import signal

import pytest

from openrlhf_cov.errors import RunStopped, StoppedBySignal
from openrlhf_cov.trainer.checkpoint import stopping
from openrlhf_cov.trainer.checkpoint.stopping import Ending, ending


class Store:
    """Ray's key-value store, in this process."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}

    def _internal_kv_put(self, key: bytes, value: bytes) -> None:
        self.values[key] = value

    def _internal_kv_get(self, key: bytes) -> bytes | None:
        return self.values.get(key)


@pytest.fixture(autouse=True)
def job(monkeypatch):
    """The job that this process belongs to; a list, so that a test can change it."""
    name = ["first"]
    monkeypatch.setattr(stopping, "internal_kv", Store())
    monkeypatch.setattr(stopping, "_key", lambda: name[0].encode())
    return name


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_is_noted_and_the_second_is_as_before(number):
    seen = []
    before = signal.signal(number, lambda *_: seen.append("before"))
    try:
        with stopping.stop_on_signals():
            assert stopping.stop_requested() is None
            os.kill(os.getpid(), number)
            assert stopping.stop_requested() == number
            assert seen == []
            os.kill(os.getpid(), number)
        assert seen == ["before"]
        os.kill(os.getpid(), number)
        assert seen == ["before"] * 2
    finally:
        signal.signal(number, before)


def test_another_job_of_the_same_ray_is_not_stopped(job):
    stopping.request_stop(signal.SIGTERM)
    job[0] = "second"
    assert stopping.stop_requested() is None


SIGTERM = Ending("SIGTERM", StoppedBySignal)


@pytest.mark.parametrize(
    ("signum", "dead", "is_over", "expected"),
    [
        (None, [], False, None),
        (None, [], True, None),
        (signal.SIGTERM, [], False, SIGTERM),
        (15, (), False, SIGTERM),
        (signal.SIGINT, [], False, Ending("SIGINT", StoppedBySignal)),
        (signal.SIGTERM, [], True, None),  # the last step was made: the run ends as finished
        (None, [1], False, Ending("vLLM engine 1 died", RunStopped)),
        (None, [0, 2], True, Ending("vLLM engine 0, 2 died", RunStopped)),  # its evaluation lacks the new weights
        (signal.SIGTERM, [1], False, Ending("vLLM engine 1 died", RunStopped)),  # status 1: somebody has to look
    ],
)
def test_what_ends_a_run_after_a_step(signum, dead, is_over, expected):
    assert ending(signum, dead, is_over) == expected
