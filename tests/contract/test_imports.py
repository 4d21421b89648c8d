"""Only the modules that may know about upstream, devices and the console do; layers stand in pyproject.toml."""

import ast
import re
import sys
from pathlib import Path

import pytest
from upstream_uses import is_upstream

PURE = ("settings", "config", "errors", "utils", "models")
PURE_IMPORTS = {"torch", "numpy", "psutil"} | sys.stdlib_module_names
# Adapters import the package of their tracker when a run chooses it; records are checked by pydantic.
OTHER_IMPORTS = ("utils/trackers.py", "utils/record_checks.py")
HEAVY = {"openrlhf", "ray", "vllm", "deepspeed"}


def part(path):
    """Top-level part of the package: ``models/loss.py`` -> models, ``config.py`` -> config."""
    return path.split("/")[0].removesuffix(".py")


def imports(nodes):
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "absolute imports only"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def foreign_imports(nodes):
    return {name.split(".")[0] for name in imports(nodes)} - {"openrlhf_cov"}


def modules(ours):
    return [path for path in ours.paths() if path != "__init__.py"]


def test_pure_modules_import_torch_numpy_and_the_standard_library_only(ours):
    for path in modules(ours):
        if part(path) in PURE and path not in OTHER_IMPORTS:
            assert foreign_imports(ours.nodes(path)) <= PURE_IMPORTS, path


@pytest.mark.parametrize("path", ["config.py", "errors.py"])
def test_settings_and_errors_need_no_torch(ours, path):
    assert foreign_imports(ours.nodes(path)) <= set(sys.stdlib_module_names)


def test_only_training_and_the_packages_above_it_import_upstream_and_its_engines(ours):
    for path in modules(ours):
        if part(path) not in ("trainer", "cluster", "experiments", "cli"):
            assert not foreign_imports(ours.nodes(path)) & HEAVY, path


def test_modules_of_upstream_are_imported_by_statements_only(ours):
    # A module that is looked up by a string would not be seen by the tests that read imports.
    for path in modules(ours):
        for node in ours.nodes(path):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not re.fullmatch(r"openrlhf(\.\w+)+", node.value), (path, node.value)
            if isinstance(node, ast.ImportFrom) and is_upstream(node.module or ""):
                assert "*" not in {alias.name for alias in node.names}, path


def test_no_two_files_have_one_name(ours):
    # a traceback or an open tab then names one file
    names = [Path(path).name for path in modules(ours)]
    assert {name for name in names if names.count(name) > 1} <= {"__init__.py"}


# The whole algorithm of a training.
ALGORITHM = ("trainer/loop.py", "trainer/update.py", "trainer/advantages.py")
MOST_LINES = 600


def test_the_algorithm_can_be_read_in_ten_minutes(ours):
    lines = {path: len((ours.root / path).read_text(encoding="utf-8").splitlines()) for path in ALGORITHM}
    assert sum(lines.values()) <= MOST_LINES, lines


def test_arguments_are_parsed_without_a_heavy_import(ours):
    # ``--help`` and a wrong flag answer at once: what these modules import at their top is light
    for path in ("trainer/flags/parser.py", "cli/train_ppo_ray.py", "cluster/cpu_host.py"):
        assert not foreign_imports(ours.tree(path).body) & (HEAVY | {"torch", "transformers"}), path


def test_only_the_host_module_asks_about_devices(ours):
    for path in modules(ours):
        if path != "cluster/cpu_host.py":
            words = {node.attr for node in ours.nodes(path) if isinstance(node, ast.Attribute)}
            words |= {node.id for node in ours.nodes(path) if isinstance(node, ast.Name)}
            assert not words & {"is_available", "cuda"}, path
