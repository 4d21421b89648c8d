"""New weights on their way to the engines: in which order, beside which rollouts, and what may go wrong."""

import threading
from functools import partial

import pytest
import torch
from played_ray import SILENT, PlayedActor
from ray.exceptions import ActorDiedError
from run_flags import run_flags
from scored_samples import sample

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.trainer.rollout.batch_stream import BatchStream
from openrlhf_cov.trainer.rollout.generation import EngineGroup
from openrlhf_cov.trainer.weights.weight_check import WeightCheck
from openrlhf_cov.trainer.weights.weight_delivery import deliver_weights, have_other_weights

pytestmark = pytest.mark.usefixtures("played_ray")


class Source:
    """A source whose rollouts are the versions of the weights that they are sampled with."""

    def __init__(self, engines):
        self.engines = EngineGroup(engines)

    def next_batch(self, version):
        return version


class Delivery:
    """Two engines that have the weights of the policy, a stream without a thread, and what happens in order."""

    def __init__(self, dead=(), partial_rollouts=False, sleep=False, timeout=0.0):
        self.events = []
        # Engine 0 notes the calls that both get.
        methods = ("check_health", "pause_generation", "resume_generation", "wake_up")
        noting = {method: partial(self.note, method) for method in methods}
        engines = [PlayedActor(**noting), PlayedActor(**dict.fromkeys(methods))]
        for place in dead:
            engines[place].answers["check_health"] = ActorDiedError()
        self.stream = BatchStream(Source(engines), 0, first_step=3)
        self.args = run_flags({
            "train.partial_rollout_enable": partial_rollouts, "vllm.enable_sleep": sleep,
            "vllm_no_progress_timeout": timeout,
        })  # fmt: skip
        self.log_probs = torch.zeros(1)
        self.check = WeightCheck("always", lambda texts: self.log_probs, self.score_engines)
        self.check.start_step([sample(0)], max_len=9, step=4)
        self.error = None

    def note(self, event, **options):
        self.events.append(f"{event} {options}" if options else event)

    def score_engines(self, texts):
        self.note("score")
        return [self.log_probs] * 2

    def send(self):
        self.note("send")
        if self.error:
            raise self.error
        self.log_probs = self.log_probs - 0.5

    def run(self, **settings):
        settings = {"version": 4, "weight_check": self.check, "ranks": ["rank 0"]} | settings
        return deliver_weights(self.args, self.stream, self.send, **settings)


@pytest.mark.parametrize(
    ("settings", "around"),
    [
        ({}, ["send"]),
        # Engines answer no question while they pause, and wake up for the weights alone.
        ({"partial_rollouts": True}, ["pause_generation", "send", "resume_generation"]),
        ({"sleep": True}, ["wake_up {'tags': ['weights']}", "send"]),
    ],
)
def test_weights_are_checked_around_their_transfer(settings, around):
    delivery = Delivery(**settings)
    assert delivery.run() == []
    assert delivery.events == ["check_health", "score", *around, "score"]
    assert delivery.stream.next(4) == 4


@pytest.mark.parametrize("partial_rollouts", [False, True])
def test_a_dead_engine_keeps_the_weights_from_all(log, partial_rollouts):
    delivery = Delivery(dead=[1], partial_rollouts=partial_rollouts, sleep=True)
    assert delivery.run() == [1]
    assert delivery.events == ["check_health"]
    assert "vLLM engine 1 died; " in log.text


@pytest.mark.parametrize("partial_rollouts", [False, True])
def test_an_engine_that_is_dead_at_the_start_ends_the_run(partial_rollouts):
    delivery = Delivery(dead=[0, 1], partial_rollouts=partial_rollouts)
    with pytest.raises(RunStopped, match=r"^vLLM engine 0, 1 died; .*; no step was made$"):
        delivery.run(is_start=True)
    with delivery.stream.exclusive():  # nothing is held
        pass


def test_a_transfer_that_fails_in_time_is_no_hang():
    delivery = Delivery(timeout=3600.0, partial_rollouts=True)
    delivery.error = ActorDiedError()
    with pytest.raises(ActorDiedError):
        delivery.run()
    assert delivery.events[-2:] == ["send", "resume_generation"]
    with pytest.raises(RuntimeError, match="needs new weights; the engines have those of 3"):
        delivery.stream.next(4)


@pytest.mark.parametrize("partial_rollouts", [False, True])
@pytest.mark.parametrize("queue", [1, 2])
def test_a_transfer_waits_for_the_rollout_in_flight_unless_engines_pause(make_sampler, queue, partial_rollouts):
    sampler, (engine,) = make_sampler(filtering=False, queue=queue)
    delivery = Delivery(partial_rollouts=partial_rollouts)
    send = engine.generate_responses.remote
    may_answer = threading.Event()
    is_asked = threading.Event()

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
    deliverer.join(10.0 if partial_rollouts else 0.2)
    assert ("send" in delivery.events) is partial_rollouts
    may_answer.set()
    deliverer.join(10.0)
    assert "send" in delivery.events
    # the second rollout keeps the version with which it was begun, the third one is begun after the delivery
    assert [stream.next(step).version for step in (1, 2)] == [0, 1]
    stream.close()


@pytest.mark.parametrize(("answers", "found"), [([False, True], True), ([False, False], False), ([], False)])
def test_engines_of_another_run_are_found(answers, found):
    assert have_other_weights([PlayedActor(needs_weights=answer) for answer in answers], 0.0) is found


def test_an_engine_that_does_not_say_whose_weights_it_has_ends_the_run(played_ray):
    engines = [PlayedActor(needs_weights=answer) for answer in (False, SILENT, SILENT)]
    line = r"^vLLM engine 1, 2 did not answer within 30 s \(--vllm.no_progress_timeout\) at the start of the run"
    with pytest.raises(RunStopped, match=line):
        have_other_weights(engines, 30.0)
    assert played_ray.timeouts == [30.0]
