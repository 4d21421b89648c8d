"""What code uses of upstream, read from its syntax: imports, and whether calls fit."""

import ast
from typing import NamedTuple

UPSTREAM = "openrlhf"
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef

# Names that every module may import to write its log.
LOGGING = ("init_logger",)


class Signature(NamedTuple):
    """The parameters of a function or of a constructor, without ``self``."""

    names: list[str]
    # None for a class whose constructor is not upstream's.
    function: ast.AST | None
    # Number of parameters that a call does not pass: 1 for a constructor.
    skip: int


def imported_names(nodes: list[ast.AST], upstream) -> dict[str, tuple[str, str]]:
    """Return local name -> (path of the module of upstream that defines it, its name there).

    ``nodes`` are all nodes of one of our modules.

    A name that is read from an imported module, as in ``from openrlhf.utils import utils; utils.f``, counts like an
    import of ``f``.
    """
    names, modules = {}, {}
    for node in nodes:
        if isinstance(node, ast.Import):
            modules |= {a.asname or a.name: a.name for a in node.names if is_upstream(a.name)}
        elif isinstance(node, ast.ImportFrom) and node.module and is_upstream(node.module):
            for alias in node.names:
                module = f"{node.module}.{alias.name}"
                if path_of(module) in upstream.paths():
                    modules[alias.asname or alias.name] = module
                else:
                    names[alias.asname or alias.name] = (defining(node.module, alias.name, upstream), alias.name)
    if not modules:
        return names
    for node in nodes:
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in modules:
            module = modules[ast.unparse(node.value)]
            names[ast.unparse(node)] = (defining(module, node.attr, upstream), node.attr)
    return names


def is_upstream(module: str) -> bool:
    """Return True for the name of a module of upstream."""
    return module == UPSTREAM or module.startswith(f"{UPSTREAM}.")


def path_of(module: str) -> str:
    """Return the path of a module inside of upstream: ``openrlhf.models.loss`` -> ``models/loss.py``."""
    return f"{module.removeprefix(f'{UPSTREAM}.').replace('.', '/')}.py"


def defining(module: str, name: str, upstream) -> str:
    """Return the path of the module that defines a name, through re-exports."""
    path = path_of(module)
    if path not in upstream.paths():
        path = f"{path.removesuffix('.py')}/__init__.py"
    for node in upstream.tree(path).body:
        if isinstance(node, ast.ImportFrom) and name in {alias.asname or alias.name for alias in node.names}:
            if node.level:
                package = path.removesuffix(".py").split("/")[: -node.level]
                return defining(".".join([UPSTREAM, *package, node.module]), name, upstream)
            return defining(node.module, name, upstream) if is_upstream(node.module) else path
    return path


def signature(upstream, path: str, name: str, node: ast.AST) -> Signature:
    """Return the parameters that a call of ``name`` may pass; a class has those of its constructor."""
    if isinstance(node, FUNCTIONS):
        return Signature(upstream.parameters(path, name), node, 0)
    constructor = methods_of(node).get("__init__")
    if constructor is None:
        return Signature([], None, 1)
    return Signature(upstream.parameters(path, f"{name}.__init__")[1:], constructor, 1)


def methods_of(node: ast.ClassDef) -> dict[str, ast.AST]:
    """Return the methods that a class defines itself, by name."""
    return {each.name: each for each in node.body if isinstance(each, FUNCTIONS)}


def is_open(function: ast.AST) -> bool:
    """Return True if a function takes any further arguments."""
    return function.args.kwarg is not None or function.args.vararg is not None


def bound(call: ast.Call, function: ast.AST, skip: int) -> tuple[set[str], str | None]:
    """Return (names of the parameters that a call passes, why it does not fit or None).

    Args:
        call: The call.
        function: The called function.
        skip: Number of first parameters that the call does not pass, 1 for a method.
    """
    arguments = function.args
    positional = [arg.arg for arg in (*arguments.posonlyargs, *arguments.args)][skip:]
    optional = positional[len(positional) - len(arguments.defaults) :] if arguments.defaults else []
    by_name = [*positional, *(arg.arg for arg in arguments.kwonlyargs)]
    unpacks_list = any(isinstance(arg, ast.Starred) for arg in call.args)
    unpacks_dict = any(keyword.arg is None for keyword in call.keywords)
    by_place = [arg for arg in call.args if not isinstance(arg, ast.Starred)]
    passed = positional[: len(by_place)] if not unpacks_list else []
    if len(by_place) > len(positional) and arguments.vararg is None:
        return set(passed), f"{len(by_place)} positional arguments"
    for keyword in call.keywords:
        if keyword.arg is None:
            continue
        if keyword.arg in passed:
            return set(passed), f"{keyword.arg} is passed twice"
        if keyword.arg not in by_name and arguments.kwarg is None:
            return set(passed), f"{keyword.arg} is no parameter"
        passed = [*passed, keyword.arg]
    missing = [name for name in positional if name not in (*passed, *optional)]
    if missing and not (unpacks_list or unpacks_dict):
        return set(passed), f"{missing[0]} is missing"
    return {name for name in passed if name in by_name}, None
