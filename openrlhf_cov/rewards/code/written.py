"""Check that tests written in Python can fail, and can run beside a program in another process (pure).

A row whose tests pass whatever the program does would reward anything, and one whose tests need what is not there
would reward nothing; ValueError says which it is.
"""

import ast
import sys
from collections.abc import Collection, Iterator

# What ``inside/testing.py`` has of each library that is not Python's own.
LIBRARIES: dict[str, frozenset[str]] = {
    "pytest": frozenset(("approx", "fail", "fixture", "mark", "param", "raises")),
    "numpy": frozenset(("allclose", "float32", "float64", "ndarray")),
}
# Modules whose tests need the program in their own process, or its files.
APART = frozenset(
    "asyncio concurrent faulthandler importlib inspect multiprocessing shutil socket subprocess tempfile threading "
    "unittest.mock".split()
)
# Likewise: what a program prints or reads.
STREAMS = frozenset(("redirect_stdout", "redirect_stderr", "stdin", "stdout", "stderr"))
# Decorators that a test is not run for, or is to fail for.
SKIPPED = frozenset(("skip", "skipif", "skipIf", "skipUnless", "xfail", "expectedFailure", "usefixtures"))
Function = ast.FunctionDef | ast.AsyncFunctionDef


def parsed(source: str, name: str) -> ast.Module:
    """Return the syntax tree of Python source text.

    Args:
        source: The source text.
        name: What the text is, for the message.

    Raises:
        ValueError: The text is no Python.
    """
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{name} is no Python: {error}") from None


def check_prelude(source: str) -> None:
    """Check that the Python which runs before the program imports only modules that exist in the sandbox.

    Raises:
        ValueError: The text is no Python, or imports another module.
    """
    _check_imports(parsed(source, "prelude"), "prelude", frozenset())


def check_statements(statements: list[str], setup: str) -> None:
    """Check that each statement can fail, and needs nothing that the process of the tests lacks.

    Args:
        statements: The tests, each a piece of Python.
        setup: Python that runs before them.

    Raises:
        ValueError: A test cannot fail, cannot run or is no Python; the message names it.
    """
    before = parsed(setup, "setup")
    _check_reach(before, "setup")
    for number, statement in enumerate(statements, start=1):
        name = f"test {number}"
        tree = parsed(statement, name)
        _check_reach(tree, name)
        if not _asserts(tree.body, _checkers([*before.body, *tree.body])):
            raise ValueError(f"{name} asserts nothing, so no program fails it: {statement.strip():.60}")


def check_file(source: str) -> None:
    """Check that a file for pytest has tests, and that each of them can fail and is given all its arguments.

    Raises:
        ValueError: The file has no test, or one that cannot fail, cannot run or is no Python; the message names it.
    """
    tree = parsed(source, "test 1")
    _check_reach(tree, "the file")
    checkers = _checkers(list(ast.walk(tree)))
    found = False
    fixtures = _fixtures(tree.body)
    for owner, test in _tests(tree):
        found = True
        if any(isinstance(node, ast.Yield | ast.YieldFrom) for node in _own_nodes(test)):
            raise ValueError(f"{test.name} yields, so that none of it would run")
        if any(isinstance(node, ast.Return) and node.value is not None for node in _own_nodes(test)):
            raise ValueError(f"{test.name} returns a value, which fails for no program")
        if not _asserts(test.body, checkers):
            raise ValueError(f"{test.name} asserts nothing, so no program fails it")
        decorators = [*test.decorator_list, *(owner.decorator_list if owner else [])]
        given = {name for each in decorators for name in _parameters(each, test.name)}
        _check_arguments(test, given | fixtures | _fixtures(owner.body if owner else []), owner is not None)
    if not found:
        raise ValueError("the file has no function test_…")


def _tests(tree: ast.Module) -> Iterator[tuple[ast.ClassDef | None, Function]]:
    """Yield the functions that are tests, each with its class; None for a function outside of a class."""
    for node in tree.body:
        if isinstance(node, Function) and node.name.startswith("test"):
            yield None, node
        elif isinstance(node, ast.ClassDef):
            is_test_case = any(_last_name(base).endswith("TestCase") for base in node.bases)
            if is_test_case or node.name.startswith("Test"):
                methods = (each for each in node.body if isinstance(each, Function) and each.name[:4] == "test")
                yield from ((node, each) for each in methods)


def _check_reach(tree: ast.Module, name: str) -> None:
    """Raise ValueError if tests need what their process lacks, or if an assertion holds for every program."""
    _check_imports(tree, name, LIBRARIES.keys())
    known = {alias: library for alias, library in _aliases(tree) if library in LIBRARIES}
    for node in ast.walk(tree):
        match node:
            case ast.AsyncFunctionDef() | ast.Await() | ast.AsyncFor() | ast.AsyncWith():
                raise ValueError(f"{name}: tests that are async are not supported")
            case ast.Assert() if _always(node.test):
                raise ValueError(f"{name}: assert {ast.unparse(node.test):.60} holds for every program")
            case ast.Expr(value=ast.Compare()):
                raise ValueError(f"{name}: {ast.unparse(node):.60} compares and asserts nothing")
            case ast.Attribute(value=ast.Name(id=library)) if library in known:
                _check_library(known[library], node.attr, name)
            case ast.Call(func=ast.Name(id="open" | "input" | "redirect_stdout" | "redirect_stderr")):
                raise ValueError(f"{name}: {ast.unparse(node.func)} does not reach the program, in its own process")
            case ast.Attribute(value=ast.Name(id="sys" | "contextlib"), attr=attribute) if attribute in STREAMS:
                raise ValueError(f"{name}: {ast.unparse(node)} does not reach the program, in its own process")
            case ast.Attribute(value=ast.Attribute(attr="mark"), attr=attribute) if attribute in SKIPPED:
                raise ValueError(f"{name}: {ast.unparse(node)} is not supported")
        for each in getattr(node, "decorator_list", []):
            if _last_name(each) in SKIPPED:
                raise ValueError(f"{name}: {ast.unparse(each):.60} is not supported")


def _check_imports(tree: ast.Module, name: str, libraries: Collection[str]) -> None:
    for node in ast.walk(tree):
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
            for each in node.names:
                _check_library(modules[0], each.name, name)
                modules += [f"{node.module}.{each.name}"] if node.module == "unittest" else []
        for module in modules:
            top = module.partition(".")[0]
            if libraries and (top in APART or module in APART):
                raise ValueError(f"{name}: {module} does not reach the program, in its own process")
            if top not in sys.stdlib_module_names and (not libraries or top not in (*libraries, "solution")):
                raise ValueError(f"{name} imports {module or 'a relative module'}, which is not there")


def _check_library(library: str, attribute: str, name: str) -> None:
    if library in LIBRARIES and attribute not in LIBRARIES[library]:
        raise ValueError(f"{name}: {library}.{attribute} is not supported")


def _aliases(tree: ast.Module) -> Iterator[tuple[str, str]]:
    yield from (("np", "numpy"), ("numpy", "numpy"), ("pytest", "pytest"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((each.asname or each.name, each.name) for each in node.names)


def _always(test: ast.expr) -> bool:
    """Return True if an assertion holds whatever was computed. A plain ``True`` does not count: it says "got here"."""
    if isinstance(test, ast.Tuple | ast.List | ast.Set):
        return bool(test.elts)
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or):
        return any(_always(each) or (isinstance(each, ast.Constant) and bool(each.value)) for each in test.values)
    return isinstance(test, ast.Lambda | ast.GeneratorExp)


def _checkers(nodes: list[ast.AST]) -> set[str]:
    """Return the names of functions that assert something, themselves or by calling one of these functions."""
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    names: set[str] = set()
    while more := {each.name for each in functions if each.name not in names and _asserts(each.body, names)}:
        names |= more
    return names


def _asserts(body: list[ast.stmt], checkers: set[str]) -> bool:
    """Return True if these statements can fail for a wrong result."""
    for node in (node for statement in body for node in ast.walk(statement)):
        match node:
            case ast.Raise():
                return True
            case ast.Assert() if any(isinstance(each, ast.Name) for each in ast.walk(node.test)):
                return True
            case ast.Assert(test=ast.Constant(value=value)) if not value:
                return True  # ``assert False`` marks a place that no correct program reaches
            case ast.Call():
                called = _last_name(node.func)
                if called in checkers or called.startswith(("assert", "fail", "raises")):
                    return True
    return False


def _last_name(node: ast.AST) -> str:
    """Return ``c`` for ``a.b.c`` and for ``a.b.c(…)``."""
    if isinstance(node, ast.Call):
        return _last_name(node.func)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _own_nodes(function: Function) -> Iterator[ast.AST]:
    """Yield the nodes of a function except those of functions inside."""
    left: list[ast.AST] = list(function.body)
    while left:
        node = left.pop()
        yield node
        if not isinstance(node, Function | ast.Lambda | ast.ClassDef):
            left += ast.iter_child_nodes(node)


def _fixtures(body: list[ast.stmt]) -> set[str]:
    names = set()
    for node in (node for node in body if isinstance(node, ast.FunctionDef)):
        for each in node.decorator_list:
            if _last_name(each) == "fixture":
                keywords = {keyword.arg for keyword in each.keywords} if isinstance(each, ast.Call) else set()
                if not keywords <= {"scope", "autouse"}:
                    raise ValueError(f"fixture {node.name}: of its options, scope and autouse are supported")
                names.add(node.name)
    for node in (node for node in body if isinstance(node, ast.FunctionDef) and node.name in names):
        _check_arguments(node, names, bool(node.args.args) and node.args.args[0].arg == "self")
    return names


def _parameters(decorator: ast.expr, name: str) -> list[str]:
    """Return the parameter names that a ``parametrize`` decorator defines."""
    if not isinstance(decorator, ast.Call) or _last_name(decorator) != "parametrize":
        return []
    values = dict(zip(("argnames", "argvalues"), decorator.args, strict=False))
    values |= {keyword.arg: keyword.value for keyword in decorator.keywords if keyword.arg}
    names = values.get("argnames")
    rows = values.get("argvalues")
    if "indirect" in values or any(_last_name(each) in SKIPPED for each in ast.walk(decorator)):
        raise ValueError(f"{name}: parametrize with indirect, or with tests to skip, is not supported")
    if isinstance(rows, ast.List | ast.Tuple) and not rows.elts:
        raise ValueError(f"{name}: parametrize has no values, so there is no test")
    try:
        found = ast.literal_eval(names) if names else ""
    except ValueError:
        found = ""
    split = [each.strip() for each in found.split(",") if each.strip()] if isinstance(found, str) else list(found)
    if not split or not all(isinstance(each, str) for each in split):
        raise ValueError(f"{name}: parametrize needs the names that it gives")
    return split


def _check_arguments(function: Function, known: set[str], method: bool) -> None:
    """Raise ValueError if a test or fixture is not given all its arguments."""
    arguments = [*function.args.posonlyargs, *function.args.args]
    static = any(_last_name(each) == "staticmethod" for each in function.decorator_list)
    required = arguments[1 if method and not static else 0 : len(arguments) - len(function.args.defaults)]
    unknown = [each.arg for each in required if each.arg not in known]
    if unknown:
        raise ValueError(f"{function.name} takes {unknown[0]!r}, which is no parameter and no fixture of the file")
