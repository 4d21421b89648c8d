"""The reward service as an application: protocol and limits."""

import asyncio
import json
import logging
from contextlib import closing, contextmanager

import pytest
import torch
from fastapi.testclient import TestClient

from openrlhf_cov.config import RewardConfig
from openrlhf_cov.rewards.limits import ServiceLimits
from openrlhf_cov.rewards.reward_func import make_reward_func
from openrlhf_cov.rewards.service import make_app, make_service, parse_request

PROMPT = "What is 6 * 7? "
# Right, wrong, without an answer, with one that is too long to be read, right.
RESPONSES = [r"\boxed{42}", r"\boxed{43}", "42", rf"\boxed{{{'1' * 4001}}}", r"so \boxed{042}"]
CONFIG = RewardConfig(reward_incorrect=-0.1, reward_format_bonus=0.25)


def payload(*responses, labels=None):
    queries = [PROMPT + response for response in responses]
    return {"query": queries, "prompts": [PROMPT] * len(queries), "labels": labels or ["42"] * len(queries)}


@contextmanager
def client(config=CONFIG, token=None, **limits):
    with (
        closing(make_service(config, ServiceLimits(**limits), token)) as service,
        TestClient(make_app(service)) as http,
    ):
        yield http


@pytest.mark.parametrize("path", ["/", "/get_reward"])
def test_the_answer_is_that_of_the_reward_function(path):
    body = payload(*RESPONSES)
    expected = make_reward_func(CONFIG)(body["query"], body["prompts"], body["labels"])
    assert expected["scores"].tolist() == [1, 0, 0, 0, 1]  # so the rows cannot have changed places unseen
    with client() as http:
        answer = http.post(path, json=body)
    assert answer.status_code == 200
    answer = answer.json()
    assert set(answer) == {"rewards", "scores", "truncated_rewards", "extra_logs"}
    assert set(answer["extra_logs"]) == set(expected["extra_logs"])
    for name in ("rewards", "scores", "truncated_rewards"):
        assert torch.equal(torch.tensor(answer[name]), expected[name]), name
    for metric, values in expected["extra_logs"].items():
        assert answer["extra_logs"][metric] == values.tolist(), metric


def test_no_queries_are_no_rewards_under_the_same_names():
    with client() as http:
        answer, usual = (http.post("/", json=payload(*responses)).json() for responses in ([], RESPONSES))
    assert answer["rewards"] == answer["scores"] == answer["truncated_rewards"] == []
    assert answer["extra_logs"] == {metric: [] for metric in usual["extra_logs"]}


# Requests that are refused with 422.
BAD = [
    (b"{", "not JSON"),
    (b"\xff\xfe{", "byte 1 is not UTF-8"),
    (b"[" * 100_000, "values are nested too deep"),
    (b'{"query": [' + b"9" * 5000 + b'], "prompts": [], "labels": []}', "query[0]: must be a valid string"),
    ([], "must have the fields query, prompts, labels"),
    ({"query": [], "labels": []}, "prompts: this field is missing"),
    ({"query": "q", "prompts": [], "labels": []}, "query: must be a valid list; got 'q'"),
    (payload("a", "b", labels=["1"]), "lists of equal length; got 2 query, 2 prompts, 1 labels"),
    (payload(*"abcdef"), "query has 6 rows, at most 5 are allowed (--max_queries)"),
    ({"query": ["a", None], "prompts": ["a", "a"], "labels": ["1", "1"]}, "query[1]: must be a valid string"),
    (payload("a", "b", labels=["1", None]), "labels[1]: a label is a string that is not empty, got NoneType"),
    (payload("a", labels=[r"\frac{1}{2"]), "labels[0]: it does not even equal itself"),
    (payload("a", labels=[float("nan")]), "labels[0]: it does not even equal itself"),
    ({"query": ["x"], "prompts": ["a\nb\ud800é"], "labels": ["1"]}, "query[0]: the query does not contain"),
]


@pytest.mark.parametrize(("body", "message"), BAD, ids=[message for _, message in BAD])
def test_a_request_that_is_not_as_the_protocol_says_is_refused_in_one_line(body, message):
    with client(max_queries=5) as http:
        answer = http.post("/", content=body if isinstance(body, bytes) else json.dumps(body))
    assert answer.status_code == 422
    detail = answer.json()["detail"]
    assert set(answer.json()) == {"detail"}
    assert message in detail
    assert detail == " ".join(detail.split())
    assert len(detail) <= 300


def test_labels_of_a_request_keep_their_type():
    body = json.dumps({"query": ["pa", "pb"], "prompts": ["p", "p"], "labels": [1, "2"]}).encode()
    assert parse_request(body, 2).labels == [1, "2"]


def test_a_label_may_be_a_number_or_name_its_source():
    labels = [42, 42.0, {"answer": "42", "source": "gsm8k"}]
    with client() as http:
        assert http.post("/", json=payload(*[r"\boxed{42}"] * 3, labels=labels)).json()["scores"] == [1, 1, 1]


def test_other_keys_are_ignored():
    with client() as http:
        assert http.post("/", json=payload(r"\boxed{42}") | {"images": [None]}).json()["scores"] == [1]


def test_the_largest_request_allowed_and_one_byte_more():
    with client(max_request_mb=1) as http:
        fits, too_large = (json.dumps(payload(r"\boxed{42}")).ljust(size) for size in (10**6, 10**6 + 1))
        assert http.post("/", content=fits).status_code == 200
        answer = http.post("/", content=too_large)
    assert answer.status_code == 413
    assert answer.json() == {"detail": "the request is larger than --max_request_mb 1"}


TOKENS = [
    ({}, "", 401),
    ({"Authorization": "Bearer wrong"}, "", 401),
    ({"Authorization": "Basic s3cret"}, "", 401),
    ({"Authorization": "Bearer s3cret"}, "", 200),
    ({"Authorization": "bearer  s3cret"}, "", 200),
    ({}, "?token=wrong", 401),
    ({}, "?token=", 401),
    ({}, "?token=%C3%A9%FF", 401),
    ({}, "?token=s3cret", 200),
    ({"Authorization": "Bearer wrong"}, "?token=s3cret", 401),
]


@pytest.mark.parametrize(("headers", "query", "status"), TOKENS)
def test_token(headers, query, status):
    with client(token="s3cret") as http:
        answer = http.post("/get_reward" + query, json=payload(r"\boxed{42}"), headers=headers)
        assert http.get("/health").json()["answers"] == {str(status): 1}
    assert answer.status_code == status
    assert (answer.headers.get("www-authenticate") == "Bearer") == (status == 401)


@pytest.mark.parametrize("name", ["max_request_mb", "max_total_mb", "max_connections", "max_queries"])
def test_limits_name_their_flag(name):
    with pytest.raises(ValueError, match=f"--{name} "):
        ServiceLimits(**{name: 0})


def test_health_counts_answers():
    with client() as http:
        http.post("/", json=payload(*RESPONSES))
        http.post("/", json=payload("a", labels=[""]))
        health = http.get("/health").json()
    assert health == {"status": "ok", "requests_in_work": 0, "answers": {"200": 1, "422": 1}}


def test_nothing_else_is_served():
    with client() as http:
        assert [http.get(path).status_code for path in ("/docs", "/openapi.json", "/get_reward")] == [404, 404, 405]


def test_a_refusal_is_logged(caplog):
    with caplog.at_level(logging.WARNING), client() as http:
        http.post("/", json=payload("a", labels=[""]))
    assert "answered 422: labels[0]: a label is a string" in caplog.text


@pytest.mark.parametrize(
    ("version", "headers", "status"),
    [
        ("1.1", (b"transfer-encoding", b"content-length"), 400),
        ("1.0", (b"transfer-encoding",), 400),
        ("1.1", (b"transfer-encoding",), 200),
        ("1.1", (b"content-length",), 200),
    ],
)
def test_a_request_with_two_ends_of_its_body_is_refused_and_its_connection_closed(version, headers, status):
    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "http.request", "body": b""}

    scope = {"type": "http", "method": "GET", "path": "/health", "query_string": b"", "root_path": ""}
    scope |= {"http_version": version, "headers": [(name, b"1") for name in headers]}
    with closing(make_service(CONFIG, ServiceLimits(), None)) as service:
        asyncio.run(make_app(service)(scope, receive, send))
    assert sent[0]["status"] == status
    assert ((b"connection", b"close") in sent[0]["headers"]) == (status == 400)
