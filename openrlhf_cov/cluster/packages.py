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
    """UsageError where ``--reward_grader`` names one that cannot grade here."""
    if grader == "published" and not has_math_verify():
        raise UsageError(f"the grader published asks Math-Verify, which is not installed: pip install {MATH_VERIFY}")


def require(names: Iterable[str] = ENGINES) -> None:
    """UsageError that names the packages that are not installed."""
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"not installed: {', '.join(missing)}; install what trains and generates, "
            "requirements.txt or, on a host without a GPU, requirements-cpu.txt (docs/install.md)"
        )


def check_versions(allow_other: bool) -> None:
    """UsageError for another openrlhf than the one that we extend, a warning with ``allow_other``; metadata only.

    Other versions of what openrlhf pins exactly (vLLM, DeepSpeed, Ray, transformers) are a warning: some may work, and
    hosts have builds of their own. A package that is missing is not spoken of here.
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
