"""Seconds of the phases of a training step."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Seconds of the phases of a step: ``timing/NAME``. A step begins when its clock is made."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._started = time.monotonic()

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Measure the body as a phase."""
        started = time.monotonic()
        yield
        self._seconds[phase] = time.monotonic() - started

    def seconds(self, generation: float) -> dict[str, float]:
        """Return the metrics of a step that ends now.

        Args:
            generation: Seconds in which its rollout was generated. With ``--train.async_enable`` this was during
                earlier steps, so ``timing/step_total`` is not the sum of the phases.
        """
        phases = {"generation": generation, **self._seconds, "step_total": time.monotonic() - self._started}
        return {f"timing/{phase}": seconds for phase, seconds in phases.items()}
