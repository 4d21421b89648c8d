"""Engines that live, died, or do not answer; Ray is replaced by what they say."""

import asyncio
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from idle_actor import IdleActor
from ray.exceptions import ActorDiedError, GetTimeoutError, RayTaskError
from vllm.v1.engine.exceptions import EngineDeadError

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.trainer.rollout import engine_health
from openrlhf_cov.trainer.rollout.engine_health import dead_engines, end_unanswered


def task_error(cause: Exception) -> RayTaskError:
    """What ``ray.get`` raises when a method of an actor raised."""
    return RayTaskError("check_health", "trace", cause).as_instanceof_cause()


PROCESS, CORE = ActorDiedError(), task_error(EngineDeadError())


@pytest.fixture
def ask(monkeypatch):
    """Function (what each engine's ``check_health`` ends with...) -> ``dead_engines`` of them."""

    def get(answer, timeout):
        assert timeout == 0
        if isinstance(answer, Exception):
            raise answer

    def wait(answers, num_returns, timeout):
        assert (num_returns, timeout) == (len(answers), 60.0)

    monkeypatch.setattr(engine_health, "ray", SimpleNamespace(get=get, wait=wait))

    def run(*answers):
        def engine(answer):
            return SimpleNamespace(check_health=SimpleNamespace(remote=lambda: answer))

        return dead_engines([engine(answer) for answer in answers])

    return run


@pytest.mark.parametrize("death", [PROCESS, CORE])
def test_a_dead_process_and_a_dead_core_are_deaths(ask, death):
    assert ask(None, death, None, death) == [1, 3]


@pytest.mark.parametrize("trouble", [GetTimeoutError("busy"), task_error(ValueError("no"))])
def test_an_engine_that_is_busy_or_fails_is_no_dead_one(ask, trouble):
    assert ask(trouble, PROCESS) == [1]


@pytest.mark.parametrize("error", [None, EngineDeadError()])
def test_an_engine_actor_speaks_for_its_core(error):
    async def core():
        if error:
            raise error

    actor = IdleActor(llm=SimpleNamespace(check_health=core))
    with pytest.raises(EngineDeadError) if error else nullcontext():
        asyncio.run(actor.check_health())


@pytest.mark.parametrize("method", ["wake_up", "sleep"])
@pytest.mark.parametrize(
    ("seconds", "silent", "ended"), [(30.0, {1}, [1]), (30.0, {0, 2}, [0, 2]), (30.0, set(), []), (0.0, set(), [])]
)
def test_engines_that_do_not_answer_are_ended(monkeypatch, method, seconds, silent, ended):
    killed = []

    def wait(answers, num_returns, timeout):
        assert (num_returns, timeout) == (3, seconds or None)
        return [answer for answer in answers if answer not in silent], []

    stand_in = SimpleNamespace(wait=wait, get=lambda answers: answers, kill=lambda engine: killed.append(engine.place))
    monkeypatch.setattr(engine_health, "ray", stand_in)
    engines = [
        SimpleNamespace(place=place, **{method: SimpleNamespace(remote=lambda place=place: place)})
        for place in range(3)
    ]
    assert end_unanswered(engines, method, seconds) == ended
    assert killed == ended


def test_a_dead_engine_is_no_hung_one(monkeypatch):
    def get(answers):
        raise PROCESS

    stand_in = SimpleNamespace(wait=lambda answers, num_returns, timeout: (answers, []), get=get)
    monkeypatch.setattr(engine_health, "ray", stand_in)
    with pytest.raises(ActorDiedError):
        end_unanswered([SimpleNamespace(sleep=SimpleNamespace(remote=lambda: 0))], "sleep", 30.0)


@pytest.mark.parametrize("error", [None, PROCESS])
def test_a_transfer_that_ran_out_of_time_ends_the_run_whatever_was_raised(monkeypatch, error):
    # The weight check takes an engine that was ended for one that died, and says nothing.
    killed = []
    monkeypatch.setattr(engine_health, "ray", SimpleNamespace(kill=killed.append))
    expected = pytest.raises(RunStopped, match=r"within 0\.01 s .* continue with --ckpt.load_enable")
    with expected, engine_health.limited_transfer(["engine"], ["rank"], 0.01):
        while len(killed) < 2:
            time.sleep(0.01)
        if error:
            raise error
    assert killed == ["engine", "rank"]
    # An engine that died in time is no hung one.
    with pytest.raises(ActorDiedError), engine_health.limited_transfer(["engine"], ["rank"], 60.0):
        raise PROCESS
