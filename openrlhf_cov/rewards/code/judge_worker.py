"""Run ``judge`` in a worker process of the pool, in a sandbox started at import."""

from dataclasses import asdict
from typing import Any

from openrlhf_cov.rewards.code.judge import ProgramBudget, judge
from openrlhf_cov.rewards.code.sandbox import Sandbox, SandboxError
from openrlhf_cov.rewards.code.tests import parse_tests

_sandbox = Sandbox()


def verdict_of(program: str, label: str, budget: dict[str, Any], tolerance: float, judged_by: str) -> dict[str, Any]:
    """Return the fields of the verdict about a program. A sandbox that has broken is replaced once.

    Args:
        program: Source text in Python.
        label: The tests as a label has them.
        budget: The fields of a ``ProgramBudget``.
        tolerance: Tolerance of numbers for tests that have none of their own; 0 for none.
        judged_by: Value of ``--code_judge``.

    Raises:
        ValueError: The label has no tests.
        SandboxError: The new sandbox fails as well.
    """
    global _sandbox
    tests = parse_tests(label).with_settings(tolerance, judged_by)
    limits = ProgramBudget(**budget)
    try:
        return asdict(judge(_sandbox, program, tests, limits))
    except SandboxError:
        _sandbox.close()
        _sandbox = Sandbox()
        return asdict(judge(_sandbox, program, tests, limits))
