"""Engines that live, died, or do not answer."""

import asyncio
import time
from contextlib import nullcontext

import pytest
from idle_actor import IdleActor
from played_ray import SILENT, PlayedActor
from ray.exceptions import ActorDiedError, GetTimeoutError, RayTaskError
from vllm.v1.engine.exceptions import EngineDeadError

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.trainer.rollout.engine_health import dead_engines, end_unanswered, limited_transfer, wait_for_start


def task_error(cause: Exception) -> RayTaskError:
    """What ``ray.get`` raises when a method of an actor raised."""
    return RayTaskError("check_health", "trace", cause).as_instanceof_cause()


PROCESS = ActorDiedError()
CORE = task_error(EngineDeadError())


def test_dead_processes_and_dead_cores_are_found_and_busy_or_failing_engines_are_not(played_ray):
    answers = [None, PROCESS, GetTimeoutError("busy"), CORE, task_error(ValueError("no")), SILENT]
    assert dead_engines([PlayedActor(check_health=answer) for answer in answers]) == [1, 3]
    # A hung engine holds the training up for a minute at most.
    assert played_ray.timeouts == [60.0]


@pytest.mark.parametrize("error", [None, EngineDeadError()])
def test_an_engine_actor_speaks_for_its_core(error):
    class Core:
        async def check_health(self):
            if error:
                raise error

    with pytest.raises(EngineDeadError) if error else nullcontext():
        asyncio.run(IdleActor(llm=Core()).check_health())


@pytest.mark.parametrize("method", ["wake_up", "sleep"])
@pytest.mark.parametrize("silent", [[1], [0, 2], []])
def test_engines_that_do_not_answer_are_ended(played_ray, method, silent):
    engines = [PlayedActor(**{method: SILENT if place in silent else None}) for place in range(3)]
    assert end_unanswered(engines, method, 30.0) == silent
    assert played_ray.killed == [engines[place] for place in silent]
    assert played_ray.timeouts == [30.0]


def test_without_a_limit_engines_are_waited_for(played_ray):
    end_unanswered([PlayedActor(sleep=None)], "sleep", 0.0)
    assert played_ray.timeouts == [None]


def test_a_dead_engine_is_no_hung_one(played_ray):
    with pytest.raises(ActorDiedError):
        end_unanswered([PlayedActor(sleep=PROCESS)], "sleep", 30.0)


@pytest.mark.parametrize("error", [None, PROCESS])
def test_a_transfer_that_ran_out_of_time_ends_the_run_whatever_was_raised(played_ray, error):
    # The weight check takes an engine that was ended for one that died, and says nothing.
    expected = pytest.raises(RunStopped, match=r"within 0\.01 s .* continue with --ckpt.load_enable")
    with expected, limited_transfer(["engine"], ["rank"], 0.01):
        while len(played_ray.killed) < 2:
            time.sleep(0.01)
        if error:
            raise error
    assert played_ray.killed == ["engine", "rank"]
    # An engine that died in time is no hung one.
    with pytest.raises(ActorDiedError), limited_transfer(["engine"], ["rank"], 60.0):
        raise PROCESS


@pytest.mark.usefixtures("played_ray")
def test_a_call_that_needs_the_engines_does_not_wait_for_one_that_cannot_start():
    trace = "Traceback:\n  File x\nRuntimeError: Engine core initialization failed.\n"
    failed = ActorDiedError(RayTaskError("__init__", trace, RuntimeError()))
    engines = [PlayedActor(check_health=None), PlayedActor(check_health=failed)]
    with pytest.raises(RunStopped, match=r"vLLM engine 1 .*Engine core initialization failed.*gpu_memory_utilization"):
        wait_for_start(engines, [SILENT])


@pytest.mark.usefixtures("played_ray")
def test_a_call_that_fails_raises_its_own_error_and_calls_that_end_are_waited_for():
    engines = [PlayedActor(check_health="well")]
    wait_for_start(engines, [None, None])
    with pytest.raises(ValueError, match="trace"):
        wait_for_start(engines, [None, task_error(ValueError("no such model"))])
