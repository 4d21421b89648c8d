"""The record of a check's finding, and what all checks share (pure)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from openrlhf_cov.cluster.host.facts import Facts

GIB = 2**30

ON_GPUS = "pip install -r requirements.txt"
ON_CPUS = "pip install --no-deps -r requirements-cpu.txt"

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """``warn``: a run may suffer; ``fail``: it cannot work. These have a command that ``fix``es it."""

    status: Status
    found: str
    fix: str | None = None

    def __post_init__(self) -> None:
        if (self.status == "ok") != (self.fix is None):
            raise ValueError(f"a finding has a fix if and only if it is not ok: {self}")


# None: there is nothing to say, because nobody asked or another line says it.
Check = Callable[[Facts], Finding | None]


def on_cpu(facts: Facts) -> bool:
    """Return True on a CPU host; without vLLM, which decides that, a host without GPUs is taken for one."""
    return facts.cpu_host or (not facts.packages["vllm"].present and not facts.gpus)
