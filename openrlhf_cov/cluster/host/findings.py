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
    """The result of a check: with ``warn`` a run may suffer, with ``fail`` it cannot work.

    Both have a command that fixes the fault in ``fix``; it is None with ``ok``.
    """

    status: Status
    found: str
    fix: str | None = None

    def __post_init__(self) -> None:
        if (self.status == "ok") != (self.fix is None):
            raise ValueError(f"a finding has a fix if and only if it is not ok: {self}")


# A check returns None if it was not requested, or if another line of the report says the same.
Check = Callable[[Facts], Finding | None]


def on_cpu(facts: Facts) -> bool:
    """Return True on a CPU host; without vLLM, which decides that, a host without GPUs is taken for one."""
    return facts.cpu_host or (not facts.packages["vllm"].present and not facts.gpus)
