"""Rollouts of consecutive steps, generated ahead of training by at most so many versions of the weights."""

import threading
import time
from contextlib import contextmanager

import pytest

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.trainer.records import Rollout
from openrlhf_cov.trainer.rollout.batch_stream import BatchStream
from openrlhf_cov.trainer.rollout.generation import EngineGroup

PATIENCE = 10.0


class Batches:
    """A sampler of ``count`` rollouts, each of which takes until ``release`` lets it end."""

    def __init__(self, count: int = 100, waits: bool = False, error: Exception | None = None) -> None:
        self.engines = EngineGroup([])
        self.count, self.waits, self.error = count, waits, error
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.threads: set[str] = set()
        self.permits = threading.Semaphore(0)

    def next_batch(self, version: int) -> Rollout | None:
        self.threads.add(threading.current_thread().name)
        self.begun.append(version)
        if self.waits:
            assert self.permits.acquire(timeout=PATIENCE)
        if len(self.begun) > self.count:
            if self.error is not None:
                raise self.error
            return None
        self.ended.append(version)
        return Rollout([], {}, seconds=0.0, pass_rate=None, sampler_state={"is_over": False}, version=version)

    def release(self, count: int = 1) -> None:
        self.permits.release(count)


def soon(is_true) -> bool:
    """True as soon as it is true; False if it does not become true."""
    end = time.monotonic() + PATIENCE
    while not is_true():
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True


def stays(value, seconds: float = 0.1):
    """The value after some time in which another thread could have changed it."""
    time.sleep(seconds)
    return value()


@contextmanager
def stream_of(sampler, max_staleness: int, first_step: int = 0):
    stream = BatchStream(sampler, max_staleness, first_step)
    try:
        yield stream
    finally:
        if isinstance(sampler, Batches):
            sampler.release(1000)
        stream.close()


@pytest.mark.parametrize("first_step", [0, 5])
@pytest.mark.parametrize("max_staleness", [0, 1, 2])
def test_every_rollout_is_as_old_as_it_may_be(max_staleness, first_step):
    # Weights are delivered after each step. The rollout of step n is begun with version n - max_staleness, but the
    # first ones with the weights that the engines have at the start.
    batches = Batches()
    steps = range(first_step, first_step + 6)
    with stream_of(batches, max_staleness, first_step) as stream:
        for step in steps:
            assert stream.next(step).version == max(first_step, step - max_staleness)
            if max_staleness:
                # the next one is begun, and no other, before new weights are delivered
                assert soon(lambda step=step: len(batches.begun) == step + max_staleness + 1 - first_step)
            stream.delivered(step + 1)
    assert batches.threads == ({"MainThread"} if max_staleness == 0 else {"rollouts"})


@pytest.mark.slow
@pytest.mark.parametrize("max_staleness", [1, 2])
def test_no_rollout_is_begun_too_early(max_staleness):
    batches = Batches()
    with stream_of(batches, max_staleness) as stream:
        assert stays(lambda: len(batches.begun)) == 0  # not before the first step
        stream.next(0)
        assert soon(lambda: len(batches.begun) == max_staleness + 1)
        for step in range(1, max_staleness + 1):
            stream.next(step)  # taking rollouts from the queue makes no room: the weights are still version 0
        assert stays(lambda: len(batches.begun)) == max_staleness + 1
        stream.delivered(1)
        assert soon(lambda: len(batches.begun) == max_staleness + 2)
        assert stays(lambda: len(batches.begun)) == max_staleness + 2
    assert batches.begun == [0] * (max_staleness + 1) + [1]


def test_without_staleness_nothing_is_generated_with_other_weights():
    with stream_of(Batches(), 0) as stream:
        stream.next(0)
        with pytest.raises(RuntimeError, match="the rollout of step 1 needs new weights"):
            stream.next(1)


@pytest.mark.parametrize("max_staleness", [0, 1, 2])
def test_the_end_of_the_data_is_the_end_for_every_later_step(max_staleness):
    with stream_of(Batches(count=2), max_staleness) as stream:
        for step in range(4):
            assert (stream.next(step) is None) is (step >= 2)
            stream.delivered(step + 1)


@pytest.mark.parametrize("max_staleness", [0, 1, 2])
def test_an_error_reaches_the_step_that_needs_the_rollout(max_staleness):
    with stream_of(Batches(count=1, error=RunStopped("no engine")), max_staleness) as stream:
        assert stream.next(0) is not None
        stream.delivered(1)
        for _ in range(2):
            with pytest.raises(RunStopped, match="no engine"):
                stream.next(1)


@pytest.mark.slow
@pytest.mark.parametrize("max_staleness", [1, 2])
def test_exclusive_waits_for_the_rollout_in_flight_and_lets_no_other_begin(max_staleness):
    batches = Batches(waits=True)
    with stream_of(batches, max_staleness) as stream:
        batches.release()
        stream.next(0)
        assert soon(lambda: len(batches.begun) == 2)
        inside = threading.Event()
        leave = threading.Event()

        def hold():
            with stream.exclusive():
                inside.set()
                stream.delivered(5)  # weights are no reason to begin now
                assert leave.wait(PATIENCE)

        holder = threading.Thread(target=hold)
        holder.start()
        assert not inside.wait(0.1)  # a rollout is under way
        batches.release(10)
        assert inside.wait(PATIENCE)
        assert batches.ended == [0, 0]
        assert stays(lambda: len(batches.begun)) == 2
        leave.set()
        holder.join()
        assert soon(lambda: len(batches.begun) > 2)
        assert batches.begun[2] == 5


def test_a_failed_block_lets_the_next_rollout_begin():
    batches = Batches()
    with stream_of(batches, 1) as stream:
        stream.next(0)
        with pytest.raises(ValueError, match="of the block"), stream.exclusive():
            raise ValueError("of the block")
        stream.delivered(1)
        assert stream.next(1) is not None
        assert soon(lambda: len(batches.begun) == 3)


def test_a_closed_stream_begins_nothing_and_gives_nothing():
    batches = Batches()
    stream = BatchStream(batches, 1)
    stream.next(0)
    assert soon(lambda: len(batches.ended) == 2)
    stream.close()
    stream.delivered(10)
    assert "rollouts" not in {thread.name for thread in threading.enumerate()}
    assert stream.next(1) is not None  # it was ready
    with pytest.raises(RuntimeError, match="closed"):
        stream.next(2)
    assert len(batches.begun) == 2
