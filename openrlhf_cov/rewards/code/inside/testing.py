"""Tests of a program that runs in another process: assertions, or functions in the manner of pytest.

One line of JSON for each test goes to the results, which the program's process does not have: ``{"passed": …,
"detail": …}``; before them ``{"tests": how many}``.
"""

import ast
import itertools
import math
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, BinaryIO

import peer
import wire

MODULE = "tests"
Test = Callable[[], Any]


def run(request: dict[str, Any], channel: BinaryIO, results: BinaryIO) -> None:
    """Run all tests of the request, or those up to the first that fails."""
    side = peer.Peer(channel, trusting=False, owner=MODULE)
    names = side.hear().get("names", {})
    module = ModuleType(MODULE)
    sys.modules[MODULE] = module
    values = peer.imported(names if isinstance(names, dict) else {}, side)
    freely = peer.without_builtins(values, request["function"])
    # a program that calls something as the tests call a helper of theirs would be asked what it thinks of itself
    freely = {name: value for name, value in freely.items() if name not in _bound(request["setup"])}
    _pretend_modules(values, list(freely))
    if not request["functions"]:  # a file of tests imports what it wants
        vars(module).update(freely, np=sys.modules["numpy"], numpy=sys.modules["numpy"], pytest=sys.modules["pytest"])
    failure: BaseException | None = None
    gathered: list[Test] = []
    try:
        exec(compile(request["setup"], "tests.py", "exec"), vars(module))
        gathered = list(_tests(request, module, values))
    except BaseException as error:
        failure = error
    results.write(wire.line({"tests": len(gathered)}))
    if failure:
        _tell(results, failure)
        return
    for test in gathered:
        outcome: BaseException | None = None
        try:
            test()
        except BaseException as error:  # also SystemExit: a test that does not come to its end has failed
            outcome = error
        _tell(results, outcome)
        if outcome is not None and request["stop"]:
            return


def _tell(results: BinaryIO, error: BaseException | None) -> None:
    detail = "" if error is None else f"{type(error).__name__}: {error}"[:300]
    results.write(wire.line({"passed": error is None, "detail": detail}))
    results.flush()


def _bound(source: str) -> set[str]:
    """Names that tests bind themselves, outside of functions, and those of the modules that stand in for libraries."""
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
    """What the tests define; a name that a program's ``values`` brought is no test, whatever it is called."""
    for number, source in enumerate(request["asserts"]):
        code = compile(source, f"assert_{number + 1}.py", "exec")
        yield lambda code=code: exec(code, vars(module))
    for name, value in list(vars(module).items()):
        if not request["functions"]:
            break
        if values.get(name) is value:
            continue
        if name.startswith("test") and callable(value) and not isinstance(value, type | peer.Remote):
            yield from _cases(value)
        elif name.startswith("Test") and isinstance(value, type):
            for method in [method for method in vars(value) if method.startswith("test")]:
                yield from _cases(getattr(value(), method))


def _cases(function: Callable[..., Any]) -> Iterator[Test]:
    """A test for each combination of the parameters that ``parametrize`` gave."""
    for combination in itertools.product(*getattr(function, "parameters", [])):
        given = {name: value for part in combination for name, value in part.items()}
        yield lambda given=given: function(**given)


def _pretend_modules(values: dict[str, Any], public: list[str]) -> None:
    """``solution``, of which ``import *`` takes what is ``public``, and ``pytest``, as tests import them."""
    solution = ModuleType("solution")
    vars(solution).update(values)
    solution.__all__ = public
    pytest = ModuleType("pytest")
    pytest.raises, pytest.approx, pytest.fail, pytest.skip = Raises, Approximately, _fail, _fail
    pytest.mark = Marks()
    pytest.param = lambda *values, **_: values
    sys.modules.update(solution=solution, pytest=pytest, numpy=_numpy())


def _numpy() -> ModuleType:
    """As much of numpy as the tests of HumanEval+ and MBPP+ use; no value of a program is an array."""
    numpy = ModuleType("numpy")
    numpy.ndarray, numpy.float32, numpy.float64 = (type(name, (), {}) for name in ("ndarray", "float32", "float64"))
    numpy.allclose = _all_close
    return numpy


def _all_close(values: Any, expected: Any, rtol: float = 1e-5, atol: float = 1e-8) -> bool:
    """Whether all numbers are near each other, ``atol + rtol * |expected|`` at most; a shape must be the same."""
    if isinstance(values, list | tuple) and isinstance(expected, list | tuple):
        return len(values) == len(expected) and all(
            _all_close(one, other, rtol, atol) for one, other in zip(values, expected, strict=True)
        )
    if not all(isinstance(each, int | float | complex) for each in (values, expected)):
        raise TypeError("allclose compares plain numbers")
    return values == expected or abs(values - expected) <= atol + rtol * abs(expected)


def _fail(reason: str = "", **_: Any) -> None:
    raise AssertionError(reason)


class Marks:
    """``pytest.mark``: ``parametrize``, and others that change nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **_: args[0] if len(args) == 1 and callable(args[0]) else lambda function: function

    def parametrize(self, names: Any, values: Any, **_: Any) -> Any:
        """A decorator that gives a function one more list of parameters."""
        split = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)

        def mark(function: Any) -> Any:
            rows = [{split[0]: value} if len(split) == 1 else dict(zip(split, value, strict=True)) for value in values]
            function.parameters = [*getattr(function, "parameters", []), rows]
            return function

        return mark


class Raises:
    """``pytest.raises``: the block must raise one of the kinds, with a text that ``match`` finds."""

    def __init__(self, kinds: Any, *call: Any, match: str | None = None, **kwargs: Any) -> None:
        self.kinds = kinds if isinstance(kinds, tuple) else (kinds,)
        self.match, self.value = match, None
        if call:
            with self:
                call[0](*call[1:], **kwargs)

    def __enter__(self) -> "Raises":
        return self

    def __exit__(self, kind: Any, error: Any, _: Any) -> bool:
        if error is None:
            raise AssertionError("nothing was raised")
        if not any(_is_of(error, each) for each in self.kinds):
            return False
        self.value, self.type = error, kind
        import re

        if self.match is not None and not re.search(self.match, str(error)):
            raise AssertionError(f"{error} does not match {self.match}")
        return True


def _is_of(error: Any, kind: Any) -> bool:
    if isinstance(kind, peer.Remote):  # the program's own exception, which came as its nearest relative
        return str(kind.__name__) in getattr(error, "remote_names", ())
    return isinstance(error, kind)


class Approximately:
    """``pytest.approx`` for numbers, and lists, tuples and dicts of them."""

    def __init__(
        self, expected: Any, rel: float | None = None, abs: float | None = None, nan_ok: bool = False
    ) -> None:
        self.expected, self.nan_ok = expected, nan_ok
        self.rel, self.abs = 1e-6 if rel is None and abs is None else rel or 0.0, 1e-12 if abs is None else abs

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
