"""Programs that a sandbox service runs, with a stand-in for the service."""

import importlib.util
import json
from pathlib import Path

import pytest

from openrlhf_cov.rewards.code import fusion
from openrlhf_cov.rewards.code.fusion import judge_by_service
from openrlhf_cov.rewards.code.judge import ProgramBudget
from openrlhf_cov.rewards.code.sandbox import SandboxError
from openrlhf_cov.rewards.code.tests import parse_tests

spec = importlib.util.spec_from_file_location("fusion_service", Path(__file__).with_name("fusion_service.py"))
stub = importlib.util.module_from_spec(spec)
spec.loader.exec_module(stub)

BUDGET = ProgramBudget(seconds=2.0, total_seconds=10.0, memory_mb=512, output_mb=1)
STDIN = {"stdin": [["3\n", "9\n"], ["4\n", "16\n"]]}
CALLS = {"function": "solve", "calls": [[[3], 9], [[4], 16]]}
ASSERTS = ["assert solve(3) == 9", "assert solve(4) == 16"]
PYTEST = {"pytest": "import pytest\nfrom solution import solve\n\n@pytest.mark.parametrize('n', [1, 2, 3])\n"
          "def test_solve(n):\n    assert solve(n) == n * n\n"}  # fmt: skip


@pytest.fixture
def service(monkeypatch):
    monkeypatch.setattr(fusion, "PAUSE_SECONDS", 0.0)
    with stub.serving() as server:
        yield server


def verdict(service, program, tests, budget=BUDGET):
    return judge_by_service(service.url, program, parse_tests(json.dumps(tests)), budget)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "tests", "status", "passed"),
    [
        ("print(int(input()) ** 2)", STDIN, "passed", 2),
        ("print(9)", STDIN, "wrong", 1),
        ("print(int(input()) ** 2)\n1 / 0", STDIN, "error", 0),
        ("print(", STDIN, "syntax", 0),
        ("x = bytearray(1 << 60)", STDIN, "memory", 0),
        ("print('x' * 2_000_000)", STDIN, "output", 0),
        ("def solve(n): return n * n", CALLS, "passed", 2),
        ("class Solution:\n    def solve(self, n): return n * n", CALLS, "passed", 2),
        ("def solve(n): return 9", CALLS, "wrong", 1),
        ("def solve(n): return 1 / 0", CALLS, "error", 0),
        ("def solve(n):", CALLS, "syntax", 0),
        ("import os\nos._exit(0)", CALLS, "error", 0),
        ("def solve(n): return n * n", ASSERTS, "passed", 2),
        ("def solve(n): return 9", ASSERTS, "wrong", 1),
        ("class E:\n    def __eq__(self, other): return True\ndef solve(n): return E()", ASSERTS, "wrong", 0),
        ("import sys\nsys.exit(0)", ASSERTS, "error", 0),
        ("def solve(n): return n * n", PYTEST, "passed", 3),
        ("def solve(n): return n", PYTEST, "wrong", 1),
        ("print('[0, []]')\ndef solve(n): return n", PYTEST, "wrong", 1),
    ],
)
def test_verdicts(service, program, tests, status, passed):
    found = verdict(service, program, tests)
    assert (found.status, found.passed) == (status, passed), found


@pytest.mark.slow
def test_a_program_that_takes_too_long(service):
    budget = ProgramBudget(seconds=0.5, total_seconds=0.5, memory_mb=512, output_mb=1)
    assert verdict(service, "while True: pass", STDIN, budget).status == "time"
    assert verdict(service, "def solve(n):\n    while True: pass", CALLS, budget).status == "time"


def test_the_request_is_the_services(service):
    verdict(service, "print(9)", {"stdin": [["3\n", "9\n"]], "seconds": 1.5})
    [(path, body)] = service.requests
    assert path == "/run_code"
    assert body == {
        "code": "print(9)",
        "language": "python",
        "stdin": "3\n",
        "compile_timeout": 2,
        "run_timeout": 1.5,
        "memory_limit_MB": 512,
        "files": {},
        "fetch_files": [],
    }


@pytest.mark.slow
def test_the_expected_values_of_calls_are_not_sent(service):
    verdict(service, "def solve(n): return 0", {"function": "solve", "calls": [[[1], "the-answer"]]})
    assert "the-answer" not in json.dumps(service.requests)


def test_an_answer_that_fails_is_asked_for_again(service):
    service.faults[:] = [503, b"no JSON"]
    assert verdict(service, "print(int(input()) ** 2)", STDIN).status == "passed"


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ([503, 503, 503], "status 503"),
        ([404], "status 404"),
        ([b"[]", b"{}", b"[[["], "gives no verdict"),
        ([b'{"status": "SandboxError", "message": "no container"}'], "no container"),
    ],
)
def test_a_service_that_fails_is_no_verdict(service, faults, message):
    service.faults[:] = faults
    with pytest.raises(SandboxError, match=message):
        verdict(service, "print(9)", STDIN)


def test_nobody_there(monkeypatch):
    monkeypatch.setattr(fusion, "PAUSE_SECONDS", 0.0)
    budget = ProgramBudget(seconds=0.1, total_seconds=0.1, memory_mb=128, output_mb=1)
    with pytest.raises(SandboxError, match="gives no verdict"):
        judge_by_service("url:http://127.0.0.1:1", "print()", parse_tests('{"stdin": [["", "1"]]}'), budget)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "judge", "status"),
    [
        ("print(float(input()) ** 2)", "livecodebench", "passed"),
        ("print(float(input()) ** 2)", "exact", "wrong"),
        ("print(deque([int(input()) ** 2])[0])", "livecodebench", "passed"),
        ("print(deque([int(input()) ** 2])[0])", "apps", "passed"),
        ("print(deque([int(input()) ** 2])[0])", "exact", "error"),
        ("from __future__ import annotations\nprint(int(input()) ** 2)", "prime", "passed"),
    ],
)
def test_a_service_judges_as_the_published_judge(service, program, judge, status):
    assert verdict(service, program, STDIN | {"judge": judge}).status == status
