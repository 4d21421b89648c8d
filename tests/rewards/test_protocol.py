"""The service on real sockets: clients that are slow, too many or too large, and the end of the server."""

import json
import socket
import threading
import time
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest
import torch
import uvicorn

from openrlhf_cov.rewards import protocol
from openrlhf_cov.rewards import service as module
from openrlhf_cov.rewards.limits import ServiceLimits
from openrlhf_cov.rewards.protocol import GuardedProtocol, GuardedServer
from openrlhf_cov.rewards.service import RewardService, make_app

HEAD = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
BODY = json.dumps({"query": ["q"], "prompts": ["p"], "labels": ["l"]}).encode()


class Grader:
    """A reward function that waits until it is released."""

    def __init__(self):
        self.release, self.started = threading.Event(), threading.Event()

    def __call__(self, queries, prompts, labels):
        if queries:
            self.started.set()
            assert self.release.wait(60)
        ones = torch.ones(len(queries))
        logs = {metric: 0 * ones for metric in module.STATUS_METRICS.values()}
        return {"rewards": ones, "scores": ones, "truncated_rewards": ones, "extra_logs": logs}


@pytest.fixture
def serve():
    """Function (limits) -> grader, server and a function that connects; the server ends with the test."""
    with ExitStack() as stack:

        def start(**limits):
            limits = ServiceLimits(**limits)
            grader = Grader()
            service = RewardService(grader, str, parallel=2, limits=limits, token=None)
            server = GuardedServer(
                uvicorn.Config(
                    make_app(service),
                    http=partial(GuardedProtocol, max_connections=limits.max_connections),
                    log_config=None,
                    timeout_graceful_shutdown=1,
                )
            )
            listener = socket.create_server(("127.0.0.1", 0))
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
            thread.start()

            @contextmanager
            def connect():
                with socket.create_connection(listener.getsockname(), timeout=60) as client:
                    yield client

            def stop():
                grader.release.set()
                server.should_exit = True
                thread.join(60)
                listener.close()

            stack.callback(stop)
            return grader, server, connect

        yield start


def status_of(client):
    """The status of the answer that comes, read to its end."""
    answer = b""
    while part := client.recv(10**5):
        answer += part
    return int(answer.split(b" ")[1])


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def grade(connect):
    with connect() as client:
        client.sendall(HEAD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") % len(BODY) + BODY)
        return status_of(client)


@pytest.mark.parametrize("sent", [b"", b"POST / HT", HEAD[:-2] % 9])
def test_a_head_that_does_not_come_is_given_up(serve, monkeypatch, sent):
    monkeypatch.setattr(protocol, "HEADER_SECONDS", 0.2)
    grader, server, connect = serve()
    grader.release.set()
    with connect() as client:
        client.sendall(sent)
        assert status_of(client) == 408
    until(lambda: not server.server_state.connections)
    assert grade(connect) == 200


@pytest.mark.slow
def test_a_head_that_comes_drop_by_drop_is_given_up(serve, monkeypatch):
    monkeypatch.setattr(protocol, "HEADER_SECONDS", 0.3)
    _, server, connect = serve()
    with connect() as client:
        client.sendall(b"GET /health HTTP/1.1\r\n")
        until(lambda: server.server_state.connections)
        with pytest.raises(OSError):  # noqa: PT011, PT012
            for _ in range(3000):
                client.sendall(b"X: y\r\n")
                time.sleep(0.01)
    until(lambda: not server.server_state.connections)


CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
BOTH = b"Content-Length: %d\r\nTransfer-Encoding: chunked" % len(CHUNKS)


@pytest.mark.parametrize("path", [b"/", b"/get_reward", b"/health", b"/nothing"])
@pytest.mark.parametrize(
    "lengths",
    [
        BOTH,
        b"Transfer-Encoding: chunked\r\nContent-Length: %d" % len(CHUNKS),
        b"content-length: %d\r\nTRANSFER-ENCODING:chunked" % len(CHUNKS),
        b"Content-Length: 0\r\nTransfer-Encoding: chunked",
    ],
)
def test_a_request_with_two_lengths_is_refused_and_ends_its_connection(serve, path, lengths):
    grader, _, connect = serve()
    grader.release.set()
    with connect() as client:
        smuggled = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
        client.sendall(b"POST %s HTTP/1.1\r\nHost: a\r\n%s\r\n\r\n" % (path, lengths) + CHUNKS + smuggled)
        answer = b""
        while part := client.recv(10**5):
            answer += part
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert not grader.started.is_set()


@pytest.mark.parametrize(
    "lengths",
    [
        b"Content-Length: 5\r\nContent-Length: 6",
        b"Content-Length: 5, 6",
        b"Content-Length: +5",
        b"Content-Length : 5",
        b"Transfer-Encoding: gzip, chunked",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: identity",
    ],
)
def test_other_unclear_lengths_are_refused(serve, lengths):
    grader, _, connect = serve()
    with connect() as client:
        client.sendall(b"POST / HTTP/1.1\r\nHost: a\r\n" + lengths + b"\r\n\r\n" + CHUNKS)
        assert status_of(client) in (400, 501)
    assert not grader.started.is_set()


def test_an_old_request_has_no_encoding(serve):
    _, _, connect = serve()
    with connect() as client:
        client.sendall(CHUNKED.replace(b"1.1", b"1.0") + CHUNKS)
        assert status_of(client) == 400


def test_one_length_of_either_kind_is_taken(serve):
    grader, _, connect = serve()
    grader.release.set()
    assert grade(connect) == 200
    with connect() as client:
        client.sendall(CHUNKED.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + CHUNKS)
        assert status_of(client) == 200


def test_a_head_without_an_end_is_refused(serve):
    _, _, connect = serve()
    with connect() as client:
        client.sendall(b"GET / HTTP/1.1\r\nX: " + b"a" * 10**5)
        assert status_of(client) == 400


def test_the_second_request_of_a_connection_has_a_clock_too(serve, monkeypatch):
    monkeypatch.setattr(protocol, "HEADER_SECONDS", 0.3)
    grader, server, connect = serve()
    grader.release.set()
    with connect() as client:
        client.sendall(HEAD % len(BODY) + BODY)
        assert client.recv(10**5).startswith(b"HTTP/1.1 200")
        client.sendall(b"POST / HT")
        assert client.recv(10**5) == b""
    until(lambda: not server.server_state.connections)


def test_work_that_takes_longer_than_a_head_may_is_finished(serve, monkeypatch):
    monkeypatch.setattr(protocol, "HEADER_SECONDS", 0.1)
    grader, _, connect = serve()
    with connect() as client:
        client.sendall(HEAD % len(BODY) + BODY)
        assert grader.started.wait(60)
        time.sleep(0.5)
        grader.release.set()
        assert client.recv(10**5).startswith(b"HTTP/1.1 200")


def test_a_body_that_does_not_come_is_given_up(serve, monkeypatch):
    monkeypatch.setattr(module, "BODY_SECONDS", 0.2)
    _, _, connect = serve()
    with connect() as client:
        client.sendall(HEAD % 100 + b"{")
        assert status_of(client) == 408


@pytest.mark.slow
def test_a_body_without_an_end_that_nobody_wants_is_given_up(serve, monkeypatch):
    monkeypatch.setattr(protocol, "HEADER_SECONDS", 0.3)
    _, server, connect = serve()
    with connect() as client, pytest.raises(OSError):  # noqa: PT012, PT011
        client.sendall(CHUNKED.replace(b"POST / ", b"GET /health "))
        for _ in range(3000):
            client.sendall(b"1\r\na\r\n")
            time.sleep(0.01)
    until(lambda: not server.server_state.connections)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_too_large_gets_its_answer_and_no_reset(serve, chunked):
    _, _, connect = serve(max_request_mb=1)
    with connect() as client:
        client.sendall(CHUNKED if chunked else HEAD % (8 * 10**6))
        for _ in range(80):
            client.sendall(b"186a0\r\n" * chunked + b" " * 10**5 + b"\r\n" * chunked)
        assert status_of(client) == 413


def test_many_bodies_at_once_share_their_room(serve):
    grader, _, connect = serve(max_request_mb=1, max_total_mb=2)
    large = BODY + b" " * 900_000
    with ExitStack() as stack:
        clients = [stack.enter_context(connect()) for _ in range(4)]
        for client in clients[:2]:
            client.sendall(HEAD % len(large) + large)
        assert grader.started.wait(60)
        with connect() as asking:
            until(lambda: in_work(asking) == 2)
        for client in clients[2:]:
            client.sendall(HEAD % len(large) + large)
            assert status_of(client) == 503
        grader.release.set()
        assert all(client.recv(10**5).startswith(b"HTTP/1.1 200") for client in clients[:2])
        assert grade(connect) == 200


def in_work(client):
    client.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
    return json.loads(client.recv(10**5).partition(b"\r\n\r\n")[2])["queries_in_work"]


def test_a_connection_too_many_is_told_so_and_the_others_work(serve):
    grader, server, connect = serve(max_connections=3)
    grader.release.set()
    with ExitStack() as stack:
        clients = [stack.enter_context(connect()) for _ in range(3)]
        until(lambda: len(server.server_state.connections) == 3)
        assert grade(connect) == 503
        for client in clients:
            client.sendall(HEAD % len(BODY) + BODY)
            assert client.recv(10**5).startswith(b"HTTP/1.1 200")
    until(lambda: not server.server_state.connections)
    assert grade(connect) == 200


def test_never_more_than_twice_as_many(serve):
    _, server, connect = serve(max_connections=2)
    most = 0
    with ExitStack() as stack:
        for _ in range(30):
            stack.enter_context(connect())
            most = max(most, len(server.server_state.connections))
    assert most <= 5  # one may be on its way out


@pytest.mark.slow
def test_the_end_of_the_server_answers_what_is_in_work(serve):
    grader, server, connect = serve()
    with ExitStack() as stack:
        clients = [stack.enter_context(connect()) for _ in range(20)]
        idle = stack.enter_context(connect())
        for client in clients:
            client.sendall(HEAD % len(BODY) + BODY)
        half = stack.enter_context(connect())
        half.sendall(HEAD % 100 + b"{")
        assert grader.started.wait(60)
        until(lambda: len(server.server_state.tasks) == 21)
        server.should_exit = True
        assert [status_of(client) for client in clients] == [503] * 20
        assert status_of(half) == 503
        assert idle.recv(1) == b""


@pytest.mark.slow
def test_no_connection_is_left_open_where_clients_stay(serve, monkeypatch):
    monkeypatch.setattr(protocol, "LINGER_SECONDS", 0.3)
    grader, server, connect = serve()
    with connect() as client, connect():
        client.sendall(HEAD % len(BODY) + BODY)
        assert grader.started.wait(60)
        server.should_exit = True
        assert status_of(client) == 503
        until(lambda: not server.server_state.connections)
