"""The engine actor of a run without an engine."""

from typing import Any

from openrlhf_cov.trainer.ray.rollout_actor import CovRolloutActor


class IdleActor(CovRolloutActor):
    """An actor that has the given fields and no vLLM engine."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)
