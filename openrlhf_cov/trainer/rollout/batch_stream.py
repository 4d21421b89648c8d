"""The stream of rollouts that the training loop reads: when a rollout is begun, and by which thread."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Condition, Thread
from typing import Any, Protocol

from openrlhf_cov.trainer.records import Group, Rollout
from openrlhf_cov.trainer.rollout.generation import EngineGroup

# Seconds that `BatchStream.close` waits for the end of its thread, which finishes a batch that it has begun.
CLOSING_SECONDS = 5.0


# Is called with the groups that a rollout has so far, in its order.
Watch = Callable[[Sequence[Group]], None]


class RolloutSource(Protocol):
    """Makes the rollouts of a run, one after the other."""

    # The vLLM engines; an evaluation shares them.
    engines: EngineGroup

    def next_batch(self, version: int) -> Rollout | None:
        """Return the next rollout, made with weights of this version; None if there is none."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the ``sampler_state`` of a rollout."""


class WatchableSource(RolloutSource, Protocol):
    """A source that shows a rollout while it is made: ``Sampler``, or ``RecordedSampler`` with recorded rollouts."""

    def next_batch(self, version: int, watch: Watch | None = None) -> Rollout | None:
        """Return the next rollout as ``RolloutSource`` does, and tell ``watch`` which groups it has so far."""


class BatchStream:
    """The rollouts of consecutive steps, generated at most ``max_staleness`` versions of the weights ahead.

    The policy of step n has the weights of version n. The rollout of step n may be begun when the engines have the
    weights of version ``n - max_staleness`` or newer. With 0 a rollout is generated when it is asked for, with the
    weights that it trains. Above 0 a thread generates rollouts while the policy trains; it begins with the first call
    of ``next``.

    Args:
        sampler: Makes the rollouts.
        max_staleness: See ``max_staleness_of``.
        first_step: Number of the first step, and the version of the weights that the engines have before it.
    """

    def __init__(self, sampler: RolloutSource, max_staleness: int, first_step: int = 0) -> None:
        self.sampler = sampler
        self.max_staleness = max_staleness
        self._thread: Thread | None = None
        # All fields below belong to both threads; a thread that reads or changes them holds this condition.
        self._changed = Condition()
        # Versions and steps share one count: the policy of step n has the weights of version n.
        self._version = first_step
        # Number of the step whose rollout is begun next.
        self._step_to_begin = first_step
        self._ready: deque[Rollout | None] = deque()
        self._error: BaseException | None = None
        self._generates = False
        # Number of blocks of `exclusive` that keep the next rollout from beginning.
        self._holds = 0
        self._is_closed = False

    @property
    def engines(self) -> EngineGroup:
        """The engines of the sampler."""
        return self.sampler.engines

    def next(self, step: int) -> Rollout | None:
        """Return the rollout of a step; None if there is none, and then for every later step.

        Raises:
            RunStopped: What the sampler raises, also in the thread.
            RuntimeError: The engines have weights that are too old for a step that is generated here.
        """
        if self.max_staleness == 0:
            if step != self._version:
                raise RuntimeError(
                    f"the rollout of step {step} needs new weights; the engines have those of {self._version}"
                )
            return self.sampler.next_batch(self._version)
        if self._thread is None:
            self._thread = Thread(target=self._fill, name="rollouts", daemon=True)
            self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._error or self._is_closed)
            if self._ready:
                if self._ready[0] is None:  # the end of the data stays in the queue
                    return None
                return self._ready.popleft()
            raise self._error or RuntimeError("the stream of rollouts is closed")

    def delivered(self, version: int) -> None:
        """Say that the engines have the weights of this version."""
        with self._changed:
            self._version = version
            self._changed.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Wait for the rollout that is being generated, and let no other one begin inside of the block."""
        with self._changed:
            self._holds += 1
            self._changed.wait_for(lambda: not self._generates)
        try:
            yield
        finally:
            with self._changed:
                self._holds -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """End the thread. Wait some seconds for a rollout that was begun; after that the thread is abandoned."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(CLOSING_SECONDS)

    def _may_begin(self) -> bool:
        return not self._holds and self._step_to_begin - self._version <= self.max_staleness

    def _fill(self) -> None:
        """Generate rollouts until there is no other one, or until an error, which ``next`` raises."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or self._may_begin())
                if self._is_closed:
                    return
                # The version at the beginning counts, also where the engines get new weights before the end
                # (--train.partial_rollout_enable).
                version = self._version
                self._step_to_begin += 1
                self._generates = True
            rollout: Rollout | None = None
            error: BaseException | None = None
            try:
                rollout = self.sampler.next_batch(version)
            except BaseException as raised:  # of any kind: the thread that trains would wait for ever
                error = raised
            with self._changed:
                self._generates = False
                self._error = error
                if error is None:
                    self._ready.append(rollout)
                self._changed.notify_all()
            if rollout is None:
                return
