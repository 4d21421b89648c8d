"""The verdict about a program: run on its tests in a sandbox, compared outside.

What a program's process says decides nothing by itself. Outputs and values are compared here, with expectations that
never enter the sandbox; assertions run in a sandboxed process of their own, which sees plain values of the program
(``inside/peer.py``), and report on a pipe that the program does not have.
"""

import json
import os
import socket
import time
from dataclasses import dataclass
from typing import Any, Literal

from openrlhf_cov.rewards.code.comparison import compare_outputs, read_value, same_value, shown
from openrlhf_cov.rewards.code.inside import program as inside
from openrlhf_cov.rewards.code.inside import wire
from openrlhf_cov.rewards.code.sandbox import MAX_WAITED, Limits, ProgramEnd, Sandbox, readable
from openrlhf_cov.rewards.code.tests import Tests

Status = Literal["passed", "wrong", "presentation", "error", "time", "memory", "output", "syntax", "no_code"]
WALL_FACTOR, WALL_EXTRA = 2.0, 1.0
"""Wall clock of a test: so many times its CPU time, so many seconds more, and what a busy machine kept it waiting."""
MAX_DETAIL = 300


@dataclass(frozen=True, kw_only=True)
class ProgramBudget:
    """What a program may use: CPU seconds for a test, wall-clock seconds for all of them, memory and output."""

    seconds: float
    total_seconds: float
    memory_mb: int
    output_mb: int
    stop: bool = True
    """End at the first test that fails."""

    def limits(self, seconds: float) -> Limits:
        """The limits of a process that may use so much CPU time."""
        return Limits(seconds=seconds, memory_mb=self.memory_mb, output_bytes=self.output_mb << 20)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """``status`` is that of the first test that failed; ``detail`` says more for a person."""

    status: Status
    passed: int
    total: int
    seconds: float = 0.0
    """Wall clock."""
    detail: str = ""

    @classmethod
    def of(cls, first: "Failure | None", passed: int, total: int, started: float) -> "Verdict":
        """By the first failure, of tests that began at ``started`` (of ``time.monotonic``)."""
        status, detail = (first.status, first.detail) if first else ("passed", "")
        return cls(status=status, passed=passed, total=total, seconds=time.monotonic() - started, detail=detail)

    @property
    def share(self) -> float:
        """Of the tests that passed."""
        return self.passed / self.total if self.total else 0.0


class Failure(Exception):
    """A test that was not passed."""

    def __init__(self, status: Status, detail: str = "") -> None:
        super().__init__(status)
        self.status: Status = status
        self.detail = " ".join(detail.split())[-MAX_DETAIL:]


def judge(sandbox: Sandbox, program: str, tests: Tests, budget: ProgramBudget) -> Verdict:
    """The verdict. Raises SandboxError, never for a program."""
    started = time.monotonic()
    run = _Judging(sandbox, program, tests, budget, started + budget.total_seconds)
    outcome = {"stdin": run.stdin, "calls": run.calls, "asserts": run.assertions, "pytest": run.assertions}[tests.kind]
    failures, passed, total = outcome()
    return Verdict.of(failures[0] if failures else None, passed, total, started)


Outcome = tuple[list[Failure], int, int]
"""Failures in order, tests passed, tests."""


class _Judging:
    """One program and its tests."""

    def __init__(self, sandbox: Sandbox, program: str, tests: Tests, budget: ProgramBudget, deadline: float) -> None:
        self._sandbox, self._program, self._tests, self._budget = sandbox, program, tests, budget
        self._deadline, self._latest = deadline, deadline + MAX_WAITED
        self._seconds = tests.seconds or budget.seconds

    def stdin(self) -> Outcome:
        """A process for each input."""
        failures, passed = [], 0
        for given, expected in self._tests.cases:
            try:
                self._one(given, expected)
                passed += 1
            except Failure as failure:
                failures.append(failure)
                if self._budget.stop or failure.status == "syntax" or time.monotonic() > self._deadline:
                    break
        return failures, passed, len(self._tests.cases)

    def _one(self, given: str, expected: str) -> None:
        started = time.monotonic()
        process = self._sandbox.start(
            self._request("script"), self._budget.limits(self._seconds), given.encode(errors="surrogatepass")
        )
        ending = process.finish(self._test_deadline())
        if failure := failure_of(ending):
            raise failure
        waited = max(0.0, time.monotonic() - started - ending.seconds)
        self._deadline = min(self._latest, self._deadline + waited)  # it was no time of the program's
        text = ending.stdout.decode(errors="replace")
        tests = self._tests
        match compare_outputs(text, expected, tests.tolerance, tests.unordered, tests.judge):
            case "presentation":
                raise Failure("presentation", f"the right words on other lines: {text[:100]!r}")
            case "different":
                raise Failure("wrong", f"printed {text[:100]!r}")

    def calls(self) -> Outcome:
        """One process that is asked for one value after the other."""
        cases, failures, passed = self._tests.cases, [], 0
        ours, theirs = socket.socketpair()
        with ours, theirs:
            request = self._request("calls") | {"function": self._tests.function}
            process = self._sandbox.start(request, self._whole_limits(), channel=theirs)
            theirs.close()
            lines = Lines(ours, self._sandbox, self._budget.output_mb << 20)
            killed: Failure | None = None
            try:
                for arguments, expected in cases:
                    try:
                        self._ask(ours, lines, arguments, expected)
                        passed += 1
                    except Failure as failure:
                        failures.append(failure)
                        if self._budget.stop:
                            break
            except Lost as lost:
                killed = lost.failure()
                process.kill("time") if killed else None
            ours.close()  # nothing more is asked
            ending = process.finish(time.monotonic() + WALL_EXTRA)
            if len(failures) + passed < len(cases) and (not failures or not self._budget.stop):
                failures.append(killed or failure_of(ending) or Failure("error", "the program ended early"))
        return failures, passed, len(cases)

    def _ask(self, channel: socket.socket, lines: "Lines", arguments: list[Any], expected: Any) -> None:
        deadline = self._test_deadline()
        lines.send(wire.line(wire.dump(arguments)), deadline)
        try:
            reply = json.loads(lines.next(deadline))
            if "error" in reply:
                raise Failure("error", str(reply["error"]))
            value = read_value(reply["value"])
        except Failure:
            raise
        except (ValueError, TypeError, KeyError, RecursionError, ArithmeticError, AttributeError) as error:
            raise Failure("wrong", f"the value is no plain data: {error}") from None
        if not is_expected(value, expected, self._tests):
            raise Failure("wrong", f"returned {shown(value)}")

    def assertions(self) -> Outcome:
        """A process for the program and one for the tests, which reports each."""
        ours, theirs = socket.socketpair()
        reading, writing = os.pipe()
        with ours, theirs, open(reading, "rb", buffering=0) as pipe:
            program = self._sandbox.start(self._request("served"), self._whole_limits(), channel=ours)
            request = {"mode": "tests"} | checked_by(self._tests, self._budget)
            checker = self._sandbox.start(request, self._whole_limits(), channel=theirs, results=writing)
            for end in (ours, theirs):
                end.close()
            os.close(writing)
            total, outcomes, lost = self._reports(pipe)
            for process in (checker, program):
                if lost:
                    process.kill("time")
            checked = checker.finish(time.monotonic() + WALL_EXTRA)
            ended = program.finish(time.monotonic() + WALL_EXTRA)
        total = total or (len(self._tests.cases) if self._tests.kind == "asserts" else 1)
        passed = sum(outcome["passed"] for outcome in outcomes)
        failures = [_failed(outcome["detail"]) for outcome in outcomes if not outcome["passed"]]
        if passed < total and (not failures or failures[0].status == "error"):
            ending = failure_of(ended)  # the program's own end says more than that the tests did not reach it
            if lost or (ending and ending.status != "error") or not failures:
                failures = [lost or ending or failure_of(checked) or Failure("error")]
        return failures, passed, total

    def _reports(self, pipe: Any) -> tuple[int, list[dict[str, Any]], Failure | None]:
        """Number of tests, outcome of each that was reported, what kept the others from it."""
        lines = Lines(pipe, self._sandbox, self._budget.output_mb << 20)
        total, outcomes = 0, []
        try:
            total = json.loads(lines.next(self._test_deadline()))["tests"]
            for _ in range(max(total, 1)):
                outcomes.append(json.loads(lines.next(self._test_deadline())))
                if self._budget.stop and not outcomes[-1]["passed"]:
                    break
        except Lost as lost:
            return total, outcomes, lost.failure()
        return total, outcomes, None

    def _request(self, mode: str) -> dict[str, Any]:
        tests = self._tests
        return {"mode": mode, "source": self._program, "prelude": tests.prelude, "judge": tests.judge}

    def _whole_limits(self) -> Limits:
        """Those of a process that goes through all tests."""
        return self._budget.limits(min(self._budget.total_seconds, self._seconds * max(len(self._tests.cases), 10)))

    def _test_deadline(self) -> float:
        return min(self._deadline, time.monotonic() + WALL_FACTOR * self._seconds + WALL_EXTRA)


def is_expected(value: Any, expected: Any, tests: Tests) -> bool:
    """Whether a call gave what its test expects, or what that holds alone where the tests say so."""
    alone = tests.unwrap and isinstance(expected, list) and len(expected) == 1
    wanted = [expected, *(expected if alone else [])]
    return any(same_value(value, each, tests.tolerance, tests.unordered) for each in wanted)


def checked_by(tests: Tests, budget: ProgramBudget) -> dict[str, Any]:
    """Assertions, or a file for pytest, as ``inside/testing.py`` takes them."""
    asserts = tests.kind == "asserts"
    return {
        "setup": tests.setup if asserts else tests.cases[0],
        "asserts": list(tests.cases) if asserts else [],
        "function": tests.function,
        "functions": not asserts,
        "stop": budget.stop,
    }


def failure_of(ending: ProgramEnd) -> Failure | None:
    """What an ending says; None for one without a fault."""
    if ending.reason != "exited":
        return Failure("time" if ending.reason == "time" else "output")
    if ending.status == 0:
        return None
    if ending.status in (inside.OUT_OF_MEMORY, -9):  # -9: the kernel's, where the machine has no more
        return Failure("memory", ending.stderr)
    return Failure("syntax" if ending.status == inside.NO_PROGRAM else "error", ending.stderr)


def _failed(detail: str) -> Failure:
    kinds: dict[str, Status] = {"AssertionError": "wrong", "MemoryError": "memory"}
    return Failure(kinds.get(detail.partition(":")[0], "error"), detail)


class Lost(Exception):
    """No line comes any more: for its time or length, or the other side has gone."""

    def __init__(self, reason: Literal["time", "output", "gone"]) -> None:
        super().__init__()
        self.reason = reason

    def failure(self) -> Failure | None:
        """What it says about the program, if it says something."""
        return None if self.reason == "gone" else Failure(self.reason)


class Lines:
    """Lines from a socket or a pipe of a sandbox, up to a deadline and a length."""

    def __init__(self, source: Any, sandbox: Sandbox, most_bytes: int) -> None:
        self._source, self._sandbox, self._most_bytes, self._rest = source, sandbox, most_bytes, b""

    def send(self, line: bytes, deadline: float) -> None:
        """Send a line over the socket."""
        view = memoryview(line)
        while view:
            left = self._sandbox.left(deadline)
            if left <= 0:
                raise Lost("time")
            try:
                self._source.settimeout(left)
                view = view[self._source.send(view) :]
            except TimeoutError:
                continue
            except OSError:
                raise Lost("gone") from None

    def next(self, deadline: float) -> bytes:
        """The next line."""
        parts = [self._rest]
        size = len(self._rest)
        while b"\n" not in parts[-1]:
            chunk = self._receive(deadline)
            if not chunk:
                raise Lost("gone")
            if size > self._most_bytes:
                raise Lost("output")
            parts.append(chunk)
            size += len(chunk)
        line, _, self._rest = b"".join(parts).partition(b"\n")
        return line

    def _receive(self, deadline: float) -> bytes:
        while (left := self._sandbox.left(deadline)) > 0:
            if readable([self._source.fileno()], left):
                try:
                    return os.read(self._source.fileno(), 1 << 16)
                except OSError:
                    return b""
        raise Lost("time")
