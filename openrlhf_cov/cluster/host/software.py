"""Checks of Python, packages and compilers (pure)."""

import re
from collections.abc import Mapping
from dataclasses import replace

from openrlhf_cov.cluster.host.facts import Facts
from openrlhf_cov.cluster.host.findings import ON_CPUS, ON_GPUS, Finding, on_cpu
from openrlhf_cov.cluster.packages import OPENRLHF

# PyPI has no build of torch for CPUs alone.
TORCH_INDEX = "--extra-index-url https://download.pytorch.org/whl/cpu"
# Versions of Python that are supported: from the first up to, but not including, the second.
PYTHONS = ((3, 11), (3, 13))

# Version of Python for which the packages in requirements-cpu.txt are built.
CPU_PYTHON = (3, 11)
# The finding for what only GPU hosts need.
NOT_NEEDED = Finding("ok", "not needed on a CPU host")


def check_python(facts: Facts) -> Finding:
    """Check the version of Python."""
    version = ".".join(map(str, facts.python))
    fix = "python3.11 -m venv .venv && source .venv/bin/activate"
    if not PYTHONS[0] <= facts.python[:2] < PYTHONS[1]:
        return Finding("fail", f"{version}; it takes 3.{PYTHONS[0][1]} to 3.{PYTHONS[1][1] - 1}", fix)
    if on_cpu(facts) and facts.python[:2] != CPU_PYTHON:
        return Finding("warn", f"{version}; requirements-cpu.txt is for 3.{CPU_PYTHON[1]}", fix)
    return Finding("ok", f"{version}, {facts.packages['torch'].facts.get('os') or facts.system}")


def check_own_package(facts: Facts) -> Finding:
    """Check that this package is installed, not only found in its folder."""
    version = facts.packages["openrlhf_cov"].version
    if version is None:
        return Finding("warn", "not installed, used from its folder: other nodes have none", "pip install --no-deps .")
    return Finding("ok", version)


def check_openrlhf(facts: Facts) -> Finding:
    """Check that the one version of OpenRLHF which is extended here is installed."""
    package = facts.packages["openrlhf"]
    fix = f"pip install --no-deps openrlhf=={OPENRLHF}"
    if not package.present or package.version is None:
        return Finding("fail", "not installed", fix)
    if package.version != OPENRLHF:
        return Finding("fail", f"{package.version}; we extend {OPENRLHF} and no other", fix)
    return Finding("ok", package.version)


def check_package(facts: Facts, module: str) -> Finding:
    """Check a package that every host needs: that it is installed, imports, and has the version that openrlhf pins.

    Args:
        facts: Facts about the host.
        module: Name of the package with underscores, a key of ``facts.packages``.
    """
    package = facts.packages[module]
    name = module.replace("_", "-")
    fix = ON_CPUS if on_cpu(facts) else ON_GPUS
    if not package.present:
        metadata = f"metadata of {package.version}, but no module" if package.version else "not installed"
        return Finding("fail", metadata, fix)
    version = package.version or "unknown version"
    if package.fault:
        return Finding("fail", f"{version}, but the import fails: {package.fault[:200]}", f"{fix} --force-reinstall")
    pin = facts.pins.get(name)
    if pin and version.partition("+")[0] != pin:
        return Finding("warn", f"{version}; openrlhf asks for {pin}", fix)
    return Finding("ok", version)


def check_torch(facts: Facts) -> Finding:
    """Check torch, and on a GPU host that it is built for CUDA and finds the GPUs."""
    finding = check_package(facts, "torch")
    if on_cpu(facts):
        return replace(finding, fix=finding.fix and f"{finding.fix} {TORCH_INDEX}")
    if finding.status != "ok":
        return finding
    known = facts.packages["torch"].facts
    if not known.get("built_for"):
        return Finding("fail", f"{finding.found}, built without CUDA", f"{ON_GPUS} --force-reinstall")
    if facts.gpus and known.get("devices") == 0:
        # nvidia-smi shows GPUs that this variable hides from torch.
        visible = facts.environment.get("CUDA_VISIBLE_DEVICES")
        if visible is not None:
            why = f"CUDA_VISIBLE_DEVICES is {visible!r}"
            fix = "unset CUDA_VISIBLE_DEVICES"
        else:
            why = f"driver {facts.gpus[0].driver} may be too old"
            fix = "sudo apt install nvidia-open && sudo reboot"
        return Finding("fail", f"{finding.found} for CUDA {known['built_for']} sees no GPU: {why}", fix)
    return Finding("ok", f"{finding.found} for CUDA {known['built_for']}")


def check_vllm(facts: Facts) -> Finding:
    """Check vLLM."""
    finding = check_package(facts, "vllm")
    return Finding("ok", f"{finding.found}, for CPUs") if finding.status == "ok" and facts.cpu_host else finding


def check_flash_attn(facts: Facts) -> Finding:
    """Check flash-attn, which a CPU host does not need."""
    if on_cpu(facts) and not facts.packages["flash_attn"].present:
        return Finding("ok", "not installed; a CPU host does without")
    finding = check_package(facts, "flash_attn")
    if finding.status == "ok":
        return finding
    pin = f"=={facts.pins['flash-attn']}" if "flash-attn" in facts.pins else ""
    return Finding(finding.status, finding.found, f"pip install --no-build-isolation flash-attn{pin}")


def check_compiler(facts: Facts) -> Finding:
    """Check that g++ is installed, with which DeepSpeed compiles its optimizers on GPU hosts."""
    if on_cpu(facts):
        return NOT_NEEDED
    if facts.compiler:
        return Finding("ok", f"{facts.compiler} {facts.packages['torch'].facts.get('gcc') or ''}".rstrip())
    return Finding("fail", "none; DeepSpeed compiles its optimizers", "sudo apt install g++")


def check_ninja(facts: Facts) -> Finding:
    """Check that ninja is installed, with which PyTorch compiles DeepSpeed's optimizers on GPU hosts."""
    if on_cpu(facts):
        return NOT_NEEDED
    if facts.ninja:
        return Finding("ok", facts.ninja)
    return Finding("fail", "none; PyTorch compiles DeepSpeed's optimizers with it", "pip install ninja")


def check_headers(facts: Facts) -> Finding:
    """Check that the header files of Python are installed, which DeepSpeed compiles against on GPU hosts."""
    if on_cpu(facts):
        return NOT_NEEDED
    if facts.python_headers:
        return Finding("ok", "there")
    version = ".".join(map(str, facts.python[:2]))
    return Finding("fail", "missing; DeepSpeed compiles against it", f"sudo apt install python{version}-dev")


def check_nvcc(facts: Facts) -> Finding | None:
    """Check that DeepSpeed finds nvcc; None if DeepSpeed could not be imported."""
    if on_cpu(facts):
        return NOT_NEEDED
    known = facts.packages["deepspeed"].facts
    if "nvcc" not in known:  # the line of deepspeed says why
        return None
    if fault := architecture_fault(facts.environment):
        return Finding("fail", fault, "unset TORCH_CUDA_ARCH_LIST")
    if known["nvcc"]:
        return Finding("ok", known["nvcc"])
    fix = "export CUDA_HOME=/usr/local/cuda PATH=/usr/local/cuda/bin:$PATH"
    return Finding("warn", "none; DeepSpeed compiles its fused Adam with it", fix)


def architecture_fault(environment: Mapping[str, str]) -> str | None:
    """Return why DeepSpeed cannot compile for the architectures in TORCH_CUDA_ARCH_LIST; None if it can.

    DeepSpeed reads only numbers such as 9.0 or 9.0+PTX. PyTorch also accepts 9.0a and names such as Hopper, and images
    for one kind of GPU set them.
    """
    listed = environment.get("TORCH_CUDA_ARCH_LIST", "")
    unread = [each for each in listed.replace(";", " ").split() if not re.fullmatch(r"\d+\.\d+(\+PTX)?", each)]
    if not unread:
        return None
    return f"TORCH_CUDA_ARCH_LIST={listed}: DeepSpeed cannot read {', '.join(unread)}, only numbers such as 9.0"


def check_nccl(facts: Facts) -> Finding:
    """Check that torch has NCCL, and that no environment variable makes it slow."""
    if on_cpu(facts):
        return Finding("ok", "not needed; a CPU host uses gloo")
    version = facts.packages["torch"].facts.get("nccl")
    if not version:
        why = "torch has none" if facts.packages["torch"].facts else "unknown, as torch cannot be imported"
        return Finding("fail", why, f"{ON_GPUS} --force-reinstall")
    slow = [name for name, value in facts.environment.items() if name.endswith("_DISABLE") and value not in ("", "0")]
    if slow:
        return Finding("warn", f"{version}, but {' and '.join(slow)} makes it slow", f"unset {' '.join(slow)}")
    return Finding("ok", version)
