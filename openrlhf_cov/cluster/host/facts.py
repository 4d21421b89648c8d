"""Gather the facts about this host that ``openrlhf-cov doctor`` judges. Nothing here judges them."""

import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import sysconfig
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from openrlhf_cov.cluster.cpu_host import is_cpu_host
from openrlhf_cov.cluster.extension_locks import Locks, extensions_folder, find_locks
from openrlhf_cov.cluster.host.installed import Package, find_packages, pins
from openrlhf_cov.rewards.code.sandbox import Limits, Sandbox, SandboxError
from openrlhf_cov.utils.cores import cores
from openrlhf_cov.utils.search_path import search_path

# Ports of a Ray head: those of its store and of its dashboard.
PORTS = (6379, 8265)

# Environment variables that the checks read.
VARIABLES = (
    *("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_DISABLE", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"),
    *("CUDA_VISIBLE_DEVICES", "HF_HUB_OFFLINE", "TORCH_CUDA_ARCH_LIST"),
)

COMMAND_TIMEOUT = 10.0
HUB_TIMEOUT = 5.0


@dataclass(frozen=True)
class Gpu:
    """One GPU."""

    name: str
    # MiB.
    memory: int
    driver: str


@dataclass(frozen=True)
class Disk:
    """The disk of a path, with its size in bytes."""

    path: str
    total: int
    # Bytes that this user may write.
    free: int


@dataclass(frozen=True)
class Process:
    """A process that listens on a port.

    ``command`` is empty for a process of another user. ``open_ray`` is True for the head of a Ray without a token.
    """

    pid: int | None
    command: str
    open_ray: bool = False


@dataclass(frozen=True)
class Limit:
    """A limit of the operating system; None means unlimited."""

    soft: int | None
    hard: int | None


@dataclass(frozen=True)
class Hub:
    """The address of the Hugging Face hub, and why it does not answer; ``fault`` is None if it does."""

    url: str
    fault: str | None


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The facts about one host on which the checks decide."""

    python: tuple[int, int, int]
    system: str
    cpu_host: bool
    packages: Mapping[str, Package]
    # Versions that openrlhf requires.
    pins: Mapping[str, str]
    # None: there is no nvidia-smi, or it fails.
    gpus: tuple[Gpu, ...] | None
    # Path of g++; None where it is not installed.
    compiler: str | None
    # Path of ninja; None where it is not installed.
    ninja: str | None
    python_headers: bool
    model_disk: Disk
    ray_disk: Disk
    here_disk: Disk
    shared_memory: Disk | None
    # Port -> process that listens on it, for those of ``PORTS`` that are taken.
    ports: Mapping[int, Process]
    limits: Mapping[str, Limit]
    cores: int
    # Bytes, those of the control group where it has fewer.
    memory: int
    environment: Mapping[str, str]
    # Names of network interfaces.
    interfaces: tuple[str, ...]
    # Locks on torch's compiled extensions that no process of this host holds.
    locks: Locks
    # Why no program that a model wrote can be run here; None if one can.
    sandbox_fault: str | None
    # None if the hub was not to be asked.
    hub: Hub | None = None


def gather(ask_hub: bool) -> Facts:
    """Return the facts about this host. The imports take some seconds.

    Args:
        ask_hub: True to find out whether the Hugging Face hub answers, which takes longer where the network is silent.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"  # as Hugging Face and torch find their folders
    return Facts(
        python=sys.version_info[:3],
        system=f"{platform.system()} {platform.machine()}",
        cpu_host=is_cpu_host(),
        packages=find_packages(),
        pins=pins("openrlhf"),
        gpus=find_gpus(),
        compiler=shutil.which("g++"),
        ninja=shutil.which("ninja", path=search_path()),
        python_headers=Path(sysconfig.get_path("include"), "Python.h").is_file(),
        model_disk=disk(Path(os.environ.get("HF_HOME") or Path(cache).expanduser() / "huggingface")),
        ray_disk=disk(Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp")),  # as Ray does
        here_disk=disk(Path.cwd()),
        shared_memory=disk(Path("/dev/shm")) if os.path.exists("/dev/shm") else None,
        ports=listeners(PORTS),
        limits={name: limit(getattr(resource, f"RLIMIT_{name.upper()}")) for name in ("nofile", "nproc", "memlock")},
        cores=cores(),
        memory=memory(),
        environment={name: os.environ[name] for name in VARIABLES if name in os.environ},
        interfaces=tuple(sorted(name for _, name in socket.if_nameindex())),
        locks=find_locks(extensions_folder()),
        sandbox_fault=sandbox_fault(),
        hub=find_hub(os.environ.get("HF_ENDPOINT") or "https://huggingface.co") if ask_hub else None,
    )


def find_gpus() -> tuple[Gpu, ...] | None:
    """Return the GPUs that nvidia-smi lists; None if there is no nvidia-smi or it fails.

    The functions of ``torch.utils.collect_env`` for this need torch, return no memory, and run nvidia-smi twice.
    """
    command = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits")
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_TIMEOUT,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_gpus(done.stdout) if done.returncode == 0 else None


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """Return the GPUs in the output of nvidia-smi, one line each: name, memory in MiB and driver.

    Memory in another form, such as ``[N/A]``, counts as 0.
    """
    rows = [[cell.strip() for cell in line.rsplit(",", 2)] for line in text.splitlines() if line.count(",") >= 2]
    return tuple(Gpu(name, int(memory) if memory.isdigit() else 0, driver) for name, memory, driver in rows)


def disk(path: Path) -> Disk:
    """Return the disk of a path that may not exist yet, or be hidden from this user."""
    existing = next(parent for parent in (path.absolute(), *path.absolute().parents) if os.path.exists(parent))
    usage = shutil.disk_usage(existing)
    return Disk(str(path), usage.total, usage.free)


def listeners(ports: tuple[int, ...]) -> dict[int, Process]:
    """Return port -> process for those of the ports on which a process listens; empty without psutil."""
    try:
        import psutil
    except ImportError:  # a host without packages
        return {}
    listening = (each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN)
    found = {each.laddr.port: each.pid for each in listening if each.laddr and each.laddr.port in ports}
    return {port: _process(pid) for port, pid in sorted(found.items())}


def limit(number: int) -> Limit:
    """Return a limit of this process."""
    return Limit(*(None if value == resource.RLIM_INFINITY else value for value in resource.getrlimit(number)))


def memory(group: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """Return the bytes of memory that this process may use."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(total, int(group.read_text()))
    except (OSError, ValueError):  # no control group, or "max"
        return total


def find_hub(url: str, timeout: float = HUB_TIMEOUT) -> Hub:
    """Ask the hub, and return its address and what went wrong, if anything.

    Args:
        url: Address of the hub.
        timeout: Seconds to wait for its answer.
    """
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=timeout):
            return Hub(url, None)
    except urllib.error.HTTPError as answer:
        answer.close()
        return Hub(url, None)
    except (OSError, ValueError) as error:
        return Hub(url, " ".join(str(error).split()) or type(error).__name__)


def sandbox_fault() -> str | None:
    """Return why there is no sandbox for programs on this machine; None where one was started and ran one."""
    try:
        with Sandbox() as sandbox:
            request = {"mode": "script", "source": "print(6 * 7)"}
            ending = sandbox.run(request, Limits(seconds=COMMAND_TIMEOUT), wall=COMMAND_TIMEOUT)
    except SandboxError as error:
        return str(error)
    return None if ending.stdout == b"42\n" else f"a program ended with {ending.stderr!r:.200}"


def _process(pid: int | None) -> Process:
    import psutil

    if pid is None:
        return Process(None, "")
    try:
        process = psutil.Process(pid)
        command = " ".join(process.cmdline())
        mode = process.environ().get("RAY_AUTH_MODE", "disabled")
    except psutil.Error:
        return Process(pid, "")
    return Process(pid, command, "gcs_server" in command and mode == "disabled")
