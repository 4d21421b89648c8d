"""A vLLM engine whose actor is killed: its core and its workers go with it."""

import os
import signal

import psutil
import pytest
from processes import command_line, wait_for_end_of

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("ignore")]


def test_an_engine_ends_with_its_actor(task, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "local")
    import ray

    from openrlhf_cov.cluster import cpu_host

    cpu_host.install()
    from openrlhf_cov.cluster import connection
    from openrlhf_cov.trainer.ray.engines import needs_of_engines, start_evaluation_engines

    connection.connect(needs_of_engines(1, 1))
    try:
        (engine,) = start_evaluation_engines(
            str(task.model),
            num_engines=1,
            tensor_parallel_size=1,
            max_model_len=64,
            dtype="fp32",
            gpu_memory_utilization=0.2,
            enforce_eager=True,
            seed=0,
            trust_remote_code=False,
        )
        ray.get(engine.check_health.remote())
        (actor,) = (p for p in psutil.process_iter(["cmdline"]) if _is_engine(p))
        children = actor.children(recursive=True)
        # The core, whether vLLM could give it a title or not, beside Python's tracker of resources.
        assert any("resource_tracker" not in command_line(child) for child in children)
        os.kill(actor.pid, signal.SIGKILL)
        wait_for_end_of(children)
    finally:
        ray.shutdown()


def _is_engine(process: psutil.Process) -> bool:
    """An engine's actor, of this test's Ray and of no other."""
    name = " ".join(process.info["cmdline"] or ())
    return name.startswith("ray::CovRolloutActor") and os.getpid() in {each.pid for each in process.parents()}
