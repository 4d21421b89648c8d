"""Right programs, each with tests of one form that it passes: what programs and tests may do that is easily mistaken."""

NODE = """
class Node:
    def __init__(self, value, children=None):
        self.value, self.children = value, children or []
        self.left = self.right = None
    def total(self): return self.value + sum(each.total() for each in self.children)
"""
VECTOR = """
class Vector:
    def __init__(self, *parts): self.parts = parts
    def __eq__(self, other): return isinstance(other, Vector) and self.parts == other.parts
    def __add__(self, other): return Vector(*(a + b for a, b in zip(self.parts, other.parts)))
    def __mul__(self, k): return Vector(*(k * a for a in self.parts))
    __rmul__ = __mul__
    def __matmul__(self, other): return sum(a * b for a, b in zip(self.parts, other.parts))
    def __neg__(self): return self * -1
    def __abs__(self): return sum(a * a for a in self.parts) ** 0.5
    def __len__(self): return len(self.parts)
    def __getitem__(self, k): return self.parts[k]
    def __contains__(self, x): return x in self.parts
    def __repr__(self): return f'Vector{self.parts}'
    def __hash__(self): return hash(self.parts)
    def __bool__(self): return any(self.parts)
    def __float__(self): return float(self.parts[0])
    def __format__(self, form): return form + repr(self)
"""
MONEY = """
import functools
@functools.total_ordering
class Money:
    def __init__(self, amount): self.amount = amount
    def __eq__(self, other): return self.amount == getattr(other, 'amount', other)
    def __lt__(self, other): return self.amount < getattr(other, 'amount', other)
    def __add__(self, other): return Money(self.amount + getattr(other, 'amount', other))
    def __int__(self): return self.amount
    def __round__(self, places=0): return round(self.amount, places)
"""
TREE = """
class Tree:
    def __init__(self): self.root = None
    def insert(self, x):
        if self.root is None: self.root = [x, None, None]; return
        at = self.root
        while True:
            k = 1 if x < at[0] else 2
            if at[k] is None: at[k] = [x, None, None]; return
            at = at[k]
    def __contains__(self, x):
        at = self.root
        while at and at[0] != x: at = at[1 if x < at[0] else 2]
        return at is not None
"""
ERRORS = """
class StackError(Exception): pass
class Empty(StackError):
    def __init__(self, size, why='empty'):
        super().__init__(f'{why}: {size}')
        self.size = size
class Stack:
    def __init__(self): self.items = []
    def push(self, x): self.items.append(x)
    def pop(self):
        if not self.items: raise Empty(0)
        return self.items.pop()
    def __len__(self): return len(self.items)
    def __iter__(self): return iter(self.items)
"""
MORE = "f = lambda x: x"

# what it is about, program, tests
RIGHT = [
    # standard input and output
    ("echo", "print(input())", {"stdin": [["a b\n", "a b\n"]]}),
    ("until the end", "import sys\nprint(sum(map(int, sys.stdin)))", {"stdin": [["1\n2\n3", "6"]]}),
    ("EOFError", "n = 0\ntry:\n  while 1: n += int(input())\nexcept EOFError: print(n)", {"stdin": [["1\n2\n", "3"]]}),
    ("bytes", "import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read()[::-1])", {"stdin": [["ab", "ba"]]}),
    ("os.read", "import os\nos.write(1, os.read(0, 9).upper())", {"stdin": [["ab", "AB"]]}),
    ("open(0)", "print(*open(0).read().split()[::-1])", {"stdin": [["1 2\n", "2 1"]]}),
    ("fast output", "import io, os\nb = io.BytesIO()\nb.write(b'hi')\nos.write(1, b.getvalue())", {"stdin": [["", "hi"]]}),
    ("replaced input", "import sys, io\nsys.stdin = io.StringIO(sys.stdin.read().upper())\nprint(input())",
     {"stdin": [["a", "A"]]}),
    ("new stdout", "import sys, os\nprint('a')\nsys.stdout = os.fdopen(1, 'w')\nprint('b')", {"stdin": [["", "a\nb"]]}),
    ("own file", "out = open(1, 'w')\nout.write('hi')", {"stdin": [["", "hi"]]}),
    ("own file in a function", "def main():\n    global o\n    o = open(1, 'w', closefd=False)\n    o.write('hi')\nmain()",
     {"stdin": [["", "hi"]]}),
    ("closed stdout", "import sys\nprint('hi')\nsys.stdout.close()", {"stdin": [["", "hi"]]}),
    ("closed stderr", "import sys\nprint('hi')\nsys.stderr.close()", {"stdin": [["", "hi"]]}),
    ("stdout to a file", "import sys\nprint('a')\nsys.stdout = open('/tmp/x', 'w')\nprint('b')", {"stdin": [["", "a"]]}),
    ("at exit", "import atexit\natexit.register(print, 'bye')\nprint('hi')", {"stdin": [["", "hi\nbye"]]}),
    ("__del__", "class A:\n    def __del__(s): print('bye')\na = A()\nprint('hi')", {"stdin": [["", "hi\nbye"]]}),
    ("__del__ in a cycle", "import math\nclass A:\n    def __del__(s): print(math.floor(2.5))\na = A()\na.a = a\ndel a",
     {"stdin": [["", "2"]]}),
    ("finally", "import sys\ntry: sys.exit()\nfinally: print('x')", {"stdin": [["", "x"]]}),
    ("exit", "print(1)\nexit()\nprint(2)", {"stdin": [["", "1"]]}),
    ("os._exit", "import os\nprint(1, flush=True)\nos._exit(0)", {"stdin": [["", "1"]]}),
    ("a thread", "import threading, sys\nsys.setrecursionlimit(10**6)\nthreading.stack_size(1 << 27)\n"
     "def f(n): return 0 if n == 0 else 1 + f(n - 1)\nt = threading.Thread(target=lambda: print(f(10**5)))\n"
     "t.start()\nt.join()", {"stdin": [["", "100000"]]}),
    ("a thread after exit", "import threading, time, sys\ndef m():\n    time.sleep(.05)\n    print('hi')\n"
     "threading.Thread(target=m).start()\nsys.exit()", {"stdin": [["", "hi"]]}),
    ("a daemon", "import threading, time\nthreading.Thread(target=time.sleep, args=(99,), daemon=True).start()\nprint(1)",
     {"stdin": [["", "1"]]}),
    ("recursion", "import sys\nsys.setrecursionlimit(10**6)\ndef f(n): return 0 if n == 0 else 1 + f(n - 1)\nprint(f(200000))",
     {"stdin": [["", "200000"]]}),
    ("cached recursion", "import sys\nfrom functools import *\nsys.setrecursionlimit(10**6)\n@cache\n"
     "def f(n): return 0 if n == 0 else 1 + f(n - 1)\nprint(f(50000))", {"stdin": [["", "50000"]]}),
    ("more stack", "import resource\nresource.setrlimit(resource.RLIMIT_STACK, (1 << 29, -1))\n"
     "resource.setrlimit(resource.RLIMIT_STACK, (-1, -1))\nprint(1)", {"stdin": [["", "1"]]}),
    ("stderr", "import sys\nsys.stderr.write('x' * 300000)\nprint(1)", {"stdin": [["", "1"]]}),
    ("main guard", "def main(): print(1)\nif __name__ == '__main__': main()", {"stdin": [["", "1"]]}),
    ("dataclass", "from dataclasses import dataclass\n@dataclass(order=True)\nclass P:\n    x: int\nprint(max(P(1), P(2)).x)",
     {"stdin": [["", "2"]]}),
    ("pickle of an own class", "import pickle\nclass A: x = 3\nprint(pickle.loads(pickle.dumps(A())).x)", {"stdin": [["", "3"]]}),
    ("typing", "from __future__ import annotations\nfrom typing import *\ndef f(a: List[int]) -> Foo: return 1\nprint(f([]))",
     {"stdin": [["", "1"]]}),
    ("asyncio", "import asyncio\nasync def f(): await asyncio.sleep(0)\nasyncio.run(f())\nprint(1)", {"stdin": [["", "1"]]}),
    ("redirect", "import io, contextlib\nb = io.StringIO()\nwith contextlib.redirect_stdout(b): print('a')\n"
     "print(b.getvalue().upper())", {"stdin": [["", "A"]]}),
    ("unicode", "print(input()[::-1])", {"stdin": [["äß€\n", "€ßä"]]}),
    ("end of lines", "print(1, end=' ')\nprint(2, end='\\r\\n')", {"stdin": [["", "1 2\n"]]}),
    ("windows input", "print(int(input()) + 1)", {"stdin": [["1\r\n", "2"]]}),
    ("tolerance", "print(1 / 3)", {"stdin": [["", "0.33333"]], "tolerance": 1e-4}),
    ("nan", "print(float('nan'))", {"stdin": [["", "nan"]]}),
    ("unordered", "print(2)\nprint(1)", {"stdin": [["", "1\n2"]], "unordered": True}),
    ("inputs and outputs", "print(int(input()) + int(input()))", {"inputs": [["1", "2"]], "outputs": [["3"]]}),
    # calls
    ("call", "def f(a, b): return a + b", {"function": "f", "calls": [[[1, 2], 3]]}),
    ("Solution", "class Solution:\n    def f(self, a: List[int]) -> int: return sum(a)", {"fn_name": "f", "inputs": [[[1, 2]]], "outputs": [3]}),
    ("JSON on lines", "def f(a, b): return a + b", {"fn_name": "f", "inputs": ["1\n2"], "outputs": ["3"]}),
    ("text or number", "def f(a): return str(a)", {"fn_name": "f", "inputs": [[1]], "outputs": ["1"]}),
    ("text in JSON", "def f(a): return a + '1'", {"fn_name": "f", "inputs": ['"1"'], "outputs": ['"11"']}),
    ("an output in a list", "def f(a): return a", {"fn_name": "f", "inputs": [[1], [2]], "outputs": [[1], [2]]}),
    ("a tuple is a list", "def f(): return (1, (2, 3))", {"function": "f", "calls": [[[], [1, [2, 3]]]]}),
    ("a named tuple is a list", "P = namedtuple('P', 'x y')\ndef f(): return P(1, 2)", {"function": "f", "calls": [[[], [1, 2]]]}),
    ("a Counter", "def f(): return Counter('aab')", {"function": "f", "calls": [[[], {"a": 2, "b": 1}]]}),
    ("a defaultdict", "def f():\n    d = defaultdict(list)\n    d[1].append(2)\n    return d", {"function": "f", "calls": [[[], {"1": [2]}]]}),
    ("keys of JSON", "def f(): return {True: 1, None: 2, 1.5: 3}", {"function": "f", "calls": [[[], {"true": 1, "null": 2, "1.5": 3}]]}),
    ("an own list", "class L(list): pass\ndef f(): return L([1])", {"function": "f", "calls": [[[], [1]]]}),
    ("an IntEnum", "import enum\nclass E(enum.IntEnum): A = 3\ndef f(): return E.A", {"function": "f", "calls": [[[], 3]]}),
    ("a Decimal", "from decimal import Decimal\ndef f(): return Decimal('1.5')", {"function": "f", "calls": [[[], 1.5]]}),
    ("a Fraction", "from fractions import Fraction\ndef f(): return Fraction(3, 2)", {"function": "f", "calls": [[[], 1.5]]}),
    ("nan in a list", "def f(): return [float('nan'), float('inf')]", {"function": "f", "calls": [[[], [float("nan"), float("inf")]]]}),
    ("a large number", "def f(): return 2 ** 200", {"function": "f", "calls": [[[], 2**200]]}),
    ("unordered pairs", "def f(): return [(2, 1), (0, 1)]", {"function": "f", "calls": [[[], [[0, 1], [2, 1]]]], "unordered": True}),
    ("many unordered", "def f(n): return list(range(n))[::-1]", {"function": "f", "calls": [[[20000], list(range(20000))]], "unordered": True}),
    ("prints beside", "def f(a):\n    print('x' * 100000)\n    return a", {"function": "f", "calls": [[[1], 1], [[2], 2]]}),
    ("stderr beside", "import sys\ndef f(a):\n    sys.stderr.write('x' * 100000)\n    return a", {"function": "f", "calls": [[[1], 1], [[2], 2]]}),
    ("state", "seen = []\ndef f(a):\n    seen.append(a)\n    return len(seen)", {"function": "f", "calls": [[[1], 1], [[1], 2]]}),
    ("a name of Python", "def sum(a, b): return a + b", {"function": "sum", "calls": [[[1, 2], 3]]}),
    ("deep", "def f(n):\n    r = []\n    for _ in range(n): r = [r]\n    return r", {"function": "f", "calls": [[[3], [[[[]]]]]]}),
    ("input with a prelude", "def f(): return helper()", {"function": "f", "calls": [[[], 7]], "prelude": "def helper(): return 7"}),
    # assertions
    ("assert", "def f(a): return a + 1", ["assert f(1) == 2", "assert f(2) == 3, 'message'"]),
    ("a name of Python in assertions", "def sum(a, b): return a + b", ["assert sum(10, 15) == 25"]),
    ("a name of the prelude", "def gcd(a, b):\n    while b: a, b = b, a % b\n    return a", ["assert gcd(12, 8) == 4", "assert (gcd(3, 7)) == 1"]),
    ("helpers of Python", "def f(a): return a", ["assert Counter(f([1, 1])) == Counter([1, 1])", "assert isclose(f(0.1) + 0.2, 0.3)", "assert math.isclose(f(1), 1)"]),
    ("the program's import", "import math\nfrom itertools import islice\ndef f(): return math.pi", ["assert math.isclose(f(), math.pi)", "assert list(islice([f()], 1)) == [f()]"]),
    ("check", "def f(a): return -a", {"asserts": ["check(f)"], "setup": "def check(candidate):\n    assert candidate(1) == -1\n    assert True", "function": "f"}),
    ("in place", "def f(a): a.sort()", ["a = [2, 1]\nf(a)\nassert a == [1, 2]"]),
    ("in place, nested", "def f(m): m[0][0] = 9", ["m = [[1], [2]]\nf(m)\nassert m == [[9], [2]]"]),
    ("in place, by name", "def f(a): a.clear()", ["a = {1: 2}\nf(a=a)\nassert a == {}"]),
    ("in place, large", "def f(a): a.sort()", ["a = list(range(5000))[::-1]\nf(a)\nassert a[0] == 0 and a[-1] == 4999"]),
    ("the same list", "def f(a): return a", ["a = [1]\nassert f(a) is a", "assert f([1]) is not [1]"]),
    ("another list", "def f(a): return list(a)", ["a = [1]\nassert f(a) is not a and f(a) == a"]),
    ("an alias", "class Box:\n    def __init__(self, a): self.a = a\n    def total(self): return sum(self.a)", ["a = [1]\nb = Box(a)\na.append(5)\nassert b.total() == 6"]),
    ("a list inside", NODE, ["n = Node(1)\nn.children.append(Node(2))\nn.children.append(Node(3))\nassert n.total() == 6 and len(n.children) == 2"]),
    ("a list that is watched", ERRORS, ["s = Stack()\nitems = s.items\ns.push(3)\nassert items == [3] and s.items is items"]),
    ("a dict inside", "class A:\n    def __init__(self): self.d = {}\n    def keys(self): return sorted(self.d)", ["a = A()\na.d['x'] = 1\nassert a.keys() == ['x']"]),
    ("nested lists inside", "class G:\n    def __init__(self): self.grid = [[0] * 3 for _ in range(3)]\n    def total(self): return sum(map(sum, self.grid))", ["g = G()\ng.grid[1][2] = 5\nassert g.total() == 5"]),
    ("trees of the program's class", NODE, ["a, b = Node(1), Node(2)\na.left = b\nassert a.left is b and a.left.value == 2 and a.right is None"]),
    ("a class of the tests", "def f(n): return n.value + (f(n.next) if n.next else 0)", {"asserts": ["assert f(L(1, L(2))) == 3"], "setup": "class L:\n    def __init__(self, value, next=None): self.value, self.next = value, next"}),
    ("a function of the tests", "def f(g, a): return [g(x) for x in a]", ["assert f(lambda x: x * 2, [1, 2]) == [2, 4]"]),
    ("a callback that raises", "def f(g):\n    try: return g()\n    except KeyError as e: return e.args[0]", {"asserts": ["assert f(g) == 'k'"], "setup": "def g(): raise KeyError('k')"}),
    ("a returned function", "def f(n): return lambda x: x + n", ["assert f(2)(3) == 5"]),
    ("a decorator", "def twice(g): return lambda *a: 2 * g(*a)", ["assert twice(lambda x: x + 1)(1) == 4"]),
    ("a generator", "def f(n):\n    for k in range(n): yield k", ["assert list(f(3)) == [0, 1, 2]", "assert next(f(1)) == 0", "assert sum(f(4)) == 6"]),
    ("a named tuple", "from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f(p): return P(p.y, p.x)", ["assert f(P(1, 2)).x == 2 and f(P(1, 2)) == (2, 1) and f(P(1, 2))._fields == ('x', 'y')"]),
    ("a typed named tuple", "from typing import NamedTuple\nclass P(NamedTuple):\n    x: int = 1\n    def twice(self): return 2 * self.x\ndef f(p): return p.twice()", ["assert f(P(3)) == 6 and P().x == 1"]),
    ("a Counter of missing keys", "from collections import Counter\ndef f(s): return Counter(s)", ["assert f('ab')['z'] == 0 and f('aab').most_common(1) == [('a', 2)]"]),
    ("an OrderedDict", "from collections import OrderedDict\ndef f(): return OrderedDict(a=1, b=2)", {"asserts": ["assert f() == OrderedDict(a=1, b=2) and list(f()) == ['a', 'b']"], "setup": "from collections import OrderedDict"}),
    ("a defaultdict of missing keys", "from collections import defaultdict\ndef f(): return defaultdict(int, a=1)", ["assert f()['z'] == 0 and f() == {'a': 1}"]),
    ("a date", "from datetime import *\ndef f(d): return d + timedelta(days=1)", {"asserts": ["assert f(date(2024, 2, 28)) == date(2024, 2, 29)", "assert f(datetime(2024, 1, 1, 5)).hour == 5"], "setup": "from datetime import date, datetime"}),
    ("an interval", "from datetime import *\ndef f(a, b): return b - a", {"asserts": ["assert f(date(2024, 1, 1), date(2024, 1, 3)).days == 2"], "setup": "from datetime import date"}),
    ("a zone", "from datetime import *\ndef f(): return datetime(2024, 1, 1, tzinfo=timezone.utc)", {"asserts": ["assert f() == dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)"], "setup": "import datetime as dt"}),
    ("a Decimal, a Fraction", "from decimal import Decimal\nfrom fractions import Fraction\ndef f(): return Decimal('1.10'), Fraction(1, 3)", {"asserts": ["assert f() == (Decimal('1.1'), Fraction(1, 3)) and f()[1].denominator == 3"], "setup": "from decimal import Decimal\nfrom fractions import Fraction"}),
    ("sets and deques", "from collections import deque\ndef f(): return {1, 2}, deque([1, 2]), frozenset([3])", {"asserts": ["assert f() == ({2, 1}, deque([1, 2]), frozenset([3]))", "assert f()[1].popleft() == 1"], "setup": "from collections import deque"}),
    ("a set while it is gone through", "def f(s, x): return x in s", ["s = {1, 'a', 77, (2, 3)}\nfor x in s: assert f(s, x)"]),
    ("types", "def f(): return [1, 'a', 2.0, None, True, b'x', 1j, range(3)]", ["assert [type(x) for x in f()] == [int, str, float, type(None), bool, bytes, complex, range] and f()[4] is True"]),
    ("an Enum", "from enum import Enum\nclass Color(Enum):\n    RED = 1\ndef f(): return Color.RED", ["assert f() == Color.RED and f() is Color.RED and f().name == 'RED' and Color(1) is f()"]),
    ("operators", VECTOR, ["v = Vector(3, 4)\nassert v + v == Vector(6, 8) == v * 2 == 2 * v and v != Vector(1)", "assert Vector(1, 2) @ Vector(3, 4) == 11", "assert abs(Vector(3, 4)) == 5.0", "assert -Vector(1) == Vector(-1) and float(Vector(2)) == 2.0", "assert len(Vector(1, 2)) == 2 and Vector(1, 2)[1] == 2 and 2 in Vector(1, 2) and not Vector(0)", "assert repr(Vector(1, 2)) == 'Vector(1, 2)' and f'{Vector(1, 2):x}' == 'xVector(1, 2)' and len({Vector(1, 2), Vector(1, 2)}) == 1"]),
    ("order beside numbers", MONEY, ["assert Money(5) == 5 and Money(5) > 3 and Money(1) < Money(2) and max(Money(1), Money(2)) == Money(2)", "assert Money(5) + 3 == 8 and int(Money(5)) == 5 and round(Money(2.26), 1) == 2.3", "assert sum([Money(1), Money(2)], Money(0)) == 3 and sorted([Money(2), Money(1)])[0] == 1"]),
    ("in, without iteration", TREE, ["t = Tree()\nfor x in (5, 2, 8): t.insert(x)\nassert 2 in t and 3 not in t"]),
    ("an own list of the program's", "class Stack(list):\n    def peek(self): return self[-1]\ndef f(): return Stack([1, 2])", ["s = Stack()\ns.append(1)\nassert s == [1] and s.peek() == 1 and len(s) == 1", "assert f() == [1, 2] and [1, 2] == f()"]),
    ("copies", NODE, {"asserts": ["n = Node(1)\nm = copy.deepcopy(n)\nm.value = 5\nassert n.value == 1 and m is not n"], "setup": "import copy"}),
    ("isinstance", NODE, ["assert isinstance(Node(1), Node) and issubclass(Node, Node) and hasattr(Node(1), 'left') and not hasattr(Node(1), 'x')"]),
    ("its own exception", ERRORS, ["try:\n    Stack().pop()\n    assert False\nexcept Empty as error:\n    assert error.size == 0 and str(error) == 'empty: 0'", "try:\n    Stack().pop()\nexcept StackError:\n    pass\nelse:\n    assert False"]),
    ("an exception of a module", "import json\ndef f(s): return json.loads(s)", {"asserts": ["try:\n    f('x')\n    assert False\nexcept json.JSONDecodeError:\n    pass"], "setup": "import json"}),
    ("a context", "class C:\n    def __init__(self): self.log = []\n    def __enter__(self):\n        self.log.append('in')\n        return self\n    def __exit__(self, *e):\n        self.log.append(e[0] is ValueError)\n        return True", ["c = C()\nwith c as d: raise ValueError\nassert d is c and c.log == ['in', True]"]),
    ("numpy's allclose", "def f(): return [0.1 + 0.2]", ["assert np.allclose(f(), [0.3])"]),
    ("many calls", "def f(n): return n * n", ["assert all(f(n) == n * n for n in range(300))"]),
    ("lambdas as programs", "f = lambda x: x", ["assert f(1) == 1"]),
    ("a property", "class T:\n    def __init__(self): self._x = 0\n    @property\n    def x(self): return self._x\n    @x.setter\n    def x(self, v): self._x = max(v, 0)", ["t = T()\nt.x = -5\nassert t.x == 0", "t = T()\nt.x = 5\nassert t.x == 5"]),
    ("class attributes and methods", "class A:\n    count = 0\n    def __init__(self): A.count += 1\n    @classmethod\n    def make(cls): return cls()\n    @staticmethod\n    def two(): return 2", ["A.make()\nassert A.count == 1 and A.two() == 2"]),
    ("del", "class D:\n    def __init__(self): self.d = {1: 2}\n    def __delitem__(self, k): del self.d[k]\n    def __setitem__(self, k, v): self.d[k] = v", ["d = D()\ndel d[1]\nd[3] = 4\nassert d.d == {3: 4}"]),
    # files for pytest
    ("pytest", "def f(a): return a + 1", {"pytest": "from solution import f\ndef test_a(): assert f(1) == 2\ndef test_b():\n    assert f(2) == 3"}),
    ("import solution", "def f(a): return a + 1", {"pytest": "import solution\ndef test_a(): assert solution.f(1) == 2"}),
    ("import *", "from math import gcd\ndef f(a): return a + 1", {"pytest": "from solution import *\ndef test_a(): assert f(1) == 2 and math.isclose(f(0), 1)"}),
    ("a name of Python in a file", "def gcd(a, b): return a if b == 0 else gcd(b, a % b)", {"pytest": "from solution import gcd\ndef test_a(): assert gcd(12, 8) == 4"}),
    ("a name of Python with *", "def gcd(a, b): return a if b == 0 else gcd(b, a % b)", {"pytest": "from solution import *\ndef test_a(): assert gcd(12, 8) == 4"}),
    ("raises", ERRORS, {"pytest": "import pytest\nfrom solution import Stack, Empty\ndef test_a():\n    with pytest.raises(Empty, match='empty') as info: Stack().pop()\n    assert info.value.size == 0\ndef test_b():\n    with pytest.raises((ValueError, Exception)): Stack().pop()"}),
    ("raises of Python", "def f(a):\n    if a < 0: raise ValueError('negative')\n    return a", {"pytest": "import pytest\nfrom solution import f\ndef test_a():\n    with pytest.raises(ValueError, match='^negative$') as e: f(-1)\n    assert str(e.value) == 'negative'"}),
    ("parametrize", "def f(a, b): return a + b", {"pytest": "import pytest\nfrom solution import f\n@pytest.mark.parametrize('a, b, c', [(1, 2, 3), pytest.param(0, 0, 0, id='none')])\ndef test_a(a, b, c): assert f(a, b) == c\n@pytest.mark.parametrize('a', [1, pytest.param(2)])\n@pytest.mark.parametrize(['b'], [(3,)])\ndef test_b(a, b): assert f(a, b) == a + b"}),
    ("parameters of a class", "def f(a): return a", {"pytest": "import pytest\nfrom solution import f\n@pytest.mark.parametrize('a', [1, 2])\nclass TestF:\n    def test_a(self, a): assert f(a) == a"}),
    ("fixtures", ERRORS, {"pytest": "import pytest\nfrom solution import Stack\n@pytest.fixture\ndef stack():\n    s = Stack()\n    s.push(1)\n    yield s\n    s.pop()\n@pytest.fixture(scope='module')\ndef two(stack):\n    stack.push(2)\n    return stack\ndef test_a(stack): assert len(stack) == 1\ndef test_b(two): assert list(two) == [1, 2]"}),
    ("fixtures of a class", ERRORS, {"pytest": "import pytest\nfrom solution import Stack\nclass TestS:\n    @pytest.fixture(autouse=True)\n    def ready(self): self.s = Stack()\n    @pytest.fixture\n    def one(self):\n        self.s.push(1)\n        return self.s\n    def test_a(self, one): assert one.items == [1]\n    def test_b(self): assert self.s.items == []"}),
    ("setup_method", ERRORS, {"pytest": "from solution import Stack\nclass TestS:\n    @classmethod\n    def setup_class(cls): cls.n = 2\n    def setup_method(self): self.s = Stack()\n    def teardown_method(self, method): self.s = None\n    def test_a(self):\n        self.s.push(self.n)\n        assert self.s.pop() == 2\n    def test_b(self): assert len(self.s) == 0"}),
    ("unittest", ERRORS, {"pytest": "import unittest\nfrom solution import Stack, Empty\nclass StackCase(unittest.TestCase):\n    def setUp(self): self.s = Stack()\n    def test_a(self):\n        self.s.push(1)\n        self.assertEqual(self.s.pop(), 1)\n        with self.assertRaises(Empty): self.s.pop()\n        self.assertRaises(Empty, self.s.pop)\n    def test_b(self):\n        for k in range(3):\n            with self.subTest(k=k): self.assertIn(k, [0, 1, 2])\n        self.assertAlmostEqual(len(self.s), 0)\n        self.assertTrue(not self.s)\nif __name__ == '__main__': unittest.main()"}),
    ("approx", "def f(): return 0.1 + 0.2", {"pytest": "import pytest\nfrom solution import f\ndef test_a(): assert f() == pytest.approx(0.3) and [f()] == pytest.approx([0.3])"}),
    ("helpers in a file", "def f(a): return a", {"pytest": "from solution import f\nCASES = [(1, 1), (2, 2)]\ndef check(a, b): assert f(a) == b\ndef test_a():\n    for a, b in CASES: check(a, b)"}),
    ("methods with their bases", "def f(a): return a", {"pytest": "from solution import f\nclass Base:\n    def test_base(self): assert f(1) == 1\nclass TestMore(Base):\n    def test_more(self): assert f(2) == 2"}),
    ("class of data", "from dataclasses import dataclass, field\n@dataclass\nclass P:\n    x: int\n    tags: list = field(default_factory=list)", {"pytest": "from solution import P\ndef test_a():\n    p = P(1)\n    p.tags.append('a')\n    assert p == P(1, ['a']) and p.tags == ['a']\n    assert repr(p) == \"P(x=1, tags=['a'])\""}),
    ("frozen class of data", "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass P:\n    x: int", {"pytest": "import pytest\nfrom dataclasses import FrozenInstanceError\nfrom solution import P\ndef test_a():\n    with pytest.raises(FrozenInstanceError): P(1).x = 2\ndef test_b():\n    with pytest.raises(AttributeError): P(1).y\n    assert {P(1): 2}[P(1)] == 2"}),
    ("SystemExit", "import sys\ndef f(): sys.exit(3)", {"pytest": "import pytest\nfrom solution import f\ndef test_a():\n    with pytest.raises(SystemExit) as e: f()\n    assert e.value.code == 3"}),
]  # fmt: skip
