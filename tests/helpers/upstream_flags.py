"""What the installed OpenRLHF declares as flags and makes of them, for tests that compare ours with it."""

import argparse
import ast
from collections.abc import Sequence
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, SimpleNamespace


class Declared(Exception):
    """OpenRLHF has declared its flags and wants to parse them; carries the parser."""


class _Capturing(argparse.ArgumentParser):
    def parse_args(self, *args, **kwargs):
        raise Declared(self)


def main_block() -> CodeType:
    """Return the body of ``if __name__ == "__main__":`` in OpenRLHF's train_ppo_ray, compiled."""
    path = Path(find_spec("openrlhf.cli").origin).with_name("train_ppo_ray.py")
    module = ast.parse(path.read_text(encoding="utf-8"))
    (main,) = [node for node in module.body if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)]
    return compile(ast.Module(body=main.body, type_ignores=[]), str(path), "exec")


def declared_by_upstream() -> argparse.ArgumentParser:
    """Return the parser of OpenRLHF with all of its flags."""
    namespace = {
        "__name__": "__main__",
        "argparse": SimpleNamespace(ArgumentParser=_Capturing, Namespace=argparse.Namespace),
        "datetime": datetime,
    }
    try:
        exec(main_block(), namespace)
    except Declared as declared:
        return declared.args[0]
    raise AssertionError("OpenRLHF did not parse its flags")


def parsed_by_upstream(words: Sequence[str]) -> argparse.Namespace:
    """Return the flat namespace that OpenRLHF's parser makes of ``words``."""
    return argparse.ArgumentParser.parse_args(declared_by_upstream(), words)


def completed_by_upstream(parsed: argparse.Namespace) -> SimpleNamespace:
    """Return what OpenRLHF makes of parsed flags.

    Args:
        parsed: The flat namespace of the parser.

    Raises:
        AssertionError: OpenRLHF refuses the flags.
    """

    class Parser(argparse.ArgumentParser):
        def parse_args(self, *args, **kwargs):
            return parsed

    completed: list[SimpleNamespace] = []
    namespace = {
        "__name__": "__main__",
        "argparse": SimpleNamespace(ArgumentParser=Parser, Namespace=argparse.Namespace),
        "datetime": datetime,
        "train": completed.append,
    }
    exec(main_block(), namespace)
    return completed[0]
