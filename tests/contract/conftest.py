"""Source code as syntax trees; nothing of upstream is imported to read it."""

import ast
import warnings
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest


class Source:
    """The modules of one installed package, parsed on demand; paths are relative to the package."""

    def __init__(self, package: str) -> None:
        self.root = Path(find_spec(package).origin).parent

    @cache  # noqa: B019  one object per session
    def paths(self) -> list[str]:
        """All modules of the package."""
        return sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*.py"))

    @cache  # noqa: B019  one object per session
    def tree(self, path: str) -> ast.Module:
        """A module."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # escape sequences in upstream's regular expressions
            return ast.parse((self.root / path).read_text(encoding="utf-8"))

    @cache  # noqa: B019  one object per session
    def nodes(self, path: str) -> list[ast.AST]:
        """All nodes of a module."""
        return list(ast.walk(self.tree(path)))

    def find(self, path: str, qualname: str) -> ast.AST:
        """The class or function ``qualname`` of a module; fails if it is gone."""
        node: ast.AST = self.tree(path)
        for name in qualname.split("."):
            found = [child for child in node.body if getattr(child, "name", None) == name]
            assert len(found) == 1, f"{self.root.name}/{path} defines {qualname} {len(found)} times"
            node = found[0]
        return node

    def parameters(self, path: str, qualname: str) -> list[str]:
        """Parameter names of a function, in order, with their stars."""
        args = self.find(path, qualname).args
        names = [arg.arg for arg in (*args.posonlyargs, *args.args)]
        names += [f"*{args.vararg.arg}"] if args.vararg else []
        names += [arg.arg for arg in args.kwonlyargs]
        return names + ([f"**{args.kwarg.arg}"] if args.kwarg else [])

    def check(self, path: str, qualname: str, needed: str | None) -> None:
        """Fails if a class or function is gone, or no longer takes the parameters ``needed`` in this order."""
        found = self.find(path, qualname)
        if needed is not None:
            names = self.parameters(path, qualname)
            assert [name for name in names if name in needed.split()] == needed.split(), ast.unparse(found.args)

    def calls(self, path: str, qualname: str, callee: str) -> list[ast.Call]:
        """Calls of ``callee`` (as written, e.g. ``self.actor``) inside a class or function."""
        return [node for node in walk(self.find(path, qualname), ast.Call) if ast.unparse(node.func) == callee]


def walk(node: ast.AST, kind: type) -> Iterator:
    """Nodes of one kind below ``node``."""
    return (child for child in ast.walk(node) if isinstance(child, kind))


@pytest.fixture(scope="session")
def upstream() -> Source:
    return Source("openrlhf")


@pytest.fixture(scope="session")
def ours() -> Source:
    return Source("openrlhf_cov")


@pytest.fixture(scope="session")
def vllm() -> Source:
    return Source("vllm")
