"""Upstream's models import on a CPU host only after the stand-ins are installed."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from openrlhf_cov.trainer import cpu_host

cpu_host.install()


@pytest.fixture(scope="session")
def published() -> ModuleType:
    """``published_losses.py`` beside this file; there are no test packages to import it from."""
    spec = importlib.util.spec_from_file_location("published_losses", Path(__file__).with_name("published_losses.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
