"""What a program's own objects decide: only what a test that uses them as objects asks of them."""

import sys
from pathlib import Path

import pytest

import openrlhf_cov.rewards.code.inside as inside
from openrlhf_cov.rewards.code.judge import ProgramBudget

SHARE = ProgramBudget(seconds=2.0, total_seconds=30.0, memory_mb=256, output_mb=1, stop=False)
ALWAYS = """
class Always:
    def __init__(self, *args): pass
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __lt__(self, other): return True
    __le__ = __gt__ = __ge__ = __contains__ = __lt__
    def __sub__(self, other): return 0
    __rsub__ = __sub__
    def __abs__(self): return 0
    __float__ = lambda self: 9.0
    __int__ = __index__ = __len__ = lambda self: 9
    def __hash__(self): return hash(9)
    def __bool__(self): return True
    def __iter__(self): return iter([self])
    def __getitem__(self, key): return self
    def count(self, item): return 1
    def difference(self, other): return set()
    symmetric_difference = difference
    def compare(self, other): return 0
    def strip(self, text): return ""
    def get(self, key, default=None): return self
"""
FORMS = {
    "a function": "def Solve(n): return Always()",
    "the class": "class Solve(Always): pass",
    "a lambda": "Solve = lambda n: Always()",
    "a class that makes others": "class Solve:\n    def __new__(cls, n): return Always()",
    "a method": "class Maker:\n    def make(self, n): return Always()\nSolve = Maker().make",
    "an object that is called": "class Maker:\n    def __call__(self, n): return Always()\nSolve = Maker()",
    "a partial function": "import functools\nSolve = functools.partial(Always)",
    "a list of objects": "def Solve(n): return [Always()]",
    "a subclass of int": "class Solve(int):\n    __eq__ = __ge__ = lambda *_: True\n    __hash__ = int.__hash__",
    "a class that says it is int": "class Lie(Always):\n    __class__ = int\ndef Solve(n): return Lie()",
    "the end of an iterator": "def Solve(n): raise StopIteration",
    "an empty iterator": "def Solve(n): return iter(())",
}
TESTS = {
    "equal": ["assert Solve(3) == 9", "assert 16 == Solve(4)"],
    "not unequal": ["assert not Solve(3) != 9", "assert not 16 != Solve(4)"],
    "a variable": ["result = Solve(3)\nassert result == 9", "result: int = Solve(4)\nassert result == 16"],
    "an attribute of plain data": ["assert Solve(3).real == 9", "r = Solve(4)\nassert r.numerator == 16"],
    "near": ["assert abs(Solve(3) - 9) < 1e-6", "assert abs(16 - Solve(4)) < 1e-6"],
    "isclose": ["import math\nassert math.isclose(Solve(3), 9)", "assert isclose(16, Solve(4))"],
    "in": ["assert Solve(3) in (9, 11)", "assert 9 in [Solve(3)]"],
    "a set": ["assert {Solve(3)} == {9}", "assert Solve(4) in {16}"],
    "order": ["assert 9 <= Solve(3) <= 9", "assert not Solve(4) < 16 and not Solve(4) > 16"],
    "mapped": [
        "assert all(x == y for x, y in zip(map(Solve, [3, 4]), [9, 16])) and Solve(3) == 9",
        "assert [Solve(n) for n in (3, 4)] == [9, 16]",
    ],
    "a list": ["assert Solve(3) == [1, 2]", "assert sorted(Solve(4)) == [4, 5]"],
    "approximately": ["assert pytest.approx(9) == Solve(3)", "assert Solve(4) == pytest.approx(16)"],
    "a dict": ["assert Solve(3) == {'a': 1}", "assert Solve(4).get('a') == 1"],
    "count": ["assert Solve(3).count(9) == 1", "r = Solve(4)\nassert r.count(16) == 1"],
    "difference": ["assert Solve(3).difference({9}) == set()", "assert Solve(4).symmetric_difference({1}) == set()"],
    "strip": ["assert Solve(3).strip('9') == ''", "assert Solve(4).strip('16') == ''"],
    "compare": ["assert Solve(3).compare(9) == 0", "assert Solve(4).compare(16) == 0"],
    "a helper": [
        "def check(f):\n    assert f(3) == 9\ncheck(Solve)",
        "def check(candidate):\n    r = candidate(4)\n    assert r == 16\ncheck(Solve)",
    ],
}


@pytest.mark.parametrize("form", FORMS)
def test_a_capital_letter_makes_no_class(verdict, form):
    found = verdict(f"{ALWAYS}\n{FORMS[form]}", [test for tests in TESTS.values() for test in tests], SHARE)
    assert (found.passed, found.total) == (0, 2 * len(TESTS))


def test_a_file_of_tests_and_an_exported_name(verdict):
    file = "import solution\nfrom solution import Solve\ndef test_a(): assert Solve(3) == 9\n"
    file += "def test_b():\n    r = solution.Solve(4)\n    assert r == 16"
    assert verdict(f"{ALWAYS}\ndef Solve(n): return Always()", {"pytest": file}, SHARE).passed == 0
    assert verdict("def Solve(n): return n * n", {"pytest": file}, SHARE).passed == 2


def test_stop_iteration_ends_no_comparison(verdict):
    tests = [
        "assert all(x == y for x, y in zip(map(Solve, [3, 4]), [9, 16]))",
        "assert not [x for x in map(Solve, [3, 4]) if x not in (9, 16)]",
        "for x in map(Solve, [3, 4]):\n    assert x in (9, 16)",
        "assert set(map(Solve, [3, 4])) <= {9, 16}",
    ]
    for body in ("raise StopIteration", "raise StopIteration(9)", "return next(iter(()))"):
        assert verdict(f"def Solve(n): {body}", tests, SHARE).passed == 0
    expected = ["import pytest\nwith pytest.raises(StopIteration):\n    Solve(3)"]
    assert verdict("def Solve(n): raise StopIteration", expected, SHARE).passed == 1


@pytest.mark.parametrize(
    "test",
    [
        "s = Thing()\ns.push(9)\nassert s == 9",
        "s = Thing()\ns.push(9)\nassert 9 == s",
        "s = Thing()\ns.push(9)\nassert 9 in s",
        "s = Thing()\ns.push(9)\nassert s == [9]",
        "s = Thing()\ns.push(9)\nassert s == {'a': 9}",
        "s = Thing()\ns.push('x')\nassert s == 'x'",
        "s = Thing()\ns.push(0.5)\nassert not s != 0.5",
        "s = Thing()\ns.push(9)\nassert abs(s - 9) < 1e-6",
        "s, t = Thing(), Thing()\ns.push(9)\nassert s == t",
    ],
)
def test_an_object_that_equals_everything_equals_nothing(verdict, test):
    program = f"{ALWAYS}\nclass Thing(Always):\n    def push(self, item): pass"
    assert verdict(program, [test], SHARE).passed == 0


# Bodies of __eq__ that are true of what a test expects, whatever the object is.
EQUAL_TO_MUCH = {
    "every other time": "self.asked = getattr(self, 'asked', 0) + 1; return self.asked % 2 == 1",
    "the first time": "self.asked = getattr(self, 'asked', 0) + 1; return self.asked == 1",
    "mostly": "import random; return random.random() < 0.8",
    "what is small": "return isinstance(other, str) and len(other) < 9 or str(other)[:9] == str(other)",
    "what is short": "return len(str(other)) < 15",
}


@pytest.mark.slow
@pytest.mark.parametrize("body", EQUAL_TO_MUCH.values(), ids=EQUAL_TO_MUCH)
@pytest.mark.parametrize("expected", ["9", "2.5", "'apple'", "[1, 2]", "(3, 'x')", "{'a': 9}", "[[1], [2]]"])
def test_an_object_that_equals_what_tests_may_expect_equals_nothing(verdict, body, expected):
    program = f"class Thing:\n    def push(self, item): pass\n    def __eq__(self, other): {body}"
    tests = [f"s = Thing()\ns.push(1)\nassert s == {expected}"] * 8
    assert verdict(program, tests, SHARE).passed <= 1  # "mostly" passes one in some thousand


@pytest.mark.parametrize(
    "claim",
    ["8 < s < 10", "s <= 9 and s >= 9", "s > 8.5 and s < 9.5", "s > 'a'", "'a' <= s"],
)
def test_an_object_that_is_below_and_above_everything_is_nowhere(verdict, claim):
    order = "".join(f"\n    def __{name}__(self, other): return True" for name in ("lt", "le", "gt", "ge"))
    program = f"class Thing:\n    def push(self, item): pass{order}"
    assert verdict(program, [f"s = Thing()\ns.push(1)\nassert {claim}"], SHARE).passed == 0


HONEST = """
import math
class Mod2:
    def __init__(self, n): self.n = n % 2
    def __eq__(self, other): return self.n == other % 2
class Top:
    def __lt__(self, other): return False
    def __le__(self, other): return isinstance(other, Top)
    def __gt__(self, other): return not isinstance(other, Top)
    def __ge__(self, other): return True
class Card:
    def __init__(self, n): self.n = n
    def __lt__(self, other): return self.n < (other.n if isinstance(other, Card) else other)
class Root:
    def __init__(self, n): self.n = n
    def __eq__(self, other): return self.n == math.sqrt(other)
class Near:
    def __init__(self, x): self.x = x
    def __eq__(self, other): return math.isclose(self.x, other)
class Stack:
    def __init__(self, items=()): self.items = list(items)
    def push(self, item): self.items.append(item)
    def pop(self): return self.items.pop()
    def is_empty(self): return not self.items
    def __len__(self): return len(self.items)
    def __eq__(self, other): return self.items == (other.items if isinstance(other, Stack) else other)
    def __contains__(self, item): return item in self.items
class UnionFind:
    def __init__(self, n): self.p = list(range(n))
    def find(self, x): return x if self.p[x] == x else self.find(self.p[x])
    def union(self, a, b): self.p[self.find(a)] = self.find(b)
    def __contains__(self, item): return 0 <= item < len(self.p)
class Vector:
    def __init__(self, x, y): self.x, self.y = x, y
    def __eq__(self, other): return (self.x, self.y) == (other.x, other.y)
    def __add__(self, other): return Vector(self.x + other.x, self.y + other.y)
    def __mul__(self, other): return Vector(self.x * other, self.y * other)
    def __abs__(self): return (self.x ** 2 + self.y ** 2) ** 0.5
    def __sub__(self, other): return abs(self) - other
    def length(self): return abs(self)
class Trie:
    def __init__(self): self.words = set()
    def insert(self, word): self.words.add(word)
    def startswith(self, prefix): return any(word.startswith(prefix) for word in self.words)
class Mod7:
    def __init__(self, n): self.n = n % 7
    def value(self): return self.n
    def __eq__(self, other): return self.n == (other.n if isinstance(other, Mod7) else other % 7)
def Solve(n): return n * n
"""


@pytest.mark.parametrize(
    "test",
    [
        "s = Stack()\ns.push(1)\nassert s == [1] and 1 in s and 2 not in s and s != [2]",
        "s = Stack([1])\nassert len(s) == 1 and s.pop() == 1 and s.is_empty()",
        "assert Stack([1, 2]) == Stack([1, 2]) and Stack([1]) != Stack([2])",
        "a, b = Stack([1]), Stack([2])\na.push(2)\nassert a == [1, 2] and b == [2]",
        "stacks = [Stack() for _ in range(2)]\nstacks[0].push(1)\nassert stacks[0] == [1]",
        "u = UnionFind(3)\nu.union(0, 1)\nassert u.find(0) == u.find(1) and 2 in u and 3 not in u",
        "assert Vector(1, 2) + Vector(2, 3) == Vector(3, 5) and Vector(1, 2) * 2 == Vector(2, 4)",
        "v = Vector(3, 4)\nassert v.length() == 5 and abs(v) == 5 and abs(v - 5) < 1e-9",
        "t = Trie()\nt.insert('apple')\nassert t.startswith('app') and not t.startswith('b')",
        "m = Mod7(9)\nassert m.value() == 2 and m == 2 and m == 9 and m != 3 and m == Mod7(16)",
        "assert isinstance(Stack(), Stack) and Stack([1]) == [1]",
        "assert isinstance(Stack(), Stack) and Stack([1, 'x', None]) == [1, 'x', None]",
        "assert isinstance(Stack(), Stack) and Stack([True]) == [True] and Stack() == []",
        "s = Stack([Vector(1, 2)])\ns.push(3)\nassert s == [Vector(1, 2), 3]",
        "s = Stack(range(29))\ns.push(29)\nassert all(n in s for n in range(30)) and 30 not in s",
        "assert isinstance(Mod2(1), Mod2)\nassert all(Mod2(n) == n + 2 and Mod2(n) != n + 1 for n in range(8))",
        "assert isinstance(Mod7(1), Mod7)\nassert all(Mod7(9) == 2 for _ in range(8))",
        "assert isinstance(Root(2), Root) and Root(2) == 4 and not Root(2) == 9",
        "assert isinstance(Top(), Top) and Top() > 9 and Top() >= 10**80 and not Top() < 3 and Top() > 'z'",
        "assert isinstance(Card(1), Card) and Card(1) < Card(2) and Card(3) < 4 and not Card(3) < 3",
        "assert isinstance(Near(1.0), Near) and Near(1e12) == 1e12 + 1.0 and Near(0.1 + 0.2) == 0.3",
        "assert isinstance(Near(1.0), Near) and Near(float('inf')) == float('inf')",
        "assert Solve(3) in (9, 11) and abs(Solve(3) - 9) < 1 and {Solve(3)} == {9}",
        "def make(): return Stack()\ns = make()\ns.push(1)\nassert s == [1]",
    ],
)
def test_objects_that_tests_use_as_such_answer_for_themselves(verdict, test):
    assert verdict(HONEST, [test], SHARE).status == "passed"


@pytest.mark.parametrize(
    ("source", "classes"),
    [
        ("assert F(3) == 9", set()),
        ("r = F(3)\nassert r.count(1) == 1", set()),
        ("assert F(3).size() == 9", {"F"}),
        ("r = F(3)\nassert r.size == 9", {"r", "F"}),
        ("r, q = F(3), 1\nassert r.size == 9", {"r", "F"}),
        ("with F(3) as r:\n    r.size()", {"r", "F"}),
        ("@pytest.fixture\ndef r():\n    yield F(3)\ndef test_a(r): r.size()", {"r", "F"}),
        ("class T:\n    def setUp(self): self.r = F(3)\n    def test_a(self): assert self.r.size() == 1", {"r", "F"}),
        ("assert isinstance(G(3), (F, int))", {"F", "int"}),
        ("assert F.of(3) == 9", {"F"}),
        ("r = F(3)\nr.pop()\nassert r == [1]", {"r", "F"}),
        ("(r := F(3)).size()", set()),
    ],
)
def test_names_that_tests_use_as_classes(monkeypatch, source, classes):
    for name in ("wire", "peer", "remote", "testing"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(Path(inside.__file__).parent))
    import testing

    found = testing.used_as_classes([source])
    assert classes <= found
    assert ("F" in found) == ("F" in classes)
