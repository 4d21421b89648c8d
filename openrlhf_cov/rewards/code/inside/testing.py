"""Tests of a program that runs in another process: assertions, or functions in the manner of pytest.

One line of JSON for each test goes to the results, which the program's process does not have: ``{"passed": …,
"detail": …}``; before them ``{"tests": how many}``.
"""

import ast
import builtins
import collections
import datetime
import decimal
import fractions
import inspect
import itertools
import linecache
import math
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from io import BufferedRWPair
from types import ModuleType
from typing import Any, BinaryIO

import peer
import wire

MODULE = "tests"
# Attributes of plain data, which tests use of the results of functions.
PLAIN_NAMES = frozenset(
    name
    for kind in (str, bytes, list, tuple, dict, set, int, float, complex, range, collections.deque, decimal.Decimal,
                 fractions.Fraction, collections.Counter, datetime.datetime, datetime.timedelta)
    for name in dir(kind)
    if not name.startswith("_")
)  # fmt: skip
Test = Callable[[], Any]


def run(request: dict[str, Any], channel: BufferedRWPair, results: BinaryIO, common: dict[str, Any]) -> None:
    """Run all tests of a request, or those up to the first that fails, and report each.

    Args:
        request: What ``openrlhf_cov.rewards.code.judge.checked_by`` returns: statements with their setup, or the text
            of a file for pytest.
        channel: The channel to the process of the program.
        results: Gets the number of tests, then a report of each test, a line of JSON each.
        common: Name -> value of what any test may use.

    Raises:
        EOFError: The process of the program ended before it sent its names.
        SyntaxError: The setup or an assertion is no Python.
    """
    side = peer.Peer(channel, trusting=False, owner=MODULE)
    names = side.hear().get("names", {})
    module = ModuleType(MODULE)
    sys.modules[MODULE] = module
    side.converts_stop = "StopIteration" not in "".join([request["setup"], *request["asserts"]])
    classes = used_as_classes([request["setup"], *request["asserts"]])
    values = peer.imported(names if isinstance(names, dict) else {}, side, classes)
    tested = _tested(request, common.keys() | vars(builtins).keys())
    helpers = {name: value for name, value in common.items() if name not in tested}
    # a program that calls something as the tests call a helper of theirs would be asked what it thinks of itself
    own = _bound(request["setup"]) | helpers.keys() | (vars(builtins).keys() - tested)
    freely = {name: value for name, value in values.items() if name not in own}
    _pretend_modules(values, list(freely))
    vars(module).update(helpers)
    if not request["functions"]:  # a file of tests imports what it wants
        vars(module).update(freely, np=sys.modules["numpy"], numpy=sys.modules["numpy"], pytest=sys.modules["pytest"])
    failure: BaseException | None = None
    gathered: list[Test] = []
    try:
        exec(_compiled(request["setup"], "tests.py"), vars(module))
        gathered = list(_tests(request, module, values))
    except BaseException as error:
        failure = error
    # The number comes first, so that tests which never report count as failed.
    results.write(wire.line({"tests": len(gathered)}))
    if failure:
        _tell(results, failure)
        return
    for test in gathered:
        outcome: BaseException | None = None
        try:
            # A test that returns a comparison instead of asserting it would pass for every program.
            if test() is not None:
                raise TypeError("a test returns nothing")
        except BaseException as error:  # also SystemExit: a test that does not come to its end has failed
            outcome = error
        _tell(results, outcome)
        if outcome is not None and request["stop"]:
            return


def _tested(request: dict[str, Any], python: set[str]) -> set[str]:
    """Return names that Python defines, but that mean functions of the program in these tests.

    These are the names in statements that use nothing else of the program, unless another statement needs Python's:
    with ``gcd(4, 6) == 2`` it is the program's ``gcd``, with ``abs(f(3) - 9) < 1e-6`` it is Python's ``abs``.
    """
    alone = set()
    beside = set()
    setup = _bound(request["setup"])
    for source in request["asserts"] or [request["setup"]]:
        tree = ast.parse(source)
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - setup - _bound(source)
        names -= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
        if names <= python:  # of Python's functions, those that are always there only where there are no others
            alone |= names - vars(builtins).keys() or names
        else:
            beside |= names
    return (alone - beside) | {request["function"]}


def used_as_classes(sources: list[str]) -> set[str]:
    """Return the names that tests use as classes: what calling them returns is an object, whose class is tested.

    A name that begins with a capital may be a function. Its result counts as plain data unless a test

    - uses an attribute of the result, or of the name itself, that no plain data has,
    - calls a method of the result for its effect alone,
    - uses the name in ``isinstance`` or as a base,
    - orders two results of the name, or computes with both.

    A test may give the result a name first, or return it from a fixture.
    """
    nodes = [node for source in sources for node in ast.walk(ast.parse(source))]
    objects: set[str] = set()
    for node in nodes:
        match node:
            case ast.Attribute(attr=attribute) if attribute not in PLAIN_NAMES:
                objects.add(_last_name(node.value))
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=changed))):
                objects.add(_last_name(changed))
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, kinds]):
                objects |= {_last_name(each) for each in (kinds.elts if isinstance(kinds, ast.Tuple) else [kinds])}
            case ast.BinOp(left=ast.Call() as left, right=ast.Call() as right):
                objects |= {_last_name(left)} & {_last_name(right)}
            case ast.Compare(
                left=ast.Call() as left,
                ops=[ast.Lt() | ast.Gt() | ast.LtE() | ast.GtE()],
                comparators=[ast.Call() as right],
            ):
                objects |= {_last_name(left)} & {_last_name(right)}
            case ast.ClassDef(bases=bases):
                objects |= set(map(_last_name, bases))
    # A name may come from a function of the tests, whose result comes from a class.
    known = 0
    while known < len(objects):
        known = len(objects)
        objects |= {called for node in nodes for called in _makers(node, objects)}
    return objects - {""}


def _makers(node: ast.AST, objects: set[str]) -> set[str]:
    """Return the names that a statement calls to make one of the ``objects``."""
    made: list[ast.AST] = []
    match node:
        case ast.Assign(targets=targets, value=value):
            places = [each for target in targets for each in ast.walk(target)]
            made = [value] if objects.intersection(map(_last_name, places)) - {""} else []
        case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.NamedExpr(target=target, value=value):
            made = [value] if _last_name(target) in objects else []
        case ast.withitem(context_expr=value, optional_vars=ast.Name(id=name)):
            made = [value] if name in objects else []
        case ast.FunctionDef(name=name) if name in objects:
            made = [each for each in ast.walk(node) if isinstance(each, ast.Return | ast.Yield)]
    return {_last_name(each) for value in made for each in ast.walk(value) if isinstance(each, ast.Call)}


def _last_name(node: ast.AST) -> str:
    """Return the last name of ``a.b.c``, ``a.b.c(...)`` and ``a.b.c[...]``; empty for another expression."""
    if isinstance(node, ast.Call):
        return _last_name(node.func)
    if isinstance(node, ast.Subscript):
        return _last_name(node.value)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _tell(results: BinaryIO, error: BaseException | None) -> None:
    """Report the outcome of a test. The detail beside "passed" is for a person."""
    detail = ""
    if error is not None:
        told = [str(error), *map(str, getattr(error, "__notes__", []))]
        frames = [each.line for each in traceback.extract_tb(error.__traceback__) if each.filename.startswith("test")]
        detail = f"{type(error).__name__}: {', '.join(filter(None, told))}"[:200]
        detail += f" in {frames[-1]}" if frames else ""
    results.write(wire.line({"passed": error is None, "detail": detail[:300]}))
    results.flush()


def _compiled(source: str, name: str) -> Any:
    """Compile code, and register its lines so that tracebacks can show them."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    return compile(source, name, "exec")


def _bound(source: str) -> set[str]:
    """Return the names that code of tests binds, and those of modules that stand in for libraries.

    Names that are bound inside of functions count as well, but parameters and names imported from ``solution`` do not.
    """
    names = {"np", "numpy", "pytest"}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom) and getattr(node, "module", None) != "solution":
            names |= {(each.asname or each.name).partition(".")[0] for each in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def _tests(request: dict[str, Any], module: ModuleType, values: dict[str, Any]) -> Iterator[Test]:
    """Return what the tests define; a name from a program's ``values`` is no test, whatever it is called."""
    for number, source in enumerate(request["asserts"]):
        code = _compiled(source, f"test_{number + 1}.py")
        yield lambda code=code: exec(code, vars(module))
    if not request["functions"]:
        return
    owned = {name: value for name, value in vars(module).items() if values.get(name) is not value}
    fixtures = {name: value for name, value in owned.items() if isinstance(value, Fixture)}
    around = _hook(owned, "setup_function"), _hook(owned, "teardown_function")
    _hook(owned, "setup_module", "setUpModule")()
    for name, value in owned.items():
        if name.startswith("test") and inspect.isfunction(value):
            for given in _combinations(value):
                yield _Case(value, given, fixtures, around)
        elif isinstance(value, type) and (name.startswith("Test") or hasattr(value, "assertEqual")):
            yield from _methods(value, fixtures)


def _methods(suite: type, fixtures: dict[str, "Fixture"]) -> Iterator[Test]:
    """Yield the tests of a class, each with an instance of its own."""
    before = _hook(suite, "setup_class", "setUpClass")
    for name in [name for name in _members(suite) if name.startswith("test")]:
        for given in _combinations(getattr(suite, name), suite):
            one = suite()
            own = {each: getattr(one, each) for each in _members(suite) if isinstance(getattr(suite, each), Fixture)}
            around = _hook(one, "setup_method", "setUp"), _hook(one, "teardown_method", "tearDown")
            yield _Case(getattr(one, name), given, fixtures | own, around, before)
            # The hook of the class runs once, before its first test.
            before = _nothing


def _members(suite: type) -> list[str]:
    """Return the names of a class and its bases, in the order in which they are written."""
    return list({name: None for each in reversed(suite.__mro__) for name in vars(each)})


def _nothing() -> None:
    """Do nothing: the default of a missing hook."""


def _hook(owner: Any, *names: str) -> Callable[[], Any]:
    """Return the set-up or tear-down of a class, an object or a namespace; a no-op if it has none."""
    for name in names:
        found = owner.get(name) if isinstance(owner, dict) else getattr(owner, name, None)
        if found is not None:
            return lambda: found(*[None] * _required(found))
    return _nothing


def _required(function: Callable[..., Any]) -> int:
    """Count the arguments without a default. pytest passes a hook the test, or its module."""
    return sum(each.default is each.empty for each in inspect.signature(function).parameters.values())


def _combinations(*marked: Any) -> Iterator[dict[str, Any]]:
    """Yield the parameters of each test that ``parametrize`` makes of a function and of its class."""
    lists = [each for mark in marked for each in getattr(mark, "parameters", [])]
    for combination in itertools.product(*lists):
        yield {name: value for part in combination for name, value in part.items()}


class _Case:
    """One test: a function with its arguments and fixtures, and the hooks before and after it."""

    def __init__(
        self, function: Any, given: dict[str, Any], fixtures: Any, around: Any, first: Any = _nothing
    ) -> None:
        self._function = function
        self._given = given
        self._fixtures = fixtures
        self._before, self._after = around
        self._first = first

    def __call__(self) -> Any:
        made: dict[str, Any] = dict(self._given)
        steps: list[Iterator[Any]] = []
        self._first()
        for name, fixture in self._fixtures.items():
            if fixture.autouse:
                self._make(name, made, steps)
        self._before()
        try:
            return self._function(**self._arguments(self._function, made, steps))
        finally:
            self._after()
            for each in reversed(steps):
                next(each, None)

    def _arguments(self, function: Any, made: dict[str, Any], steps: list[Iterator[Any]]) -> dict[str, Any]:
        names = [name for name in inspect.signature(function).parameters if name in made or name in self._fixtures]
        return {name: self._make(name, made, steps) for name in names}

    def _make(self, name: str, made: dict[str, Any], steps: list[Iterator[Any]]) -> Any:
        if name not in made:
            function = self._fixtures[name].function
            value = function(**self._arguments(function, made, steps))
            if inspect.isgenerator(value):
                steps.append(value)
                value = next(value)
            made[name] = value
        return made[name]


class Fixture:
    """The result of ``pytest.fixture`` for a function; each test gets its own value."""

    def __init__(self, function: Any = None, scope: str = "function", autouse: bool = False) -> None:
        self.function = function
        self.autouse = autouse

    def __call__(self, function: Any) -> "Fixture":
        self.function = function
        return self

    def __get__(self, owner: Any, kind: Any = None) -> "Fixture":
        return self if owner is None else Fixture(self.function.__get__(owner, kind), autouse=self.autouse)


def _pretend_modules(values: dict[str, Any], public: list[str]) -> None:
    """Register ``solution`` and ``pytest`` for the imports of tests; ``import *`` takes the ``public`` names."""
    solution = ModuleType("solution")
    vars(solution).update(values | {"__all__": public})
    pytest = ModuleType("pytest")
    vars(pytest).update(
        raises=Raises,
        approx=Approximately,
        fail=_fail,
        fixture=Fixture,
        mark=Marks(),
        param=lambda *values, **_: Parameters(values),
    )
    sys.modules.update(solution=solution, pytest=pytest, numpy=_numpy())


def _numpy() -> ModuleType:
    """Return the part of numpy that the tests of HumanEval+ and MBPP+ use; no value of a program is an array."""
    numpy = ModuleType("numpy")
    vars(numpy).update({name: type(name, (), {}) for name in ("ndarray", "float32", "float64")})
    vars(numpy)["allclose"] = _all_close
    return numpy


def _all_close(values: Any, expected: Any, rtol: float = 1e-5, atol: float = 1e-8) -> bool:
    """Return True if all numbers differ by at most ``atol + rtol * |expected|`` and the shapes are equal."""
    if isinstance(values, list | tuple) and isinstance(expected, list | tuple):
        return len(values) == len(expected) and all(
            _all_close(one, other, rtol, atol) for one, other in zip(values, expected, strict=True)
        )
    numbers: list[Any] = [values, expected]
    if not all(isinstance(each, int | float | complex) for each in numbers):
        raise TypeError("allclose compares plain numbers")
    if any(abs(each) == math.inf for each in numbers):
        return values == expected  # the tolerance beside an infinite number would be infinite, too
    return values == expected or abs(values - expected) <= atol + rtol * abs(expected)


def _fail(reason: str = "", **_: Any) -> None:
    raise AssertionError(reason)


class Parameters(tuple):
    """The result of ``pytest.param``."""


class Marks:
    """The replacement of ``pytest.mark``: ``parametrize``, and other marks, which change nothing."""

    def __getattr__(self, name: str) -> Any:
        def mark(*args: Any, **_: Any) -> Any:
            # ``@pytest.mark.slow`` gets the function itself, ``@pytest.mark.slow(...)`` has to return a decorator.
            return args[0] if len(args) == 1 and callable(args[0]) else lambda function: function

        return mark

    def parametrize(self, names: Any, values: Any, **_: Any) -> Any:
        """Return a decorator that gives a function one more list of parameters.

        Args:
            names: The parameter names: a string with commas between them, or a sequence.
            values: One row of values for each test. With a single name, a row is the value itself.
        """
        split = [name.strip() for name in names.split(",") if name.strip()] if isinstance(names, str) else list(names)
        single = isinstance(names, str) and len(split) == 1

        def mark(function: Any) -> Any:
            rows = []
            for value in values:
                alone = single and not isinstance(value, Parameters)
                rows.append(dict(zip(split, [value] if alone else value, strict=True)))
            function.parameters = [*getattr(function, "parameters", []), rows]
            return function

        return mark


class Raises:
    """The replacement of ``pytest.raises``: the block must raise one of the kinds, with a text that matches."""

    def __init__(self, kinds: Any, *call: Any, match: str | None = None, **kwargs: Any) -> None:
        self.kinds = kinds if isinstance(kinds, tuple) else (kinds,)
        self.match = match
        self.value = None
        if call:
            with self:
                call[0](*call[1:], **kwargs)

    def __enter__(self) -> "Raises":
        return self

    def __exit__(self, kind: Any, error: Any, _: Any) -> bool:
        if error is None:
            raise AssertionError("nothing was raised")
        if not isinstance(error, self.kinds):
            return False
        self.value = error
        self.type = kind
        if self.match is not None and not re.search(self.match, str(error)):
            raise AssertionError(f"{error} does not match {self.match}")
        return True


class Approximately:
    """The replacement of ``pytest.approx`` for numbers, and lists, tuples and dicts of them."""

    def __init__(
        self, expected: Any, rel: float | None = None, abs: float | None = None, nan_ok: bool = False
    ) -> None:
        self.expected = expected
        self.nan_ok = nan_ok
        self.rel = 1e-6 if rel is None and abs is None else rel or 0.0
        self.abs = 1e-12 if abs is None else abs

    def __eq__(self, other: Any) -> bool:
        return self._near(self.expected, other)

    def _near(self, expected: Any, value: Any) -> bool:
        if isinstance(expected, list | tuple):
            return (
                isinstance(value, list | tuple)
                and len(value) == len(expected)
                and all(map(self._near, expected, value))
            )
        if isinstance(expected, dict):
            return (
                isinstance(value, dict)
                and value.keys() == expected.keys()
                and all(self._near(expected[key], value[key]) for key in expected)
            )
        if isinstance(expected, int | float | complex) and isinstance(value, int | float | complex):
            if expected != expected or value != value:
                return self.nan_ok and expected != expected and value != value
            if expected == value:
                return True
            if isinstance(expected, complex) or isinstance(value, complex):
                return abs(expected - value) <= max(self.abs, self.rel * abs(expected))
            return not math.isinf(expected) and abs(expected - value) <= max(self.abs, self.rel * abs(expected))
        return bool(expected == value)

    def __hash__(self) -> int:
        raise TypeError("an approximate value has no hash")
