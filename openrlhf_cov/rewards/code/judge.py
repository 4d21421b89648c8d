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
from openrlhf_cov.rewards.code.sandbox import MAX_WAITED, Left, Limits, ProgramEnd, Sandbox, readable
from openrlhf_cov.rewards.code.tests import Tests

Status = Literal["passed", "wrong", "presentation", "error", "time", "memory", "output", "syntax", "no_code"]
# Limit of the wall clock of a test: WALL_FACTOR times its limit of CPU time, plus WALL_EXTRA seconds, plus the time
# that the program waited for a busy machine.
WALL_FACTOR = 2.0
WALL_EXTRA = 1.0
# On a busy machine a program waits for at most so many times the CPU time that it uses.
MAX_SLOWDOWN = 20.0
# CPU time that starting a process takes outside of it.
STARTING_SECONDS = 0.02
# Seconds between two measurements of the CPU time of programs.
MEASURED_SECONDS = 0.05
MAX_DETAIL = 300
# Tests of one file for pytest, each combination of parameters counted.
MAX_REPORTS = 100_000


@dataclass(frozen=True, kw_only=True)
class ProgramBudget:
    """The budget of a program: CPU seconds per test, wall-clock seconds for all tests, memory and output."""

    seconds: float
    total_seconds: float
    memory_mb: int
    output_mb: int
    # End at the first test that fails.
    stop: bool = True

    def limits(self, seconds: float) -> Limits:
        """Return the limits of a process that may use ``seconds`` of CPU time."""
        return Limits(seconds=seconds, memory_mb=self.memory_mb, output_bytes=self.output_mb << 20)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result of the tests: ``status`` is that of the first test that failed, ``detail`` a message for a person."""

    status: Status
    passed: int
    total: int
    # Wall clock.
    seconds: float = 0.0
    detail: str = ""

    @classmethod
    def of(cls, first: "Failure | None", passed: int, total: int, started: float) -> "Verdict":
        """Make the verdict from the first failure, or from None if all tests passed.

        Args:
            first: The first failure.
            passed: Number of tests that passed.
            total: Number of tests.
            started: Value of ``time.monotonic`` when the tests began.
        """
        status, detail = (first.status, first.detail) if first else ("passed", "")
        return cls(status=status, passed=passed, total=total, seconds=time.monotonic() - started, detail=detail)

    @property
    def share(self) -> float:
        """The share of the tests that passed; 0 without a test."""
        return self.passed / self.total if self.total else 0.0


class Failure(Exception):
    """A test failed."""

    def __init__(self, status: Status, detail: str = "") -> None:
        super().__init__(status)
        self.status: Status = status
        # Texts may have megabytes, of which the end is kept.
        self.detail = " ".join(detail[-10 * MAX_DETAIL :].split())[-MAX_DETAIL:]


def judge(sandbox: Sandbox, program: str, tests: Tests, budget: ProgramBudget) -> Verdict:
    """Run a program on tests and return the verdict.

    Args:
        sandbox: Sandbox that runs the program.
        program: Source text in Python.
        tests: The tests, and how outputs are compared.
        budget: Limits of time, memory and output.

    Raises:
        SandboxError: The sandbox failed. A program never causes this error.
    """
    started = time.monotonic()
    run = _Judging(sandbox, program, tests, budget, started + budget.total_seconds)
    outcome = {"stdin": run.stdin, "calls": run.calls, "asserts": run.assertions, "pytest": run.assertions}[tests.kind]
    failures, passed, total = outcome()
    return Verdict.of(failures[0] if failures else None, passed, total, started)


# Failures in order, tests passed, tests.
Outcome = tuple[list[Failure], int, int]


class _Judging:
    """One program and its tests."""

    def __init__(self, sandbox: Sandbox, program: str, tests: Tests, budget: ProgramBudget, deadline: float) -> None:
        self._sandbox = sandbox
        self._program = program
        self._tests = tests
        self._budget = budget
        # When the time of all tests ends, and when it ends on a machine that keeps programs waiting.
        self._deadline = deadline
        self._latest = deadline + MAX_WAITED
        # CPU seconds of a test.
        self._seconds = tests.seconds or budget.seconds
        # CPU seconds that the running processes had used when the current test began, and when that was measured.
        self._used_before = 0.0
        self._measured = time.monotonic()

    def stdin(self) -> Outcome:
        """Run the program in a new process for each input."""
        failures = []
        passed = 0
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
        limits = self._budget.limits(self._seconds)
        process = self._sandbox.start(self._request("script"), limits, given.encode(errors="replace"))
        ending = process.finish(self._test_deadline(), self._left)
        if failure := failure_of(ending):
            raise failure
        # A program that sleeps uses no processor either. So waiting counts only as far as it can come from others.
        waited = max(0.0, time.monotonic() - started - ending.seconds)
        waited = min(waited, MAX_SLOWDOWN * (STARTING_SECONDS + ending.seconds))
        self._deadline = min(self._latest, self._deadline + waited)
        text = ending.stdout.decode(errors="replace")
        tests = self._tests
        match compare_outputs(text, expected, tests.tolerance, tests.unordered, tests.judge):
            case "presentation":
                raise Failure("presentation", f"the right words on other lines: {text[:100]!r}")
            case "different":
                raise Failure("wrong", f"printed {text[:100]!r}")

    def calls(self) -> Outcome:
        """Run the program in one process and call its function for one test after another."""
        cases = self._tests.cases
        failures = []
        passed = 0
        ours, theirs = socket.socketpair()
        with ours, theirs:
            request = self._request("calls") | {"function": self._tests.function}
            process = self._sandbox.start(request, self._whole_limits(), channel=theirs)
            theirs.close()
            lines = Lines(ours, self._left, self._budget.output_mb << 20)
            killed: Failure | None = None
            try:
                for arguments, expected in cases:
                    try:
                        self._ask(lines, arguments, expected)
                        passed += 1
                    except Failure as failure:
                        failures.append(failure)
                        if self._budget.stop:
                            break
            except Lost as lost:
                killed = lost.failure()
                process.kill("time") if killed else None
            ours.close()  # nothing more is asked
            ending = process.finish(time.monotonic() + WALL_EXTRA, self._left)
            if len(failures) + passed < len(cases) and (not failures or not self._budget.stop):
                failures.append(killed or failure_of(ending) or Failure("error", "the program ended early"))
        return failures, passed, len(cases)

    def _ask(self, lines: "Lines", arguments: list[Any], expected: Any) -> None:
        self._begin()
        deadline = self._test_deadline()
        if lines.rest:
            raise Failure("error", "the program answered before it was called")
        lines.send(wire.line(wire.dump(arguments)), deadline)
        reply = read_object(lines.next(deadline))
        value = value_of(reply)
        if not is_expected(value, expected, self._tests):
            raise Failure("wrong", f"returned {shown(value)}")

    def assertions(self) -> Outcome:
        """Run the program in one process and its tests in another, which reports each test."""
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
            checked = checker.finish(time.monotonic() + WALL_EXTRA, self._left)
            ended = program.finish(time.monotonic() + WALL_EXTRA, self._left)
        # A process of tests that ended at once has reported no number.
        total = total or (len(self._tests.cases) if self._tests.kind == "asserts" else 1)
        passed = sum(outcome.passed for outcome in outcomes)
        kinds: dict[str, Status] = {"AssertionError": "wrong", "MemoryError": "memory"}
        details = [outcome.detail for outcome in outcomes if not outcome.passed]
        failures = [Failure(kinds.get(detail.partition(":")[0], "error"), detail) for detail in details]
        if passed < total and (not failures or failures[0].status == "error"):
            ending = failure_of(ended)  # the program's own end says more than that the tests did not reach it
            if lost or (ending and ending.status != "error") or not failures:
                failures = [lost or ending or failure_of(checked) or Failure("error")]
        return failures, passed, total

    def _reports(self, pipe: Any) -> "tuple[int, list[Report], Failure | None]":
        """Return the number of tests, the reports of tests, and what kept the other tests from reporting."""
        lines = Lines(pipe, self._left, self._budget.output_mb << 20)
        total = 0
        outcomes: list[Report] = []
        try:
            total = number_of_tests(read_object(lines.next(self._test_deadline())))
            for _ in range(max(total, 1)):
                self._begin()
                outcomes.append(Report.of(read_object(lines.next(self._test_deadline()))))
                if self._budget.stop and not outcomes[-1].passed:
                    break
        except Lost as lost:
            return total, outcomes, lost.failure()
        except Failure as failure:
            return total, outcomes, failure
        return total, outcomes, None

    def _request(self, mode: str) -> dict[str, Any]:
        tests = self._tests
        return {"mode": mode, "source": self._program, "prelude": tests.prelude, "judge": tests.judge}

    def _whole_limits(self) -> Limits:
        """Return the limits of a process that runs all tests."""
        # At least ten tests: a file for pytest is one case, however many tests it has.
        return self._budget.limits(min(self._budget.total_seconds, self._seconds * max(len(self._tests.cases), 10)))

    def _begin(self) -> None:
        """Note the CPU time before a test. Short tests share a measurement, which takes as long as a call."""
        now = time.monotonic()
        if now - self._measured > MEASURED_SECONDS:
            self._used_before = self._sandbox.used()
            self._measured = now

    def _left(self, deadline: float) -> float:
        """Return the seconds until a deadline, see ``Sandbox.left``."""
        seconds = self._used_before + self._seconds + WALL_EXTRA
        return self._sandbox.left(deadline, seconds=seconds, latest=self._latest + WALL_EXTRA)

    def _test_deadline(self) -> float:
        return min(self._deadline, time.monotonic() + WALL_FACTOR * self._seconds + WALL_EXTRA)


def read_object(line: bytes) -> dict[str, Any]:
    """Return the JSON object on a line from a sandbox.

    Raises:
        Failure: The line holds anything else.
    """
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:  # ValueError: no JSON, or a number of too many digits
        raise Failure("error", f"a reply from the sandbox cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise Failure("error", "a reply from the sandbox is no object")
    return found


def value_of(reply: dict[str, Any]) -> Any:
    """Return the value in the reply of a called function.

    Raises:
        Failure: The function raised, or returned no plain data.
    """
    if "error" in reply:
        text = reply["error"]
        raise Failure("error", text if isinstance(text, str) else "the function raised an error")
    try:
        return read_value(reply["value"])
    except (ValueError, TypeError, KeyError, RecursionError, ArithmeticError) as error:
        raise Failure("wrong", f"the value is no plain data: {error}") from None


@dataclass(frozen=True)
class Report:
    """The report of the test process about one test."""

    passed: bool
    detail: str

    @classmethod
    def of(cls, reply: dict[str, Any]) -> "Report":
        """Read a report. A test passed only if the report says so with ``true``."""
        detail = reply.get("detail", "")
        return cls(reply.get("passed") is True, detail if isinstance(detail, str) else "")


def number_of_tests(reply: dict[str, Any]) -> int:
    """Return the number of tests that the process of the tests found.

    Raises:
        Failure: The reply holds no such number.
    """
    total = reply.get("tests")
    if type(total) is not int or not 0 <= total <= MAX_REPORTS:
        raise Failure("error", f"the number of tests is no number from 0 to {MAX_REPORTS:,}")
    return total


def is_expected(value: Any, expected: Any, tests: Tests) -> bool:
    """Return True if a call returned the expected value.

    Args:
        value: What the function returned, as ``value_of`` gives it.
        expected: What its test expects, as JSON has it.
        tests: The tests, which say how values are compared. With ``tests.unwrap`` the only element of an expected list
            of one element is also accepted.
    """
    alone = tests.unwrap and isinstance(expected, list) and len(expected) == 1
    wanted = [expected, *(expected if alone else [])]
    return any(same_value(value, each, tests.tolerance, tests.unordered) for each in wanted)


def checked_by(tests: Tests, budget: ProgramBudget) -> dict[str, Any]:
    """Return the request of the test process, as ``inside/testing.py`` reads it.

    Args:
        tests: The tests, of the kind "asserts" or "pytest".
        budget: The budget, which says whether the first failure ends the tests.
    """
    asserts = tests.kind == "asserts"
    return {
        "setup": tests.setup if asserts else tests.cases[0],
        "asserts": list(tests.cases) if asserts else [],
        "function": tests.function,
        "functions": not asserts,
        "stop": budget.stop,
    }


def failure_of(ending: ProgramEnd) -> Failure | None:
    """Return the failure that an ending means; None for an ending without a fault."""
    if ending.reason != "exited":
        return Failure("time" if ending.reason == "time" else "output")
    if ending.status == 0:
        return None
    if ending.status in (inside.OUT_OF_MEMORY, -9):  # -9: the kernel's, where the machine has no more
        return Failure("memory", ending.stderr)
    return Failure("syntax" if ending.status == inside.NO_PROGRAM else "error", ending.stderr)


class Lost(Exception):
    """No further line arrives: time or output exceeded its limit, or the other side has ended."""

    def __init__(self, reason: Literal["time", "output", "gone"]) -> None:
        super().__init__()
        self.reason: Literal["time", "output", "gone"] = reason

    def failure(self) -> Failure | None:
        """Return the failure of the program, if the reason is one."""
        return None if self.reason == "gone" else Failure(self.reason)


class Lines:
    """Lines from a socket or a pipe of a sandbox, up to a deadline and a length."""

    def __init__(self, source: Any, left: Left, most_bytes: int) -> None:
        self._source = source
        self._left = left
        self._most_bytes = most_bytes
        # What was received behind the last line.
        self.rest = b""

    def send(self, line: bytes, deadline: float) -> None:
        """Send a line over the socket.

        Args:
            line: The line, with its line break.
            deadline: A time of ``time.monotonic``.

        Raises:
            Lost: The line is not sent in time, or the other side has ended.
        """
        view = memoryview(line)
        while view:
            left = self._left(deadline)
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
        """Return the next line, without its line break.

        Args:
            deadline: A time of ``time.monotonic``.

        Raises:
            Lost: No line arrives in time, it is too long, or the other side has ended.
        """
        parts = [self.rest]
        size = len(self.rest)
        while b"\n" not in parts[-1]:
            chunk = self._receive(deadline)
            if not chunk:
                raise Lost("gone")
            if size > self._most_bytes:
                raise Lost("output")
            parts.append(chunk)
            size += len(chunk)
        line, _, self.rest = b"".join(parts).partition(b"\n")
        return line

    def _receive(self, deadline: float) -> bytes:
        while (left := self._left(deadline)) > 0:
            if readable([self._source.fileno()], left):
                try:
                    return os.read(self._source.fileno(), 1 << 16)
                except OSError:
                    return b""
        raise Lost("time")
