"""The rule ``code``: a grade for a response with a program, by the verdict of a sandbox. From any thread."""

import hashlib
import threading
from collections import OrderedDict
from dataclasses import asdict
from typing import Any

from openrlhf_cov.config import RewardConfig
from openrlhf_cov.errors import UsageError
from openrlhf_cov.rewards.code.fusion import PREFIX, judge_by_service
from openrlhf_cov.rewards.code.judge import ProgramBudget, Verdict
from openrlhf_cov.rewards.code.program_extraction import EXTRACTORS
from openrlhf_cov.rewards.code.sandbox import KILL_SECONDS, MAX_WAITED, Limits, Sandbox, SandboxError
from openrlhf_cov.rewards.code.tests import parse_tests
from openrlhf_cov.rewards.grades import Grade, Status
from openrlhf_cov.rewards.pool import WorkerCrashed, WorkerTimeout, shared_pool

TARGET = "openrlhf_cov.rewards.code.judge_worker:verdict_of"
# Address space of a worker beside what a program may use, which inherits its limit.
WORKER_BYTES = 2 << 30
FILE_BYTES = 1 << 30
# Beyond the budget of a response, after which its worker is killed: ending a killed program takes time, too.
SLACK_SECONDS = MAX_WAITED + KILL_SECONDS + 30.0
# Characters; a longer program is none.
MAX_PROGRAM = 200_000
# Verdicts that are kept.
REMEMBERED = 4096

GRADE_STATUS: dict[str, Status] = {"no_code": "no_answer", "syntax": "unparsable", "time": "timeout"}


class Verdicts:
    """The last verdicts, by program and tests. Timeouts are not kept: the machine may have been busy."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Verdict] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str) -> Verdict | None:
        """Return the verdict of this key; None if it is not kept."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: str, verdict: Verdict) -> None:
        """Keep a verdict, and drop the least recently used verdicts above ``REMEMBERED``.

        Args:
            key: The digest of the program, its tests and the settings.
            verdict: The verdict. A timeout is not kept.
        """
        if verdict.status == "time":
            return
        with self._lock:
            self._kept[key] = verdict
            while len(self._kept) > REMEMBERED:
                self._kept.popitem(last=False)


_verdicts = Verdicts()


def grade_code(response: str, label: str, config: RewardConfig, prompt: str = "") -> Grade:
    """Return the grade of the program in a response: correct if it passes all tests of the label.

    Args:
        response: The response without thinking.
        label: The tests as JSON, see ``tests.py``.
        config: Settings of the rewards.
        prompt: Not used; every rule takes one.

    Raises:
        ValueError: The label has no tests.
        WorkerDied: A process of the pool cannot start, or ended.
        SandboxError: The sandbox service does not work.
    """
    program = EXTRACTORS[config.code_extract](response)
    if program is None or len(program) > MAX_PROGRAM:
        return _grade(Verdict(status="no_code", passed=0, total=1), None, cached=False)
    tests = parse_tests(label).with_settings(config.code_float_tolerance, config.code_judge)
    budget = budget_of(config)
    facts = (program, tests.digest, tests.tolerance, tests.judge, config.code_sandbox, asdict(budget))
    key = hashlib.sha256(repr(facts).encode()).hexdigest()
    verdict = _verdicts.get(key)
    if verdict is not None:
        return _grade(verdict, program, cached=True)
    if config.code_sandbox.startswith(PREFIX):
        verdict = judge_by_service(config.code_sandbox, program, tests, budget)
    else:
        verdict = _judge_here(program, label, budget, config)
    _verdicts.put(key, verdict)
    return _grade(verdict, program, cached=False)


def check_code_ready(config: RewardConfig) -> None:
    """Check that programs can be run; a sandbox of this machine is started to see.

    Raises:
        UsageError: No program can be run; the message is one line.
    """
    if config.code_sandbox.startswith(PREFIX):
        return
    try:
        with Sandbox() as sandbox:
            request = {"mode": "script", "source": "print(6 * 7)"}
            ending = sandbox.run(request, Limits(seconds=10, memory_mb=config.code_memory_mb), wall=20)
    except SandboxError as error:
        raise UsageError(
            f"--code_sandbox {config.code_sandbox}: {error}; mend that, or send programs to a sandbox service with "
            "--code_sandbox url:http://HOST:PORT"
        ) from error
    if ending.stdout != b"42\n":
        raise UsageError(f"--code_sandbox {config.code_sandbox}: a program ends with {ending.stderr!r:.200}")


def budget_of(config: RewardConfig) -> ProgramBudget:
    """Return the budget of a program by these settings."""
    return ProgramBudget(
        seconds=config.code_timeout,
        total_seconds=config.code_budget,
        memory_mb=config.code_memory_mb,
        output_mb=config.code_output_mb,
        stop=config.code_reward == "all",
    )


def _judge_here(program: str, label: str, budget: ProgramBudget, config: RewardConfig) -> Verdict:
    pool = shared_pool(
        config.reward_workers,
        TARGET,
        memory_bytes=max(WORKER_BYTES, budget.memory_mb * 2 << 20),
        file_bytes=FILE_BYTES,
    )
    timeout = budget.total_seconds + SLACK_SECONDS
    for attempt in (1, 2):
        try:
            settings = (config.code_float_tolerance, config.code_judge)
            fields: dict[str, Any] = pool.call(program, label, asdict(budget), *settings, timeout=timeout)
            return Verdict(**fields)
        except WorkerTimeout:
            return Verdict(status="time", passed=0, total=1, seconds=timeout)
        except WorkerCrashed:  # of the comparing process; not by the program, which is in another one
            if attempt == 2:
                return Verdict(status="error", passed=0, total=1, detail="the comparing process crashed")
    raise AssertionError


def _grade(verdict: Verdict, program: str | None, cached: bool) -> Grade:
    return Grade(
        verdict.status == "passed",
        GRADE_STATUS.get(verdict.status, "graded"),
        program,
        0.0 if cached else verdict.seconds,
        verdict=verdict.status,
        share=verdict.share,
        cached=cached,
        detail=verdict.detail,
    )
