"""docs/architecture.md and docs/lab.md name functions that exist."""

import importlib
import re
from functools import reduce

import pytest

from openrlhf_cov.cluster import cpu_host

cpu_host.install()
NAME = re.compile(r"`((?:cli|cluster|data|evaluation|experiments|trainer|models|rewards|utils)\.(?!json`)[\w.]+)`")


@pytest.mark.parametrize("name_of_page", ["docs/architecture.md", "docs/lab.md"])
def test_every_function_of_the_loop_exists(page, name_of_page):
    names = NAME.findall(page(name_of_page).text)
    assert len(names) > 15
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
