"""What a verdict says, and what costs a program its budget and nothing else."""

import time
from dataclasses import replace

import pytest

from openrlhf_cov.rewards.code.judge import ProgramBudget
from openrlhf_cov.rewards.code.sandbox import Sandbox

ONE = {"stdin": [["", "1"]]}
CALL = {"function": "f", "calls": [[[1], 1]]}
ROOMY = ProgramBudget(seconds=2.0, total_seconds=60.0, memory_mb=256, output_mb=1)
SHORT = ProgramBudget(seconds=0.2, total_seconds=0.3, memory_mb=256, output_mb=1)


@pytest.mark.parametrize(
    ("program", "tests", "lines"),
    [
        ("x = 1\ndef g():\n    return int('q')\n\ng()", ONE, ["line 5", "g()", "line 3", "ValueError: invalid"]),
        ("\ndef f(a):\n    return int('q')", CALL, ["line 3", "return int('q')", "ValueError: invalid"]),
        (
            "\ndef f(a):\n    return int('q')",
            ["assert f(1)"],
            ["ValueError: invalid", "line 3 of the program", "assert f(1)"],
        ),
        ("def f(a): return 2", ["assert f(1) == 1"], ["AssertionError", "assert f(1) == 1"]),
        ("x = 1\ny = )", ONE, ["SyntaxError", "line 2"]),
        ("raise RuntimeError('x' * 10_000)", ONE, ["xxx"]),
        ("import sys\nsys.exit('no')", ONE, ["no"]),
    ],
)
def test_what_is_said_about_an_error_is_about_the_program(verdict, program, tests, lines):
    detail = verdict(program, tests).detail
    assert not [line for line in lines if line not in detail], detail
    assert "program.py" not in detail
    assert "supervisor" not in detail


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize(
    "tests", [CALL, ["assert f(1) == 1"], {"pytest": "from solution import f\ndef test_f(): assert f(1) == 1"}]
)
def test_what_is_written_beside_a_call_keeps_nobody_waiting(verdict, stream, tests):
    program = f"import sys\ndef f(a):\n    for _ in range(99): sys.{stream}.write('x' * 10_000)\n    return a\nf(1)"
    assert verdict(program, tests).status == "passed"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "statuses"),
    [
        ("import sys\nsys.setrecursionlimit(10**9)\ndef g(n): return g(n + 1)\ng(0)", ("time", "memory", "error")),
        ("import sys\nfrom functools import cache\nsys.setrecursionlimit(10**9)\n@cache\n"
         "def g(n): return g(n + 1)\ng(0)", ("time", "memory", "error")),
        ("def g(n): return g(n + 1)\ng(0)", ("error",)),
    ],
)  # fmt: skip
def test_recursion_without_an_end_costs_its_own_budget(verdict, program, statuses):
    assert verdict(program, ONE).status in statuses
    assert verdict("print(1)", ONE).status == "passed"


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [
        "def f(a): return {(2**61 - 1) * each for each in range(10**5)}",
        "def f(a): return 'x' * (1 << 21)",
        "def f(a): return [[]] * 10**6",
    ],
)
def test_values_that_are_costly_to_compare_cost_the_program_alone(verdict, program):
    assert verdict(program, CALL, SHORT).status in ("time", "output")


@pytest.mark.slow
@pytest.mark.parametrize("tests", [ONE, CALL, ["assert f(1) == 1"]])
def test_time_for_which_a_busy_machine_keeps_a_program_waiting_is_not_its_own(verdict, monkeypatch, tests):
    program = "import time\ndef f(a):\n    time.sleep(2)\n    return 1\nif __name__ == '__main__': print(f(1))"
    monkeypatch.setattr(Sandbox, "_waited", lambda sandbox: 0.0)
    assert verdict(program, tests, SHORT).status == "time"
    monkeypatch.setattr(Sandbox, "_waited", lambda sandbox: 9.0)
    assert verdict(program, tests, SHORT).status == "passed"


@pytest.mark.slow
def test_many_inputs_are_not_lost_to_a_busy_machine(verdict):
    program = "import time\ntime.sleep(0.2)\nprint(1)"
    assert verdict(program, {"stdin": [["", "1"]] * 4}, SHORT).passed == 4


def test_waiting_is_counted_while_a_program_runs(sandbox):
    from openrlhf_cov.rewards.code.sandbox import Limits

    process = sandbox.start({"mode": "script", "source": "while True: pass"}, Limits(seconds=5))
    time.sleep(0.3)
    waited = sandbox._waited()
    process.kill("time")
    process.finish(time.monotonic() + 20)
    assert waited > 0


@pytest.mark.parametrize("stop", [True, False])
@pytest.mark.parametrize(
    ("program", "tests"),
    [
        ("n = int(input())\nprint(n if n == 2 else 9)", {"stdin": [["1", "1"], ["2", "2"]]}),
        ("def f(n): return n if n == 2 else 9", {"function": "f", "calls": [[[1], 1], [[2], 2]]}),
        ("def f(n): return n if n == 2 else 9", ["assert f(1) == 1", "assert f(2) == 2"]),
    ],
)
def test_the_first_failure_ends_it_unless_shares_are_asked_for(verdict, program, tests, stop):
    found = verdict(program, tests, replace(ROOMY, stop=stop))
    assert found.status == "wrong" or isinstance(tests, list)
    assert found.share == (0.0 if stop else 0.5)  # the second test of two passes where it runs


@pytest.mark.slow
def test_all_tests_of_a_response_share_one_budget(verdict):
    busy = "import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass\nprint(1)"
    tests = {"stdin": [["", "1"]] * 8}  # each within its 2 s, 1.6 s together
    assert verdict(busy, tests, replace(ROOMY, total_seconds=0.5)).status == "time"
    assert verdict(busy, tests, ROOMY).status == "passed"


TINY = ProgramBudget(seconds=0.3, total_seconds=4.0, memory_mb=256, output_mb=1, stop=False)
ENDLESS = {
    "a generator": "def f(a):\n    while True: yield 9",
    "a generator of lists": "def f(a):\n    while True: yield [9]",
    "an iterator": "class I:\n    __iter__ = lambda self: self\n    __next__ = lambda self: 9\ndef f(a): return I()",
    "items": "class I:\n    __len__ = lambda self: 10**9\n    __getitem__ = lambda self, n: 9\n"
    "    __iter__ = lambda self: iter(range(10**9))\ndef f(a): return I()",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ENDLESS)
def test_messages_between_two_processes_gather_no_time(verdict, monkeypatch, name):
    monkeypatch.setattr(Sandbox, "_waited", lambda sandbox: 100.0)  # as if each had waited for the other one
    used = []
    real = Sandbox.used

    def record(sandbox):
        used.append(real(sandbox))
        return used[-1]

    monkeypatch.setattr(Sandbox, "used", record)
    found = verdict(ENDLESS[name], ["assert list(f(1)) == [1]"] * 3, TINY)
    assert found.passed == 0
    assert found.status in ("time", "memory")  # memory: for a length that an object only says it has
    assert max([0.0, *used]) < 2.5  # of 0.3 s for a test and 1 s more; the limits of both processes together are 8 s


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "tests"),
    [
        ("import time\ntime.sleep(1.2)\nprint(1)", {"stdin": [["", "1"]] * 40}),
        ("import select\nselect.select([], [], [], 1.2)\nprint(1)", {"stdin": [["", "1"]] * 40}),
        ("import time\ndef f(a): time.sleep(1.2); return a", {"function": "f", "calls": [[[1], 1]] * 40}),
        ("import time\ndef f(a): time.sleep(1.2); return a", ["assert f(1) == 1"] * 40),
        ("import threading\ndef f(a): threading.Event().wait(1.2); return a", ["assert f(1) == 1"] * 40),
    ],
)
def test_a_program_that_sleeps_gathers_no_time(verdict, program, tests):
    started = time.monotonic()
    found = verdict(program, tests, replace(TINY, total_seconds=1.5))
    assert found.status == "time"
    assert found.passed < 10
    assert time.monotonic() - started < 20.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "tests", [{"function": "f", "calls": [[[1], 1]]}, ["assert f(1) == 1"]], ids=["calls", "assertions"]
)
@pytest.mark.parametrize("end", ["while True: pass", "threading.Event().wait()"])
def test_what_a_program_does_after_its_answers_keeps_nobody_waiting(verdict, tests, end):
    program = f"""
import os, threading
def f(a): return a
def last():
    threading.main_thread().join()
    {end}
close = os._exit
def _exit(status):
    {end}
os._exit = _exit
"""
    started = time.monotonic()
    assert verdict(program, tests, TINY).passed == 1
    assert time.monotonic() - started < 20.0
