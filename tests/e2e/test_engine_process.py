"""An engine of a CPU host computes in the process of its actor: it answers, pauses, fails and ends with it."""

import os
import signal
import sys
from pathlib import Path

import engine_actor
import psutil
import pytest
from processes import command_line, wait_for_end_of

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("ignore")]

PROMPT = [5, 6, 7, 8]


def start(ray, task, patch, actor):
    """Start Ray and an engine of this class of actors, and return the handle of the engine."""
    from openrlhf_cov.cluster import connection
    from openrlhf_cov.trainer.ray import engines

    patch.setattr(engines, "CovRolloutActor", actor)
    connection.connect(engines.needs_of_engines(1, 1))
    (engine,) = engines.start_evaluation_engines(
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
    return engine


@pytest.fixture(scope="module")
def patch(forking_python):
    """Changes that last as long as the module."""
    patch = pytest.MonkeyPatch()
    patch.setattr(sys, "executable", forking_python)  # the engines need not import all
    patch.setenv("RAY_ADDRESS", "local")
    # The worker of the engine imports the actor from the helpers of the tests.
    patch.setenv("PYTHONPATH", str(Path(engine_actor.__file__).parent), prepend=os.pathsep)
    yield patch
    patch.undo()


@pytest.fixture(scope="module")
def started(task, patch):
    """Ray, and the handle of a real engine."""
    import ray

    from openrlhf_cov.cluster import cpu_host

    cpu_host.install()
    try:
        yield ray, start(ray, task, patch, engine_actor.EngineActor)
    finally:
        ray.shutdown()


def test_the_engine_and_its_actor_are_one_process(started):
    ray, engine = started
    _, children = ray.get(engine.process.remote())
    # Python's tracker of resources computes nothing.
    assert [child for child in children if "resource_tracker" not in child] == []


def test_a_response_is_the_same_among_others_and_after_one_that_was_given_up(started):
    ray, engine = started
    alone = ray.get(engine.respond.remote(PROMPT, 12))
    assert len(alone) == 12
    together = ray.get([engine.respond.remote(PROMPT[:length], 12) for length in (4, 3, 2, 4)])
    assert together[0] == together[3] == alone
    assert ray.get(engine.give_up.remote(PROMPT, 50)) == 0
    assert ray.get(engine.respond.remote(PROMPT, 12)) == alone


def test_a_paused_engine_generates_nothing_and_goes_on_where_it_was(started):
    ray, engine = started
    alone = ray.get(engine.respond.remote(PROMPT, 40))
    was_done, response = ray.get(engine.paused.remote(PROMPT, 40, 1.0))
    assert not was_done
    assert response == alone


def test_a_response_fails_where_its_engine_is_put_to_sleep(started):
    ray, engine = started
    with pytest.raises(ray.exceptions.RayTaskError, match="ended a response early \\(abort\\)"):
        ray.get(engine.response_of_slept.remote(PROMPT))
    assert len(ray.get(engine.respond.remote(PROMPT, 12))) == 12


def test_samples_do_not_depend_on_the_random_state_of_their_process(started):
    ray, engine = started
    first, number = ray.get(engine.drawn.remote(PROMPT, 0, 1))
    assert ray.get(engine.drawn.remote(PROMPT, 0, 1)) == (first, number)
    # The engine leaves the state of its process as it was: the number follows from the seed alone.
    other, same_number = ray.get(engine.drawn.remote(PROMPT, 1000, 1))
    assert other != first
    assert same_number == number
    same, other_number = ray.get(engine.drawn.remote(PROMPT, 0, 2))
    assert same == first
    assert other_number != number


def test_the_actor_answers_while_its_engine_waits(started):
    ray, engine = started
    # 20 waits of a twentieth of the time; a busy host is late with some
    assert ray.get(engine.answers_meanwhile.remote(2.0)) >= 2


def test_an_engine_that_fails_is_dead_and_ends_with_its_actor(started):
    ray, engine = started
    from openrlhf_cov.trainer.rollout.engine_health import is_death

    ray.get(engine.fail.remote())
    # A request whose step fails, the next one, and a look at the health of the engine.
    for method, given in ((engine.respond, (PROMPT, 4)), (engine.respond, (PROMPT, 4)), (engine.check_health, ())):
        with pytest.raises(ray.exceptions.RayTaskError) as error:
            ray.get(method.remote(*given))
        assert is_death(error.value)
    pid, _ = ray.get(engine.process.remote())
    everything = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    os.kill(pid, signal.SIGKILL)
    wait_for_end_of(everything)


def test_an_engine_with_a_process_of_its_own_ends_with_its_actor(task, patch, started):
    ray, _ = started
    ray.shutdown()
    engine = start(ray, task, patch, engine_actor.ActorOfAnotherProcess)
    actor = psutil.Process(ray.get(engine.process.remote()))
    children = actor.children(recursive=True)
    assert any("resource_tracker" not in command_line(child) for child in children)
    os.kill(actor.pid, signal.SIGKILL)
    wait_for_end_of(children)
