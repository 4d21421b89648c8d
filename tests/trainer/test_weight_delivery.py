"""New weights on their way to the engines: in which order, beside which rollouts, and what may go wrong."""

import threading
from types import SimpleNamespace

import pytest
from ray.exceptions import ActorDiedError
from run_flags import run_flags

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.trainer.rollout.batch_stream import BatchStream
from openrlhf_cov.trainer.rollout.generation import EngineGroup
from openrlhf_cov.trainer.weights import weight_delivery
from openrlhf_cov.trainer.weights.weight_delivery import deliver_weights, have_other_weights


class Delivery:
    """Two engines, a stream without a thread, and the calls that reach them in order."""

    def __init__(self, monkeypatch, dead=(), staleness=0, partial=False, sleep=False, timeout=0.0) -> None:
        self.calls: list = []
        self.handles = ["engine 0", "engine 1"]
        sampler = SimpleNamespace(engines=EngineGroup(self.handles))
        self.stream = BatchStream(sampler, staleness, first_step=3)
        delivered = self.stream.delivered
        self.stream.delivered = lambda version: self.calls.append(("delivered", version)) or delivered(version)
        self.args = run_flags({
            "train.partial_rollout_enable": partial, "vllm.enable_sleep": sleep, "vllm_no_progress_timeout": timeout
        })  # fmt: skip
        self.check = SimpleNamespace(
            before_transfer=lambda: self.calls.append("before"), after_transfer=lambda: self.calls.append("after")
        )
        self.error: Exception | None = None

        def find_dead(engines):
            assert engines == self.handles
            self.calls.append("look for dead")
            return list(dead)

        def call_all(engines, method, **arguments):
            assert engines == self.handles
            self.calls.append((method, arguments) if arguments else method)

        monkeypatch.setattr(weight_delivery, "dead_engines", find_dead)
        monkeypatch.setattr(weight_delivery, "batch_vllm_engine_call", call_all)

    def send(self) -> None:
        self.calls.append("send")
        if self.error:
            raise self.error

    def run(self, **settings) -> list[int]:
        settings = {"version": 4, "weight_check": self.check, "ranks": ["rank 0"]} | settings
        return deliver_weights(self.args, self.stream, self.send, **settings)


def test_weights_are_checked_around_their_transfer(monkeypatch):
    delivery = Delivery(monkeypatch)
    assert delivery.run() == []
    assert delivery.calls == ["look for dead", "before", "send", "after", ("delivered", 4)]


def test_engines_that_are_paused_are_asked_before_and_after(monkeypatch):
    delivery = Delivery(monkeypatch, staleness=1, partial=True)
    delivery.run()
    assert delivery.calls == [
        "look for dead", "before", "pause_generation", "send", "resume_generation", "after", ("delivered", 4)
    ]  # fmt: skip


@pytest.mark.parametrize("partial", [False, True])
def test_a_dead_engine_keeps_the_weights_from_all(monkeypatch, partial):
    delivery = Delivery(monkeypatch, dead=[1], partial=partial, sleep=True)
    warnings = []
    monkeypatch.setattr(weight_delivery.logger, "warning", warnings.append)
    assert delivery.run() == [1]
    assert delivery.calls == ["look for dead"]
    assert warnings == [
        "vLLM engine 1 died; look for the cause in the log above; no engine gets the new weights, and the run ends "
        "after this step"
    ]


@pytest.mark.parametrize("partial", [False, True])
def test_an_engine_that_is_dead_at_the_start_ends_the_run(monkeypatch, partial):
    delivery = Delivery(monkeypatch, dead=[0, 1], partial=partial)
    with pytest.raises(RunStopped, match=r"^vLLM engine 0, 1 died; .*; no step was made$"):
        delivery.run(is_start=True)
    with delivery.stream.exclusive():  # nothing is held
        pass


def test_a_transfer_that_fails_in_time_is_no_hang(monkeypatch):
    delivery = Delivery(monkeypatch, timeout=3600.0, partial=True)
    delivery.error = ActorDiedError()
    with pytest.raises(ActorDiedError):
        delivery.run()
    assert delivery.calls[-2:] == ["send", "resume_generation"]  # nothing was delivered


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("queue", [1, 2])
def test_a_transfer_waits_for_the_rollout_in_flight_unless_engines_pause(make_sampler, monkeypatch, queue, partial):
    sampler, (engine,) = make_sampler(filtering=False, queue=queue)
    delivery = Delivery(monkeypatch, partial=partial)
    delivery.handles = sampler.engines.engines
    send, may_answer, is_asked = engine.generate_responses.remote, threading.Event(), threading.Event()

    def wait_with_the_second_rollout(**request):
        if request["prompt"] == "4":
            is_asked.set()
            assert may_answer.wait(10.0)
        return send(**request)

    engine.generate_responses.remote = wait_with_the_second_rollout
    stream = delivery.stream = BatchStream(sampler, queue)
    stream.next(0)
    assert is_asked.wait(10.0)
    deliverer = threading.Thread(target=lambda: delivery.run(version=1))
    deliverer.start()
    deliverer.join(10.0 if partial else 0.2)
    assert ("send" in delivery.calls) is partial
    may_answer.set()
    deliverer.join(10.0)
    assert "send" in delivery.calls
    # the second rollout keeps the version with which it was begun, the third one is begun after the delivery
    assert [stream.next(step).version for step in (1, 2)] == [0, 1]
    stream.close()


def test_engines_of_another_run_are_found(monkeypatch):
    def engine(answer):
        return SimpleNamespace(needs_weights=SimpleNamespace(remote=lambda: answer))

    def wait(answers, num_returns, timeout):
        assert (num_returns, timeout) == (len(answers), None)
        return answers, []

    monkeypatch.setattr(weight_delivery, "ray", SimpleNamespace(get=lambda answers: answers, wait=wait))
    assert have_other_weights([engine(False), engine(True)], 0.0)
    assert not have_other_weights([engine(False), engine(False)], 0.0)
    assert not have_other_weights([], 0.0)


def test_an_engine_that_does_not_say_whose_weights_it_has_ends_the_run(monkeypatch):
    def engine(answer):
        return SimpleNamespace(needs_weights=SimpleNamespace(remote=lambda: answer))

    def wait(answers, num_returns, timeout):
        assert timeout == 30.0
        return answers[:1], answers[1:]

    monkeypatch.setattr(weight_delivery, "ray", SimpleNamespace(get=lambda answers: answers, wait=wait))
    line = (
        r"^vLLM engine 1, 2 did not answer within 30 s \(--vllm.no_progress_timeout\) at the start of the run; .*log"
    )
    with pytest.raises(RunStopped, match=line):
        have_other_weights([engine("first"), engine("second"), engine("third")], 30.0)
