"""Programs judged with a sandbox service over HTTP, by SandboxFusion's protocol: POST ``/run_code``.

Inputs go there and outputs are compared here, as with the sandbox of this machine. Function calls and assertions run
beside the program in one container of the service, in a process of their own; what keeps the program from that process
is the service's affair, and mostly nothing does (docs/security.md).
"""

import json
import math
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from openrlhf_cov.rewards.code.comparison import compare_outputs, shown
from openrlhf_cov.rewards.code.inside import program as inside
from openrlhf_cov.rewards.code.inside import wire
from openrlhf_cov.rewards.code.judge import (
    Failure,
    ProgramBudget,
    Report,
    Status,
    Verdict,
    checked_by,
    is_expected,
    value_of,
)
from openrlhf_cov.rewards.code.sandbox import SandboxError
from openrlhf_cov.rewards.code.tests import Tests

PREFIX = "url:"
ATTEMPTS = 3
PAUSE_SECONDS = 1.0
# Seconds that the service may take beyond the run itself, to start it.
EXTRA_SECONDS = 30.0
MODULES = ("wire", "remote", "peer", "testing", "program")
# What the service runs for calls and assertions.
DRIVER = """
import io, json, os, resource, socket, sys, types
given = json.loads(GIVEN)
for name in given["modules"]:
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(given["modules"][name], name + ".py", "exec"), vars(module))
program, testing, wire = (sys.modules[name] for name in ("program", "testing", "wire"))
program.import_names()
ours, theirs = socket.socketpair()
child = os.fork()
if child == 0:
    status = 1
    try:
        ours.close()
        resource.setrlimit(resource.RLIMIT_CPU, (given["seconds"],) * 2)
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        os.dup2(theirs.fileno(), 4)
        os.dup2(os.open("/dev/null", os.O_RDWR), 1)
        os.dup2(1, 2)
        os.closerange(5, 256)
        program.MODES[given["request"]["mode"]](given["request"])
        status = 0
    except SyntaxError:
        status = program.NO_PROGRAM
    except MemoryError:
        status = program.OUT_OF_MEMORY
    finally:
        os._exit(status)
theirs.close()
replies = []
channel = ours.makefile("rwb")
try:
    if given["tests"]:
        results = io.BytesIO()
        try:
            testing.run(given["tests"], channel, results, program._prelude)
        except EOFError:
            pass
        replies = [json.loads(line) for line in results.getvalue().splitlines()]
    else:
        for arguments in given["calls"]:
            try:
                channel.write(wire.line(arguments))
                channel.flush()
                reply = json.loads(channel.readline())
            except (OSError, ValueError):
                break
            replies.append(reply)
    channel.close()
except OSError:  # what it could not send any more
    pass
ours.shutdown(socket.SHUT_RDWR)
_, status = os.waitpid(child, 0)
print(json.dumps([os.waitstatus_to_exitcode(status), replies]))
"""


def judge_by_service(sandbox: str, program: str, tests: Tests, budget: ProgramBudget) -> Verdict:
    """Return the verdict of a program that a sandbox service runs.

    Args:
        sandbox: ``url:`` and the address of the service, the value of ``--code_sandbox``.
        program: Source text in Python.
        tests: The tests, and how outputs are compared.
        budget: Limits of time, memory and output.

    Raises:
        SandboxError: The service does not answer, or could not run the program.
    """
    service = Service(sandbox.removeprefix(PREFIX), budget)
    started = time.monotonic()
    if tests.kind == "stdin":
        outcomes = _by_input(service, program, tests, started)
    elif tests.kind == "calls":
        outcomes = _by_calls(service, program, tests)
    else:
        outcomes = _by_assertions(service, program, tests)
    total = len(tests.cases) if tests.kind != "pytest" else max(1, len(outcomes))
    first = next((outcome for outcome in outcomes if outcome), None)
    passed = sum(outcome is None for outcome in outcomes)
    if first is None and passed < total:
        first = Failure("error", "not all tests were run")
    return Verdict.of(first, passed, total, started)


class Service:
    """One sandbox service."""

    def __init__(self, url: str, budget: ProgramBudget) -> None:
        self._url = url.rstrip("/") + "/run_code"
        self.budget = budget

    def run(self, code: str, seconds: float, stdin: str = "") -> str:
        """Return what a program prints.

        Args:
            code: Source text in Python.
            seconds: Limit of the run, in seconds of wall clock.
            stdin: The input of the program.

        Raises:
            Failure: The program did not end well: for its time, its memory, its output, or an error of its own.
            SandboxError: The service does not answer, or could not run the program.
        """
        body = {
            "code": code,
            "language": "python",
            "stdin": stdin,
            "compile_timeout": math.ceil(seconds),
            "run_timeout": seconds,
            "memory_limit_MB": self.budget.memory_mb,
            "files": {},
            "fetch_files": [],
        }
        answer = self._post(json.dumps(body).encode(), seconds + EXTRA_SECONDS)
        result = answer.get("run_result") or {}
        if not isinstance(result, dict):
            raise SandboxError(f"{self._url}: run_result in the answer of the service is no object")
        if answer.get("status") == "SandboxError" or result.get("status") == "Error":
            raise SandboxError(f"{self._url}: the service failed: {str(answer.get('message'))[:200]}")
        if result.get("status") == "TimeLimitExceeded":
            raise Failure("time")
        stderr = str(result.get("stderr") or "")
        stdout = str(result.get("stdout") or "")
        if result.get("return_code") != 0:
            last = stderr.strip().rpartition("\n")[2]
            kinds: dict[str, Status] = {"SyntaxError": "syntax", "IndentationError": "syntax", "MemoryError": "memory"}
            raise Failure(kinds.get(last.partition(":")[0], "error"), last)
        if len(stdout) > self.budget.output_mb << 20:
            raise Failure("output")
        return stdout

    def _post(self, body: bytes, timeout: float) -> dict[str, Any]:
        """Return the answer to a request, which is sent up to ``ATTEMPTS`` times.

        Raises:
            Failure: The answer is larger than the limit of the program's output.
            SandboxError: The service gives no verdict.
        """
        # The answer has the output as JSON, which writes some characters with six.
        most = (self.budget.output_mb << 20) * 8 + (1 << 20)
        fault = ""
        for attempt in range(ATTEMPTS):
            request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=timeout) as response:
                    content = response.read(most + 1)
                if len(content) > most:
                    raise Failure("output")
                answer = json.loads(content)
                if isinstance(answer, dict) and "status" in answer:
                    return answer
                fault = "the answer is none of SandboxFusion's"
            except urllib.error.HTTPError as error:
                fault = f"status {error.code}"
                # The service would refuse the request again; 429 asks to come back later.
                if error.code < 500 and error.code != 429:
                    break
            except (OSError, ValueError, RecursionError) as error:
                fault = f"{type(error).__name__}: {error}"
            if attempt + 1 < ATTEMPTS:
                time.sleep(PAUSE_SECONDS * (attempt + 1))
        raise SandboxError(f"{self._url} gives no verdict: {fault}")


def _by_input(service: Service, program: str, tests: Tests, started: float) -> list[Failure | None]:
    """Return the failure of each input, None for a passed test; up to the first failure if the budget says so."""
    outcomes: list[Failure | None] = []
    seconds = tests.seconds or service.budget.seconds
    before = [inside.before_programs(tests.judge), tests.prelude]
    if "__future__" in program:  # which has to stand first
        before = [tests.prelude]
    source = "\n".join([*filter(None, before), program])
    for given, expected in tests.cases:
        outcome: Failure | None = None
        try:
            if time.monotonic() - started > service.budget.total_seconds:
                raise Failure("time")
            text = service.run(source, seconds, given)
            likeness = compare_outputs(text, expected, tests.tolerance, tests.unordered, tests.judge)
            if likeness != "same":
                raise Failure("presentation" if likeness == "presentation" else "wrong", f"printed {text[:100]!r}")
        except Failure as failure:
            outcome = failure
        outcomes.append(outcome)
        if outcome and (service.budget.stop or outcome.status == "syntax"):
            break
    return outcomes


def _by_calls(service: Service, program: str, tests: Tests) -> list[Failure | None]:
    request = {"mode": "calls", "source": program, "prelude": tests.prelude, "function": tests.function}
    request["judge"] = tests.judge
    calls = [wire.dump(arguments) for arguments, _ in tests.cases]
    try:
        status, replies = _drive(service, request, calls, None)
    except Failure as failure:
        return [failure]
    outcomes: list[Failure | None] = []
    for reply, (_, expected) in zip(replies, tests.cases, strict=False):
        try:
            value = value_of(reply)
        except Failure as failure:
            outcomes.append(failure)
            continue
        right = is_expected(value, expected, tests)
        outcomes.append(None if right else Failure("wrong", f"returned {shown(value)}"))
    return outcomes if len(outcomes) == len(tests.cases) else [*outcomes, _ended(status)]


def _by_assertions(service: Service, program: str, tests: Tests) -> list[Failure | None]:
    request = {"mode": "served", "source": program, "prelude": tests.prelude}
    try:
        status, replies = _drive(service, request, [], checked_by(tests, service.budget))
    except Failure as failure:
        return [failure]
    if not replies:
        return [_ended(status)]
    reports = [Report.of(reply) for reply in replies[1:]]
    return [None if report.passed else Failure("wrong", report.detail) for report in reports]


def _drive(
    service: Service, request: dict[str, Any], calls: list[Any], tests: Any
) -> tuple[int, list[dict[str, Any]]]:
    """Return the exit status of the program and a reply for each call, or the reports of its tests."""
    folder = Path(__file__).with_name("inside")
    seconds = math.ceil(service.budget.total_seconds) + 1  # of a program that outlives its container's time
    modules = {name: (folder / f"{name}.py").read_text(encoding="utf-8") for name in MODULES}
    given = json.dumps({"modules": modules, "request": request, "calls": calls, "tests": tests, "seconds": seconds})
    text = service.run(DRIVER.replace("GIVEN", repr(given), 1), service.budget.total_seconds)
    try:
        status, replies = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise Failure("error", "the program kept its tests from reporting") from None
    if type(status) is not int or not isinstance(replies, list) or not all(isinstance(each, dict) for each in replies):
        raise Failure("error", "the program kept its tests from reporting")
    return status, replies


def _ended(status: int) -> Failure:
    kinds: dict[int, Status] = {inside.NO_PROGRAM: "syntax", inside.OUT_OF_MEMORY: "memory", -9: "memory"}
    return Failure(kinds.get(status, "error"), f"the program ended with status {status}")
