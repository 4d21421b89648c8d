"""Return how many cores this process may use."""

import os
from pathlib import Path


def most_processes() -> int:
    """Return the model processes that a host without an accelerator is given: two a core, at least 8."""
    return max(8, 2 * cores())


def cores(group: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Return the cores that this process may use, a quota of its control group rounded up; at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = map(int, group.read_text().split())
    except (OSError, ValueError):  # no control group, or "max"
        return allowed
    return min(allowed, -(-quota // period))
