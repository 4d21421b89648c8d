"""Ending a run between two steps: the driver hears the signal, the controller asks after every step."""

import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import ray
from openrlhf.utils.logging_utils import init_logger
from ray.experimental import internal_kv

from openrlhf_cov.errors import RunStopped, StoppedBySignal

logger = init_logger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True)
class Ending:
    """Why a run ends after a step, and the error that says so."""

    cause: str
    error: type[RunStopped]


def named_dead(places: Iterable[int]) -> str:
    """Return the words that name the engines at these places as dead."""
    return f"vLLM engine {', '.join(map(str, places))} died"


def ending(signum: int | None, dead_engines: Sequence[int], is_over: bool) -> Ending | None:
    """Return the reason to end the run after the last step; None if it goes on.

    A dead engine ends the run in any case, because the other engines cannot get the new weights.

    Args:
        signum: Number of the signal that asked the run to stop; None without one.
        dead_engines: Places of the vLLM engines that died.
        is_over: True if the last step was the last one of the run. A signal then has no effect: the run ends by
            itself, evaluated and with its model exported.
    """
    if dead_engines:
        return Ending(named_dead(dead_engines), RunStopped)
    if signum is not None and not is_over:
        return Ending(signal.Signals(signum).name, StoppedBySignal)
    return None


def request_stop(signum: int) -> None:
    """Ask the controller of this Ray job to end after the step in flight."""
    # Ray's store, because driver and controller are processes of their own, perhaps on different hosts.
    internal_kv._internal_kv_put(_key(), str(signum).encode())


def stop_requested() -> int | None:
    """Return the number of the signal that asked this Ray job to stop; None without one."""
    value = internal_kv._internal_kv_get(_key())
    return None if value is None else int(value)


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Let the first SIGTERM or Ctrl-C end the run after the step in flight, and the second one end it at once."""
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def handle(signum: int, frame: FrameType | None) -> None:
        for number in SIGNALS:
            signal.signal(number, before[number])
        # The former handlers are back, so a second signal has its usual effect.
        name = signal.Signals(signum).name
        logger.warning(f"{name}: the run ends after the step in flight; a second signal ends it at once")
        request_stop(signum)

    for number in SIGNALS:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number in SIGNALS:
            signal.signal(number, before[number])


def _key() -> bytes:
    # By job, because several jobs may share one Ray.
    return f"openrlhf_cov/stop/{ray.get_runtime_context().get_job_id()}".encode()
