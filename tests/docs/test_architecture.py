"""docs/architecture.md names functions that exist."""

import importlib
import re
from functools import reduce

import pytest

from openrlhf_cov.trainer import cpu_host

cpu_host.install()
NAME = re.compile(r"`((?:cli|trainer|models|rewards|utils)\.[\w.]+)`")


def test_every_function_of_the_loop_exists(page):
    names = NAME.findall(page("docs/architecture.md").text)
    assert len(names) > 20
    for name in names:
        module, *rest = split(f"openrlhf_cov.{name}")
        assert reduce(getattr, rest, module) is not None, name


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
