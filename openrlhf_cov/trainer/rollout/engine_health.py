"""Find vLLM engines that died or did not start, because whoever sends them weights would wait for them."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Timer
from typing import Any

import ray
from openrlhf.utils.logging_utils import init_logger
from ray.exceptions import RayActorError, RayError
from vllm.v1.engine.exceptions import EngineDeadError

from openrlhf_cov.errors import RunStopped

logger = init_logger(__name__)

ANSWER_SECONDS = 60.0


def is_death(error: RayError) -> bool:
    """Return True if a call failed because the process of the engine died, or vLLM's core behind it."""
    return isinstance(error, RayActorError) or isinstance(getattr(error, "cause", None), EngineDeadError)


def wait_for_start(engines: Sequence[Any], calls: Sequence[Any] = ()) -> None:
    """Wait until all engines have started, and for calls of Ray that need them.

    A process group forms when all of its members have joined. A call that joins one would wait without end for an
    engine that cannot start, so the first failure ends the wait.

    Args:
        engines: Handles of the engines.
        calls: Ray references of the calls.

    Raises:
        RunStopped: An engine did not start.
        RayError: A call failed.
    """
    starts = {engine.check_health.remote(): place for place, engine in enumerate(engines)}
    pending = [*calls, *starts]
    while pending:
        ready, pending = ray.wait(pending, num_returns=1)
        for answer in ready:
            try:
                ray.get(answer)
            except RayError as error:
                if answer not in starts:
                    raise
                lines = str(error).strip().splitlines()
                raise RunStopped(
                    f"vLLM engine {starts[answer]} did not start ({lines[-1].strip()}); look for the cause in its log "
                    "above; if memory is short, change --vllm.gpu_memory_utilization or lower --data.max_len"
                ) from error


def dead_engines(engines: list[Any]) -> list[int]:
    """Return the places of the engines that died; one without an answer in ``ANSWER_SECONDS`` counts as busy."""
    answers = [engine.check_health.remote() for engine in engines]
    ray.wait(answers, num_returns=len(answers), timeout=ANSWER_SECONDS)
    return [place for place, answer in enumerate(answers) if _tells_of_death(answer)]


def _tells_of_death(answer: Any) -> bool:
    try:
        ray.get(answer, timeout=0)
    except RayError as error:  # also that there is no answer yet
        return is_death(error)
    return False


def end_unanswered(engines: list[Any], method: str, seconds: float) -> list[int]:
    """Call a method of every engine, end the engines that do not answer in time, and return their places.

    Args:
        engines: Handles of the engines.
        method: Name of a method without arguments.
        seconds: Time in which all engines have to answer; 0 waits without limit.

    Raises:
        RayError: The call failed in an engine that answered.
    """
    answers = [getattr(engine, method).remote() for engine in engines]
    ready, _ = ray.wait(answers, num_returns=len(answers), timeout=seconds or None)
    hung = [place for place, answer in enumerate(answers) if answer not in ready]
    for place in hung:
        ray.kill(engines[place])
    if hung:
        logger.warning(
            f"{len(hung)} vLLM engines did not answer {method} within {seconds:g} s (--vllm.no_progress_timeout) and "
            "were ended"
        )
    ray.get(ready)
    return hung


@contextmanager
def limited_transfer(engines: Iterable[Any], actors: Iterable[Any], seconds: float) -> Iterator[None]:
    """End engines and training actors if the body takes too long.

    An actor that sends weights waits in a collective for an engine that hangs, and nothing but its end frees it.

    Args:
        engines: Handles of the engines that receive the weights.
        actors: Handles of the training actors that send them.
        seconds: Longest time of the body; 0 sets no limit.

    Raises:
        RunStopped: The time ran out.
    """
    if not seconds:
        yield
        return
    ran_out = Event()

    def end() -> None:
        ran_out.set()
        for handle in (*engines, *actors):
            ray.kill(handle)

    too_long = RunStopped(
        f"the vLLM engines did not take the new weights within {seconds:g} s (--vllm.no_progress_timeout) and "
        "were ended; look for the cause in their logs above, then continue with --ckpt.load_enable"
    )
    # A thread of its own, because the block waits for Ray without a limit.
    timer = Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except RayError as error:
        if not ran_out.is_set():
            raise
        raise too_long from error
    finally:
        timer.cancel()
    # The weight check takes an engine that was ended for one that died, and says nothing.
    if ran_out.is_set():
        raise too_long
