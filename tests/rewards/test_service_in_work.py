"""The reward service at work: what one stuck row holds up, rows that fail, and clients that go away."""

import asyncio
import json
import threading
import time
from contextlib import contextmanager

import httpx
import torch
from fastapi.testclient import TestClient

from openrlhf_cov.rewards.limits import ServiceLimits
from openrlhf_cov.rewards.service import RewardService, make_app


class Grader:
    """A reward function whose rows "stuck ..." wait until it is released; it notes what it graded."""

    def __init__(self):
        self.release = threading.Event()
        self.lock = threading.Lock()
        self.graded = []
        self.at_once = self.most_at_once = 0

    def __call__(self, queries, prompts, labels):
        for query in queries:
            with self.lock:
                self.at_once += 1
                self.most_at_once = max(self.most_at_once, self.at_once)
            if query.startswith("stuck"):
                assert self.release.wait(30)
            else:
                time.sleep(0.001)
            if query == "bug":
                raise RecursionError("too\ndeep: \ud800")
            with self.lock:
                self.graded.append(query)
                self.at_once -= 1
        ones = torch.ones(len(queries))
        logs = {"reward/timeout_frac": 0 * ones}
        return {"rewards": ones, "scores": ones, "truncated_rewards": 0 * ones, "extra_logs": logs}


@contextmanager
def grading(parallel=2, **limits):
    grader = Grader()
    service = RewardService(grader, str, parallel=parallel, limits=ServiceLimits(**limits), token=None)
    try:
        yield grader, make_app(service)
    finally:
        grader.release.set()
        service.close()


def rows(*queries):
    return {"query": queries, "prompts": queries, "labels": queries}


async def until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


def over_http(app):
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service")


def test_a_stuck_row_holds_no_other_row_and_no_other_request():
    async def scenario(grader, app):
        async with over_http(app) as http:
            stuck = asyncio.create_task(http.post("/", json=rows("stuck", *map(str, range(20)))))
            await until(lambda: len(grader.graded) == 20)
            # both of the two threads that one request gets are stuck now, and the others answer
            full = asyncio.create_task(http.post("/", json=rows("stuck 1", "stuck 2", "waiting")))
            await until(lambda: grader.at_once == 3)
            assert (await http.post("/", json=rows("a"))).json()["scores"] == [1]
            assert (await http.get("/health")).json()["requests_in_work"] == 2
            assert "waiting" not in grader.graded
            grader.release.set()
            assert [len((await task).json()["scores"]) for task in (stuck, full)] == [21, 3]

    with grading() as (grader, app):
        asyncio.run(scenario(grader, app))
    assert grader.most_at_once <= 4  # 2 threads for each of 2 requests


def test_one_request_is_graded_in_at_most_as_many_threads_as_asked_for():
    with grading(parallel=3) as (grader, app), TestClient(app) as http:
        assert len(http.post("/", json=rows(*"abcdefghijklmnopqrst")).json()["rewards"]) == 20
    assert sorted(grader.graded) == list("abcdefghijklmnopqrst")
    assert 2 <= grader.most_at_once <= 3


def test_an_error_of_the_grader_is_named():
    with grading() as (_, app), TestClient(app) as http:
        answer = http.post("/", json=rows("a", "bug"))
    assert answer.status_code == 500
    assert answer.json() == {"detail": "query[1]: grading failed with RecursionError: too deep: \\ud800"}


def test_rows_after_a_refused_one_are_not_graded():
    with grading(parallel=1) as (grader, app), TestClient(app) as http:
        assert http.post("/", json=rows("a", "bug", "b")).status_code == 500
        assert http.post("/", json=rows("c")).status_code == 200
    assert grader.graded == ["a", "c"]


def test_rows_after_a_refused_one_are_not_graded_by_the_other_thread_either():
    with grading() as (grader, app), TestClient(app) as http:
        assert http.post("/", json=rows("stuck", "bug", "never")).status_code == 500
        grader.release.set()
        assert http.post("/", json=rows(*"abcdefgh")).status_code == 200
    assert set(grader.graded) == {"stuck", *"abcdefgh"}


async def call(app, receive):
    """Status, body and headers of one POST, with our own connection: ``receive`` is what the client does."""
    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [], "query_string": b"", "root_path": ""}
    await app(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent), dict(sent[0]["headers"])


def test_an_endless_request_is_read_up_to_the_limit():
    received = 0

    async def receive():
        nonlocal received
        received += 10**5
        return {"type": "http.request", "body": b" " * 10**5, "more_body": True}

    with grading(max_request_mb=1) as (_, app):
        status, _, _ = asyncio.run(call(app, receive))
    assert (status, received) == (413, 1_100_000)


def test_requests_in_work_share_a_limit_of_size_and_finished_ones_leave_it():
    # 0.6 MB each: two of them at once are above 1 MB, one after the other they are not
    def padded(query):
        return rows(query) | {"padding": "x" * 600_000}

    async def scenario(grader, app):
        async with over_http(app) as http:
            first = asyncio.create_task(http.post("/", json=padded("stuck")))
            await until(lambda: grader.at_once == 1)
            refused = await http.post("/", json=padded("refused"))
            grader.release.set()
            await first
            later = [await http.post("/", json=padded(query)) for query in "ab"]
            return refused, [each.status_code for each in later]

    with grading(max_total_mb=1) as (grader, app):
        refused, later = asyncio.run(scenario(grader, app))
    assert refused.status_code == 503
    assert "--max_total_mb 1" in refused.json()["detail"]
    assert later == [200, 200]
    assert grader.graded == ["stuck", "a", "b"]


def test_nothing_more_is_graded_for_a_client_that_is_gone():
    messages = [{"type": "http.request", "body": json.dumps(rows("first", "never")).encode()}]

    async def receive():
        if messages:
            return messages.pop()
        if not grader.graded:
            await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    async def scenario():
        status, _, _ = await call(app, receive)
        async with over_http(app) as http:
            assert (await http.post("/", json=rows("next"))).status_code == 200
            return status, (await http.get("/health")).json()

    with grading(parallel=1) as (grader, app):
        status, health = asyncio.run(scenario())
    assert status == 499
    assert health == {"status": "ok", "requests_in_work": 0, "answers": {"200": 1, "499": 1}}
    assert grader.graded == ["first", "next"]


def test_a_client_that_is_gone_before_it_has_sent_all_is_no_error():
    async def receive():
        return {"type": "http.disconnect"}

    with grading() as (_, app):
        assert asyncio.run(call(app, receive))[0] == 499


def test_a_request_that_the_stopping_server_breaks_off_is_told_so():
    async def scenario(grader, app):
        messages = [{"type": "http.request", "body": json.dumps(rows("stuck")).encode()}]

        async def receive():
            return messages.pop() if messages else await asyncio.sleep(60)

        request = asyncio.create_task(call(app, receive))
        await until(lambda: grader.at_once)
        request.cancel()
        return await request

    with grading() as (grader, app):
        status, body, _ = asyncio.run(scenario(grader, app))
    assert (status, json.loads(body)) == (503, {"detail": "the service is stopping"})


def test_rows_that_wait_for_a_thread_are_not_graded_after_the_end():
    async def scenario():
        async with over_http(make_app(service)) as http:
            stuck = [asyncio.create_task(http.post("/", json=rows(f"stuck {i}"))) for i in range(2)]
            await until(lambda: grader.at_once == 2)
            waiting = asyncio.create_task(http.post("/", json=rows("never")))
            while (await http.get("/health")).json()["requests_in_work"] != 3:
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.05)  # its row waits for a thread
            service.close()
            grader.release.set()
            return [(await task).status_code for task in (*stuck, waiting)]

    grader = Grader()
    service = RewardService(grader, str, parallel=1, limits=ServiceLimits(), token=None)
    assert asyncio.run(scenario()) == [200, 200, 503]
    assert "never" not in grader.graded
