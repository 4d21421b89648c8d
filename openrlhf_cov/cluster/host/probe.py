"""Import packages one after the other, in a process: ``python -m openrlhf_cov.cluster.host.probe NAME ...``.

Prints one JSON object per package: ``name``, ``fault`` (None if the import went well) and ``facts``. An import may end
the process or never return; what was printed before stays true. Run by ``openrlhf-cov doctor``.
"""

import importlib
import json
import logging
import os
import re
import subprocess
import sys
from types import ModuleType
from typing import Any, TextIO


def main(names: list[str], output: TextIO) -> None:
    """Import packages one after another, and write a line of JSON about each.

    Args:
        names: Names of the modules.
        output: The stream that gets the lines; each line is flushed, because the next import may end the process.
    """
    for name in names:
        fault = None
        facts = {}
        try:
            facts = FACTS.get(name, lambda module: {})(importlib.import_module(name))
        except BaseException as error:  # anything, SystemExit included, may come out of a broken package
            fault = f"{type(error).__name__}: {' '.join(str(error).split())}"
        output.write(json.dumps({"name": name, "fault": fault, "facts": facts}) + "\n")
        output.flush()


def _torch_facts(torch: ModuleType) -> dict[str, Any]:
    """Return what torch and ``torch.utils.collect_env`` know about this host.

    ``built_for`` is a version of CUDA, ``nccl`` and ``gcc`` are versions, ``devices`` is a number of GPUs, ``cpu``
    names the instructions that torch's kernels use, such as ``AVX512``, ``os`` the operating system and ``processor``
    the CPU. All are None where they are not known.
    """
    built_for = vars(importlib.import_module("torch.version")).get("cuda")
    nccl = importlib.import_module("torch.cuda.nccl")
    version = nccl.version() if built_for else None
    # Single functions, because ``get_env_info`` also runs ``pip list``, which takes seconds and may not be installed.
    collect_env = importlib.import_module("torch.utils.collect_env")
    processor = re.search(r"^Model name:\s*(\S.*)$", collect_env.get_cpu_info(collect_env.run), re.MULTILINE)
    return {
        "built_for": built_for,
        "nccl": ".".join(map(str, version)) if isinstance(version, tuple) else version,
        "devices": torch.accelerator.device_count() if hasattr(torch, "accelerator") else None,
        "gcc": collect_env.get_gcc_version(collect_env.run),
        "cpu": importlib.import_module("torch.backends.cpu").get_cpu_capability(),
        "os": collect_env.get_os(collect_env.run),
        "processor": processor and processor[1],
    }


def _deepspeed_facts(deepspeed: ModuleType) -> dict[str, Any]:
    """Return the version of the ``nvcc`` that DeepSpeed would compile with, None if it finds none."""
    report = importlib.import_module("deepspeed.env_report")
    try:
        version = report.nvcc_version()
    except (OSError, ValueError, subprocess.CalledProcessError):  # an nvcc that cannot say its version
        version = ""
    return {"nvcc": version if version[:1].isdigit() else None}  # without nvcc DeepSpeed returns an error message


def _vllm_facts(vllm: ModuleType) -> dict[str, Any]:
    """Return the platform whose kernels load. Raise ImportError if they do not.

    Which library that is, of several on x86, the platform decides by the CPU. Its operators are what shows that it was
    loaded: vLLM drops the module itself, and only logs a fault. A second library would end the process.
    """
    platform = importlib.import_module("vllm.platforms").current_platform
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())
    logger = logging.getLogger("vllm")
    logger.setLevel(logging.WARNING)
    logger.addHandler(handler)
    platform.import_kernels()
    operators = importlib.import_module("torch")._C._dispatch_get_all_op_names()
    if not any(name.startswith("_C::") for name in operators):
        raise ImportError("; ".join(said) or "its kernels are not there")
    return {"platform": platform.device_type}


FACTS = {"torch": _torch_facts, "vllm": _vllm_facts, "deepspeed": _deepspeed_facts}

if __name__ == "__main__":
    stdout = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what packages print while they are imported
    main(sys.argv[1:], stdout)
