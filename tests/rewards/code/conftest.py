"""A sandbox to run programs in; where a machine has none, tests that need it are skipped and say why."""

import json

import pytest

from openrlhf_cov.rewards.code.judge import ProgramBudget, judge
from openrlhf_cov.rewards.code.sandbox import Limits, Sandbox, SandboxError
from openrlhf_cov.rewards.code.tests import parse_tests

LIMITS = Limits(seconds=2.0, memory_mb=256, files_mb=16, output_bytes=1 << 20)
BUDGET = ProgramBudget(seconds=1.0, total_seconds=20.0, memory_mb=256, output_mb=1)


@pytest.fixture(scope="session")
def sandbox():
    """One sandbox for all tests of a session: that each program finds it as new is part of what they test."""
    try:
        made = Sandbox()
    except SandboxError as error:
        pytest.skip(f"this machine has no sandbox: {error}")
    with made:
        yield made


@pytest.fixture
def run(sandbox):
    """``run(source, stdin)`` -> how the program ended."""
    return lambda source, stdin=b"", wall=10.0, limits=LIMITS: sandbox.run(
        {"mode": "script", "source": source}, limits, stdin, wall=wall
    )


@pytest.fixture
def verdict(sandbox):
    """``verdict(program, tests)`` -> the verdict, with tests as a label says them."""
    return lambda program, tests, budget=BUDGET: judge(sandbox, program, parse_tests(json.dumps(tests)), budget)
