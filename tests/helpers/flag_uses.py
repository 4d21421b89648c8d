"""Which flags a test uses: those in its source and in what its source names."""

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
# A flag on a command line, or its dotted name as tests with nested settings write it.
FLAG = re.compile(r"--[a-z_]+(?:\.[a-z0-9_]+)*|(?<![\w.])[a-z_]+(?:\.[a-z0-9_]+)+")

Definitions = dict[str, list[ast.AST]]


def flags_used_by(test: str) -> set[str]:
    """Return the flags, with ``--``, that the test ``path::name`` uses, directly or through helpers and fixtures.

    Names are followed within the file of the test and the conftest.py files above it.

    Raises:
        LookupError: No such test exists.
    """
    path, _, name = test.partition("::")
    file = TESTS.parent / path
    if not file.is_file() or not name.startswith("test_") or name not in _definitions(file):
        raise LookupError(f"{test}: no such test")
    folders = [folder for folder in file.parents if folder == TESTS or TESTS in folder.parents]
    sources = [
        _definitions(each) for each in (file, *(folder / "conftest.py" for folder in folders)) if each.is_file()
    ]
    found: set[str] = set()
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        for definition in next((source[current] for source in sources if current in source), []):
            for node in ast.walk(definition):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found |= {word if word.startswith("--") else f"--{word}" for word in FLAG.findall(node.value)}
                elif isinstance(node, ast.Name):
                    waiting.append(node.id)
                elif isinstance(node, ast.Attribute):
                    waiting.append(node.attr)
                elif isinstance(node, ast.arg):
                    waiting.append(node.arg)
    return found


@cache
def _definitions(file: Path) -> Definitions:
    """Return {name: what defines it} of a file's functions, classes, methods and constants."""
    found: Definitions = {}
    tree = ast.parse(file.read_text(encoding="utf-8"))
    nodes = [*tree.body, *(each for node in tree.body if isinstance(node, ast.ClassDef) for each in node.body)]
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, []).append(node.value)
    return found
