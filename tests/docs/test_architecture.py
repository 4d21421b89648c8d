"""docs/architecture.md names functions that exist, and docs/methods/cispo.md counts lines correctly."""

import importlib
import re
from functools import reduce
from pathlib import Path

import pytest

import openrlhf_cov
from openrlhf_cov.cluster import cpu_host

cpu_host.install()
PACKAGE = Path(openrlhf_cov.__file__).parent
NAME = re.compile(r"`((?:cli|cluster|data|evaluation|experiments|trainer|models|rewards|utils)\.[\w.]+)`")


def test_every_function_of_the_loop_exists(page):
    names = NAME.findall(page("docs/architecture.md").text)
    assert len(names) > 20
    for name in names:
        module, *rest = split(f"openrlhf_cov.{name}")
        assert reduce(getattr, rest, module) is not None, name


def test_a_method_has_as_many_lines_as_the_page_says(page):
    ((path, said),) = re.findall(
        r"`(models/methods/\w+\.py)` \(new\).*?\| (\d+) \+ 1 \|", page("docs/methods/cispo.md").text
    )
    assert len(PACKAGE.joinpath(path).read_text(encoding="utf-8").splitlines()) == int(said)


def split(name):
    """The module, and the names within it."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            return importlib.import_module(".".join(parts[:end])), *parts[end:]
        except ModuleNotFoundError as error:
            if not name.startswith(error.name or "?"):
                raise
    pytest.fail(name)
