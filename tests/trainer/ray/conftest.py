"""The arguments of a run, and a Ray that only notes how it is asked for."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from run_flags import run_flags

from openrlhf_cov.cluster import connection


def arguments(changes):
    """Actor 1 x 2, one GPU for each other model, two engines; no critic, no reference, a reward function."""
    return run_flags({"actor.num_gpus_per_node": 2} | changes)


@pytest.fixture(scope="session")
def run_args() -> Callable[[dict[str, Any]], SimpleNamespace]:
    """Function ({flag: value} that is different) -> arguments of a run with an actor of 2 GPUs and two engines."""
    return arguments


class RecordingRay:
    """Takes the place of the ``ray`` module in ``connect``; notes what ``init`` was asked for, raises ``error``."""

    def __init__(self, error=None):
        self.asked = {}
        self.error = error

    def init(self, **kwargs):
        self.asked = kwargs
        if self.error:
            raise self.error


@pytest.fixture
def connect(monkeypatch) -> Callable[..., dict[str, Any]]:
    """Function (is_cpu_host, changes, error of ``ray.init``) -> arguments of ``ray.init`` where no Ray runs."""
    monkeypatch.setattr(connection, "rays_of_this_host", frozenset)
    monkeypatch.setattr(connection, "ray_of_this_host", lambda: None)
    for name in (
        "RAY_ADDRESS",
        "RAY_JOB_CONFIG_JSON_ENV_VAR",
        "OMP_NUM_THREADS",
        *connection.FORWARDED,
        *connection.FORWARDED_IF_SET,
    ):
        monkeypatch.delenv(name, raising=False)

    def run(on_cpu, changes, error=None) -> dict[str, Any]:
        recording = RecordingRay(error)
        monkeypatch.setattr(connection, "ray", recording)
        monkeypatch.setattr(connection.cpu_host, "is_cpu_host", lambda: on_cpu)
        connection.connect(
            connection.needs_of_training(arguments({"ds.param_dtype": "fp32" if on_cpu else "bf16"} | changes))
        )
        return recording.asked

    return run
