"""Seconds of the phases of a training step."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Seconds of the phases of a step: ``timing/NAME``."""

    def __init__(self, generation: float) -> None:
        self._seconds = {"generation": generation}
        self._started = time.monotonic()

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Measure the body as a phase."""
        started = time.monotonic()
        yield
        self._seconds[phase] = time.monotonic() - started

    def seconds(self) -> dict[str, float]:
        """Return the metrics; ``timing/step_total`` is from the beginning of the step on, with its generation."""
        total = time.monotonic() - self._started + self._seconds["generation"]
        return {f"timing/{phase}": seconds for phase, seconds in self._seconds.items()} | {"timing/step_total": total}
