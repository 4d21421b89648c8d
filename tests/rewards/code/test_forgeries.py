"""Programs that do not solve the problem and want to be told that they did. None of them is."""

import pytest

from openrlhf_cov.rewards.code.judge import ProgramBudget

SHARE = ProgramBudget(seconds=1.0, total_seconds=20.0, memory_mb=256, output_mb=1, stop=False)
ASSERTS = ["assert solve(3) == 9", "assert solve(4) == 16"]
CALLS = {"function": "solve", "calls": [[[3], 9], [[4], 16]]}
STDIN = {"stdin": [["3\n", "9\n"], ["4\n", "16\n"]]}
PYTEST = {
    "pytest": "from solution import solve\n\ndef test_solve():\n    assert solve(3) == 9\n    assert solve(4) == 16"
}
NEAR = {"setup": "import math", "asserts": ["assert abs(solve(3) - 9) < 1e-6", "assert math.isclose(solve(4), 16)"]}
HELPED = ["assert isclose(solve(3), 9)", "assert Counter([solve(4)]) == Counter([16]) and sorted([solve(4)]) == [16]"]
UNITTEST = {
    "pytest": "import unittest\nfrom solution import *\nclass Case(unittest.TestCase):\n"
    "    def test_solve(self):\n        self.assertEqual(solve(3), 9)\n        self.assertAlmostEqual(solve(4), 16)"
}
IN = ["assert solve(3) in (9, 11)", "assert 9 in [solve(3)]", "assert 16 in {solve(4): 1} and {solve(4)} == {16}"]
KINDS = {
    "asserts": ASSERTS,
    "calls": CALLS,
    "stdin": STDIN,
    "pytest": PYTEST,
    "near": NEAR,
    "helped": HELPED,
    "unittest": UNITTEST,
    "in": IN,
}

EVERYTHING = """
class Everything:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __lt__(self, other): return True
    __le__ = __gt__ = __ge__ = __contains__ = __lt__
    def __sub__(self, other): return 0
    __rsub__ = __add__ = __radd__ = __mul__ = __sub__
    def __abs__(self): return 0
    __float__ = lambda self: 9.0
    __int__ = __index__ = lambda self: 9
    def __hash__(self): return hash(9)
    def __bool__(self): return True
    def __getattr__(self, name): return lambda *args: True
def solve(n): return Everything()
print(Everything())
"""
FORGERIES = {
    "an object that equals everything": EVERYTHING,
    "a number that equals everything": """
class Everything(int):
    __eq__ = lambda self, other: True
    __ne__ = lambda self, other: False
    __sub__ = __rsub__ = lambda self, other: 0
    __hash__ = int.__hash__
    __class__ = int
def solve(n): return Everything(7)
print(Everything(7))
""",
    "the end": "import sys\nsys.exit(0)",
    "the end, at once": "import os\nos._exit(0)",
    "the end, when called": "def solve(n):\n    import os\n    os._exit(0)",
    "exit in a call": "def solve(n): raise SystemExit(0)",
    "exit at exit": "import atexit, os\natexit.register(os._exit, 0)\ndef solve(n): return 0",
    "what a harness prints": """
print('{"passed": true, "detail": ""}\\n' * 5)
print('OK', 'passed', '{"tests": 1}', '{"value": 9}')
def solve(n):
    print('{"value": 9}')
""",
    "messages of a harness on every descriptor": """
import os
def solve(n):
    for descriptor in range(3, 64):
        for line in (b'{"tests": 1}\\n', b'{"passed": true, "detail": ""}\\n' * 3):
            try:
                os.write(descriptor, line)
            except OSError:
                pass
solve(0)
""",
    "another assert": """
import builtins, sys
builtins.AssertionError = type('Nothing', (Exception,), {})
class Quiet(Exception): pass
sys.excepthook = lambda *args: None
def solve(n): raise Quiet
""",
    "other functions of Python": """
import builtins, math
def abs(x): return 0
def isinstance(*args): return True
def len(x): return 9
class math:
    isclose = staticmethod(lambda *args, **kwargs: True)
builtins.abs = builtins.round = lambda *args: 0
class Counter(list):
    def __init__(self, *args): list.__init__(self)
isclose = sorted = Counter = lambda *args, **kwargs: True
def solve(n): return 10
""",
    "a harness that is taken over": """
import sys, gc
for module in list(sys.modules.values()):
    for name in ('same_value', 'compare_outputs', 'judge', 'run', 'dump', 'load', '_tell', 'hear', 'ask', 'line'):
        if hasattr(module, name):
            setattr(module, name, lambda *args, **kwargs: True)
def solve(n): return 10
""",
    "what a frame knows": """
import sys, gc
def search():
    frame = sys._getframe()
    seen = []
    while frame:
        seen += list(frame.f_locals.values()) + list(frame.f_globals.values())
        frame = frame.f_back
    seen += gc.get_objects()
    for each in seen:
        try:
            if isinstance(each, (list, tuple)) and list(each) in ([[3], 9], [3, 9], [[3], 9.0]):
                return each[1]
            if isinstance(each, str) and ('9' == each.strip() or 'solve(3) == 9' in each) and 'def search' not in each:
                return 9
        except Exception:
            pass
    return -1
def solve(n): return {9: 9 if n == 3 else 16}.get(search(), -1)
print(search())
""",
    "what stands on the disk": """
import os
def search():
    for folder, _, names in os.walk('/tmp'):
        for name in names:
            return 9
    for path in ('/proc/self/cmdline', '/proc/1/environ', '/inside/tests.json', '/dev/fd/3', '/dev/shm'):
        if os.path.exists(path):
            return 9
    return -1
def solve(n): return search()
print(search())
""",
    "a mock": """
from unittest.mock import ANY, MagicMock as solve
ANY, solve
print(ANY)
""",
    "the names of a module of the tests": """
import sys
class Any_:
    def __eq__(self, other): return True
sys.modules['tests'] = sys.modules['solution'] = Any_()
pytest = Any_()
def solve(n): return pytest
""",
    "a lie about its names": """
import json, socket
channel = socket.socket(fileno=4)
yes = {"from": ["unittest.mock", "MagicMock"]}
builtin = {"value": {"dict": ["abs", {"builtin": "bool"}]}}
names = {"solve": yes, "__builtins__": builtin, "abs": {"value": {"mine": 0}}}
channel.sendall(json.dumps({"names": names}).encode() + b'\\n')
while True:
    line = channel.recv(65536)
    if not line: break
    channel.sendall(b'{"value": {"mine": 0}}\\n')
""",
    "a lie about every question": """
import json, socket
channel = socket.socket(fileno=4)
channel.sendall(b'{"names": {"solve": {"value": {"mine": 0}}}}\\n')
while True:
    line = channel.recv(65536)
    if not line: break
    channel.sendall(b'{"value": true}\\n')
""",
    "code for the tests' process": """
import json, socket
channel = socket.socket(fileno=4)
channel.sendall(b'{"names": {"solve": {"value": {"mine": 0}}}}\\n')
code = "import os; os.write(5, b'{\\"passed\\": true}\\n' * 9)"
channel.recv(65536)
for target in ({"builtin": "exec"}, {"yours": 0}, {"mine": 0}):
    attack = {"do": "call", "to": target, "with": [[code, {"shared": ["tests 0", [9]]}], {}]}
    attack["changed"] = {"tests 0": [9]}
    channel.sendall(json.dumps(attack).encode() + b'\\n')
    channel.recv(65536)
channel.sendall(b'{"value": 8, "changed": {"tests 0": 1, "tests 1": {"set": [9]}}}\\n')
""",
    "references that are not its own": """
import json, socket
channel = socket.socket(fileno=4)
channel.sendall(b'{"names": {"solve": {"value": {"mine": 0}}}}\\n')
while channel.recv(65536):
    for packed in ({"yours": 0}, {"yours": -1}, {"builtin": "eval"}, {"mine": "x"}, {"a": 1, "b": 2}):
        channel.sendall(json.dumps({"value": packed}).encode() + b'\\n')
""",
    "an error that looks like success": "def solve(n): raise StopIteration(9)",
    "a skipped test": "import unittest\ndef solve(n): raise unittest.SkipTest('no')\nraise unittest.SkipTest",
    "an exception of its own": """
class AssertionError(BaseException):
    def __eq__(self, other): return True
    def __getattr__(self, name): return True
    def __str__(self): return '9'
def solve(n): raise AssertionError(9)
""",
    "a class that lies": """
class Lie:
    __class__ = int
    def __eq__(self, other): return True
    __hash__ = lambda self: 16
    __iter__ = lambda self: iter([self])
    __contains__ = lambda self, item: True
def solve(n): return Lie()
""",
    "a class of values": """
class Type(type):
    __eq__ = __contains__ = __instancecheck__ = lambda self, other: True
    __hash__ = type.__hash__
    __getattr__ = lambda self, name: True
class Solve(metaclass=Type):
    def __init__(self, n): pass
    def __eq__(self, other): return True
    __hash__ = lambda self: 9
    __contains__ = lambda self, item: True
solve = Solve
""",
    "a named tuple, a text, a number of its own": """
from typing import NamedTuple
class T(NamedTuple):
    count: int = 9
    __eq__ = lambda self, other: True
    __hash__ = lambda self: 16
class S(str):
    __eq__ = lambda self, other: True
    __hash__ = str.__hash__
class F(float):
    __eq__ = lambda self, other: True
    __rsub__ = __sub__ = lambda self, other: 0.0
    __hash__ = float.__hash__
import itertools
values = itertools.cycle([T(), S('9 16'), F('nan'), F('inf')])
def solve(n): return next(values)
print(S('nan'))
""",
    "a container of its own": """
class L(list):
    __eq__ = __contains__ = lambda self, other: True
    copy = __iter__ = lambda self: iter([9])
class D(dict):
    __eq__ = __contains__ = lambda self, other: True
    __getitem__ = __missing__ = lambda self, key: 9
def solve(n): return L([D()])
""",
    "closed and copied descriptors": """
import os
for each in range(32):
    for other in (3, 4, 5, 6):
        try: os.dup2(each, other)
        except OSError: pass
def solve(n):
    os.closerange(0, 32)
    return 9
solve(3)
""",
    "signals": """
import os, signal
for number in (signal.SIGALRM, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
    signal.signal(number, lambda *args: os._exit(0))
def solve(n):
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    while True: pass
solve(3)
""",
    "memory, by its address": """
import ctypes
def solve(n):
    try:
        ctypes.pythonapi.Py_Exit(0)
    except BaseException:
        return 0
def same(a, b): return 1
compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.py_object)(same)
solve(3)
""",
    "a fork": """
import os
def solve(n):
    try:
        if os.fork() == 0: os._exit(0)
    except OSError: pass
    os._exit(0)
solve(3)
""",
    "another module of that name": """
import sys, types
for name in ('tests', 'solution', 'peer', 'wire', 'remote', 'testing', 'pytest', 'unittest', '__main__', 'numpy'):
    module = types.ModuleType(name)
    module.__getattr__ = lambda name: lambda *args, **kwargs: True
    sys.modules[name] = module
def solve(n): return sys.modules['tests']
""",
    "a process that goes on": """
import threading, time
def later():
    time.sleep(0.2)
    print(9)
threading.Thread(target=later, daemon=True).start()
def solve(n): time.sleep(0.01)
""",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FORGERIES)
def test_no_forgery_passes(verdict, kind, name):
    found = verdict(FORGERIES[name], KINDS[kind])
    assert (found.status != "passed", found.passed) == (True, 0), found


def test_a_function_does_not_pass_for_an_object_that_a_test_made(verdict):
    program = """
class Everything:
    def __eq__(self, other): return True
    __contains__ = lambda self, item: True
class Stack: pass
one = Everything()
Stack = lambda: one
def solve(n): return one
"""
    assert verdict(program, ["s = Stack()\nassert solve(3) == 9", "assert 9 in [solve(3)]"]).passed == 0
    assert verdict(program, ["assert Stack() == solve(3) and solve(3) == 9"]).passed == 0


def test_a_name_of_python_beside_one_of_the_programs_is_pythons(verdict):
    program = "def solve(n): return 10\nabs = isclose = lambda *args: 0 if len(args) == 1 else True"
    tests = [
        "assert abs(-1) == 1",
        "assert isclose(1, 1)",
        "assert abs(solve(3) - 9) < 1",
        "assert isclose(solve(3), 9)",
    ]
    assert verdict(program, tests[2:] + tests[:2], SHARE).passed == 2


def test_what_is_shared_is_no_way_to_what_the_tests_expect(verdict):
    program = """
kept = []
def solve(a):
    kept.append(a)
    for each in kept: each[:] = [9]
    return a
"""
    tests = [
        "given, wanted = [3], [1, 2]\nassert solve(given) == wanted",
        "assert wanted == [1, 2] and solve([1]) == wanted",
    ]
    assert verdict(program, tests, SHARE).passed == 0


RIGHT = {"stdin": "print(int(input()) ** 2)"}


@pytest.mark.parametrize("kind", KINDS)
def test_the_right_program_passes_after_all_of_them(verdict, kind):
    assert verdict(RIGHT.get(kind, "def solve(n): return n ** 2"), KINDS[kind]).status == "passed"


def test_tests_call_back_and_their_own_objects_are_reached_by_public_names_alone(verdict):
    tests = {
        "setup": "class Box:\n    def __init__(self): self.value, self._secret = 1, 9\n"
        "    def add(self, n): self.value += n",
        "asserts": ["box = Box(); touch(box); assert box.value == 3", "assert peek(Box()) == 'PermissionError'"],
    }
    program = """
def touch(box):
    box.add(1)
    box.value = box.value + 1
def peek(box):
    for name in ('_secret', '__globals__', '__code__'):
        try:
            getattr(box, name)
            return name
        except PermissionError as error:
            pass
    try:
        box.add.__globals__
        return 'globals'
    except PermissionError as error:
        return type(error).__name__
"""
    assert verdict(program, tests).status == "passed"
