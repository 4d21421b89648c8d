"""The packages that training and generation need beyond those of every command."""

from collections.abc import Iterable
from importlib.util import find_spec

from openrlhf_cov.errors import UsageError

ENGINES = ("torch", "transformers", "ray", "vllm", "deepspeed", "openrlhf")
SERVICE = ("torch", "fastapi", "uvicorn")
"""Import names; their versions are in requirements.txt, and in requirements-cpu.txt for CPU hosts."""


def require(names: Iterable[str] = ENGINES) -> None:
    """UsageError that names the packages that are not installed."""
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"not installed: {', '.join(missing)}; install what trains and generates, "
            "requirements.txt or, on a host without a GPU, requirements-cpu.txt (docs/install.md)"
        )
