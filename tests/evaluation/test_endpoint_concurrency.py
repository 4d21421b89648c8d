"""Several requests at once: every response arrives once, also those beside a failure or an interrupt."""

import os
import signal
import threading
import time
from dataclasses import replace

import pytest

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.evaluation.endpoint import Endpoint
from openrlhf_cov.evaluation.plan import Completion, Request

SEEDED = Request(("sums", "p0", 3), "3 + 4 =", None, 17, 0.6, 0.9, 24)


def samples(count):
    return [replace(SEEDED, key=("sums", "p0", sample), seed=sample) for sample in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("concurrency", [1, 3, 16])
def test_no_more_than_so_many_at_once_and_every_response_once(endpoint, openai_server, completed, concurrency):
    def reply(path, body):
        time.sleep(0.003 * (body["seed"] % 3))
        return 200, completed(path, body)

    openai_server.reply = reply
    requests = samples(24)
    results = list(endpoint(concurrency=concurrency).generate(requests))
    assert sorted(request.key for request, _ in results) == sorted(request.key for request in requests)
    assert len(openai_server.asked) == 24
    assert openai_server.most <= concurrency
    assert openai_server.most > 1 or concurrency == 1
    for request, completion in results:  # each got the response to its own seed
        body = {"prompt": request.prompt, "seed": request.seed, "model": "tiny", "max_tokens": 24}
        assert completion.text == completed("/completions", body)["choices"][0]["text"]


def test_what_arrived_before_a_failure_is_kept(endpoint, openai_server, completed, error_reply):
    arrived = threading.Event()

    def reply(path, body):
        if body["seed"] == 2:
            arrived.wait(5)
            return error_reply(400, "no")
        return 200, completed(path, body)

    openai_server.reply = reply
    results = []

    def take_all():
        for request, _ in endpoint(concurrency=2).generate(samples(6)):
            results.append(request.seed)
            if len(results) == 4:
                arrived.set()

    with pytest.raises(RunStopped):
        take_all()
    assert {0, 1, 3, 4} <= set(results)


def test_what_arrived_together_with_a_failure_is_kept(openai_server):
    class Together(Endpoint):
        """Its requests end at the same moment, the second with a failure."""

        async def _complete(self, client, request):
            if request.seed == 1:
                raise RunStopped
            return Completion("7", 1, 4, False)

    settings = dict(chat=False, concurrency=4, max_retries=0, api_key="key")
    results = []
    with pytest.raises(RunStopped):
        results.extend(Together(openai_server.url, "tiny", **settings).generate(samples(4)))
    assert {request.seed for request, _ in results} == {0, 2, 3}


@pytest.mark.parametrize("stop", [RunStopped, KeyboardInterrupt])
def test_who_stops_does_not_wait_for_slow_responses(endpoint, openai_server, completed, stop):
    slow = threading.Event()

    def reply(path, body):
        if body["seed"]:
            slow.wait(20)
        return 200, completed(path, body)

    openai_server.reply = reply

    def take_one():
        for _ in endpoint().generate(samples(4)):
            raise stop

    started = time.monotonic()
    with pytest.raises(stop):
        take_one()
    assert time.monotonic() - started < 5
    slow.set()


@pytest.mark.usefixtures("ctrl_c")
def test_an_interrupt_while_waiting_ends_at_once(endpoint, openai_server, error_reply):
    slow = threading.Event()

    def reply(path, body):
        os.kill(os.getpid(), signal.SIGINT)  # Ctrl-C
        slow.wait(20)
        return error_reply(500, "late")

    openai_server.reply = reply
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        list(endpoint().generate([SEEDED]))
    assert time.monotonic() - started < 5
    slow.set()
