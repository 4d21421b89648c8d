"""The packages that training and generation need beyond those of every command."""

import logging
from collections.abc import Iterable
from importlib.util import find_spec

from openrlhf_cov.cluster.host.installed import DISTRIBUTIONS, pins, version_of
from openrlhf_cov.errors import UsageError

logger = logging.getLogger(__name__)

# The version whose classes we extend and whose main program we compile.
OPENRLHF = "0.11.2"

ALLOW_OPENRLHF = "--allow_openrlhf_version"

ENGINES = ("torch", "transformers", "ray", "vllm", "deepspeed", "openrlhf")
# Import names; their versions are in requirements.txt, and in requirements-cpu.txt for CPU hosts.
SERVICE = ("torch", "fastapi", "uvicorn")


# The requirement of the grader ``published``, as in requirements-tools.txt; other versions give other verdicts.
MATH_VERIFY = "math-verify==0.9.0"


def has_math_verify() -> bool:
    """Return True if the grader ``published`` can grade here."""
    return find_spec("math_verify") is not None


def require_grader(grader: str) -> None:
    """Check that the grader of ``--reward_grader`` can grade here.

    Raises:
        UsageError: The grader needs a package that is not installed.
    """
    if grader == "published" and not has_math_verify():
        raise UsageError(f"the grader published asks Math-Verify, which is not installed: pip install {MATH_VERIFY}")


def require(names: Iterable[str] = ENGINES) -> None:
    """Check that packages are installed.

    Raises:
        UsageError: Packages are missing; the message names them.
    """
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"not installed: {', '.join(missing)}; install what trains and generates, "
            "requirements.txt or, on a host without a GPU, requirements-cpu.txt (docs/install.md)"
        )


def check_versions(allow_other: bool) -> None:
    """Check by metadata that the openrlhf that we extend is installed.

    Other versions of what openrlhf pins exactly (vLLM, DeepSpeed, Ray, transformers) are a warning: some may work, and
    hosts have builds of their own. A package that is missing is not spoken of here.

    Raises:
        UsageError: Another openrlhf is installed. With ``allow_other`` that is a warning.
    """
    version = version_of("openrlhf")
    if version not in (None, OPENRLHF):
        if not allow_other:
            raise UsageError(
                f"openrlhf {version} is installed, and {OPENRLHF} is what this package extends; "
                f"pip install --no-deps openrlhf=={OPENRLHF}, or try it with {ALLOW_OPENRLHF}"
            )
        logger.warning(f"openrlhf {version} is installed, and {OPENRLHF} is what this package extends")
    pinned = pins("openrlhf")
    for module, names in DISTRIBUTIONS.items():
        wanted = pinned.get(names[0])
        found = version_of(module)
        if wanted and found and found.partition("+")[0] != wanted:
            logger.warning(f"{module} {found} is installed, openrlhf asks for {wanted}: nobody has tried that")
