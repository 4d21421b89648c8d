"""``docs/seams.md`` lists what the code imports, overrides and assigns, no more and no less."""

import ast
import re
from pathlib import Path

import pytest
from upstream_uses import LOGGING, imported_names, methods_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "seams.md"


def section(title):
    """Return the rows of the table below a heading, as lists of cells."""
    (text,) = [part for part in PAGE.read_text(encoding="utf-8").split("\n## ") if part.startswith(f"{title}\n")]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def quoted(cell):
    """Return the words in backquotes."""
    return re.findall(r"`([^`]+)`", cell)


@pytest.fixture(scope="module")
def imports(upstream, ours):
    """Return {(module.name of upstream, our file)}."""
    return {
        (f"{module.removesuffix('.py').replace('/', '.')}.{name}", path)
        for path in ours.paths()
        for module, name in imported_names(ours.nodes(path), upstream).values()
        if name not in LOGGING
    }


def test_the_page_lists_every_import_and_no_other(imports):
    listed = {
        (name, path) for row in section("What is imported") for name in quoted(row[0]) for path in quoted(row[1])
    }
    assert listed == imports


def test_the_page_lists_every_method_that_is_overridden(upstream, ours):
    listed = {}
    for classes, methods, _ in section("What is overridden"):
        *names, path = quoted(classes)
        listed |= {(path, name): set(quoted(methods)) for name in names}
    found = {}
    for path in ours.paths():
        imported = imported_names(ours.nodes(path), upstream)
        for node in ours.tree(path).body:
            for base in getattr(node, "bases", ()):
                theirs = [imported[word] for word in re.findall(r"\w+", ast.unparse(base)) if word in imported]
                if theirs:
                    (place,) = theirs
                    inherited = constructors(upstream, *place) | methods_of(upstream.find(*place)).keys()
                    found[path, node.name] = methods_of(node).keys() & inherited
    # A constructor of an executor overrides none: upstream's base class of executors has no constructor.
    assert listed == found


def constructors(upstream, path, name):
    """Return {"__init__"} if a class of upstream, or its base class in the same module, has a constructor."""
    bases = [ast.unparse(base) for base in upstream.find(path, name).bases]
    defined = [node for node in upstream.tree(path).body if getattr(node, "name", None) in bases]
    return {"__init__"} if any("__init__" in methods_of(node) for node in defined) else set()
