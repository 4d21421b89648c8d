"""The collector rests while a process imports, and never for good."""

import gc

import pytest

from openrlhf_cov.utils import garbage_collection


@pytest.fixture(autouse=True)
def collects():
    """The collector works, and looks at all objects, before and after each test."""
    gc.enable()  # a command that an earlier test ran may have paused it
    gc.unfreeze()  # the tests that were collected are frozen
    yield
    gc.enable()
    gc.unfreeze()


@pytest.mark.slow
def test_what_was_there_is_not_looked_at_again():
    before = gc.get_freeze_count()
    garbage_collection.pause()
    garbage_collection.resume()
    assert gc.get_freeze_count() > before + 10_000  # pytest alone has more


def test_a_process_that_never_paused_keeps_its_objects_in_sight():
    garbage_collection.resume()
    assert gc.get_freeze_count() == 0


def test_a_process_that_is_not_told_collects_again(monkeypatch):
    timers = []

    class Timer:
        def __init__(self, seconds, function):
            timers.append((seconds, function, self))

        def start(self):
            self.started = True

    monkeypatch.setattr(garbage_collection.threading, "Timer", Timer)
    garbage_collection.pause()
    ((seconds, function, timer),) = timers
    assert (seconds, timer.daemon, timer.started) == (garbage_collection.LONGEST, True, True)
    function()
    assert gc.isenabled()
