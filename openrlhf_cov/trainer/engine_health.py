"""Which vLLM engines died. They are asked before they get new weights: a broadcast would wait for a dead one."""

from typing import Any

import ray
from ray.exceptions import RayActorError, RayError
from vllm.v1.engine.exceptions import EngineDeadError

ANSWER_SECONDS = 60.0


def is_death(error: RayError) -> bool:
    """True if a call failed because the engine is gone: its process, as Ray says, or vLLM's core behind it."""
    return isinstance(error, RayActorError) or isinstance(getattr(error, "cause", None), EngineDeadError)


def dead_engines(engines: list[Any]) -> list[int]:
    """Places of the engines that died; one that does not answer within ``ANSWER_SECONDS`` is taken to be busy."""
    answers = [engine.check_health.remote() for engine in engines]
    ray.wait(answers, num_returns=len(answers), timeout=ANSWER_SECONDS)
    return [place for place, answer in enumerate(answers) if _tells_of_death(answer)]


def _tells_of_death(answer: Any) -> bool:
    try:
        ray.get(answer, timeout=0)
    except RayError as error:  # also that there is no answer yet
        return is_death(error)
    return False
