"""Programs of ``benchmarks/`` as modules."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="session")
def load_benchmark() -> Callable[[str], ModuleType]:
    """Function (path below ``benchmarks`` without suffix) -> a new module, which dataclasses find by its name."""

    def load(name: str) -> ModuleType:
        path = FOLDER / f"{name}.py"
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, path.stem, module)
            spec.loader.exec_module(module)
        return module

    return load
