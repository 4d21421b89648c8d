"""Each check of ``doctor``: changed facts of a good host, and the status and a part of the line that follow."""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from openrlhf_cov.cluster.extension_locks import Locks
from openrlhf_cov.cluster.host import software
from openrlhf_cov.cluster.host.checks import CHECKS
from openrlhf_cov.cluster.host.facts import Disk, Hub, Limit, Process

GIB = 2**30
ROOT = Path(__file__).parents[3]
GPU = "gpu_host"
CPU = "cpu_host"
GONE = {"version": None, "present": False}
LOCK = Path("/tmp/lock")


def changed(host, changes):
    """Return the host with other facts; ``packages.torch`` changes fields of a package, ``limits.nofile`` a limit."""
    for name, value in changes.items():
        table, _, key = name.partition(".")
        if table == "packages":
            value = host.packages | {key: replace(host.packages[key], **value)}
        elif key:
            value = getattr(host, table) | {key: value}
        host = replace(host, **{table: value})
    return host


def free(gib, total=300):
    return Disk("/d", total * GIB, int(gib * GIB))


def torch(**facts):
    return {"packages.torch": {"facts": {"built_for": "13.0", "nccl": "2.28.9", "devices": 2} | facts}}


SOFTWARE = [
    ("python", GPU, {"python": (3, 10, 9)}, "fail", ""),
    ("python", GPU, {"python": (3, 12, 1)}, "ok", ""),
    ("python", CPU, {"python": (3, 12, 1)}, "warn", ""),
    ("python", CPU, {"python": (3, 13, 0)}, "fail", ""),
    ("openrlhf_cov", GPU, {"packages.openrlhf_cov": {"version": None}}, "warn", "pip install --no-deps ."),
    ("openrlhf", GPU, {"packages.openrlhf": GONE}, "fail", "not installed"),
    # exactly one version
    ("openrlhf", GPU, {"packages.openrlhf": {"version": "0.11.2.post1"}}, "fail", "openrlhf==0.11.2"),
    *(
        row
        for name in ("deepspeed", "ray", "transformers", "vllm", "torch")
        for row in (
            (name, GPU, {f"packages.{name}": GONE}, "fail", "pip install -r requirements.txt"),
            (name, CPU, {f"packages.{name}": GONE}, "fail", "pip install --no-deps -r requirements-cpu.txt"),
            (name, GPU, {f"packages.{name}": {"version": "1.0", "present": False}}, "fail", "but no module"),
            (name, CPU, {f"packages.{name}": {"fault": "ImportError: " + "x" * 999}}, "fail", "--force-reinstall"),
        )
    ),
    ("ray", GPU, {"packages.ray": {"version": "1.0"}}, "warn", "1.0; openrlhf asks for 2.55.0"),
    ("ray", GPU, {"packages.ray": {"version": "1.0"}, "pins": {}}, "ok", "1.0"),
    ("ray", GPU, {"packages.ray": {"version": None}}, "warn", "unknown version"),
    ("vllm", GPU, {"packages.vllm": {"version": "0.29.0+cu130"}}, "ok", ""),
    ("vllm", CPU, {}, "ok", "0.29.0, for CPUs"),
    ("torch", GPU, {}, "ok", "2.13.0+cu130 for CUDA 13.0"),
    ("torch", GPU, torch(built_for=None, devices=0), "fail", "built without CUDA"),
    ("torch", GPU, torch(devices=0), "fail", "driver 580.95.05 may be too old"),
    ("torch", GPU, torch(devices=0) | {"environment.CUDA_VISIBLE_DEVICES": ""}, "fail", "unset CUDA_VISIBLE_DEVICES"),
    ("torch", GPU, torch(devices=0) | {"gpus": None}, "ok", ""),  # which the check of GPUs says
    ("torch", GPU, torch(devices=None), "ok", ""),
    ("flash-attn", CPU, {}, "ok", "a CPU host does without"),
    ("flash-attn", GPU, {"packages.flash_attn": GONE}, "fail", "--no-build-isolation flash-attn==2.8.3"),
    # where a broken one is there, upstream imports it, and our stand-in stays away
    ("flash-attn", CPU, {"packages.flash_attn": {"present": True, "fault": "ImportError: x"}}, "fail", "ImportError"),
    ("g++", CPU, {"compilers": {}}, "fail", ""),
    ("nvcc", GPU, {"compilers": {}}, "warn", ""),
    ("nvcc", CPU, {}, "ok", "a CPU host does without"),
    ("Python.h", GPU, {"python_headers": False}, "fail", "sudo apt install python3.11-dev"),
    ("nccl", CPU, {}, "ok", "gloo"),
    ("nccl", GPU, torch(nccl=None), "fail", "torch has none"),
    ("nccl", GPU, {"packages.torch": {"fault": "OSError: libcudart", "facts": {}}}, "fail", "cannot be imported"),
    ("nccl", GPU, {"environment.NCCL_IB_DISABLE": "1"}, "warn", "unset NCCL_IB_DISABLE"),
    ("nccl", GPU, {"environment.NCCL_IB_DISABLE": "0"}, "ok", "2.28.9"),
]
MACHINE = [
    ("gpu", GPU, {}, "ok", "2 x NVIDIA H100 (80 GiB), driver 580.95.05"),  # 81559 MiB are 79.6 GiB
    ("gpu", CPU, {}, "ok", "a CPU host"),
    ("gpu", GPU, {"gpus": None}, "fail", "no nvidia-smi"),
    ("gpu", GPU, {"gpus": ()}, "fail", "lists none"),
    *(("network", GPU, {"environment.GLOO_SOCKET_IFNAME": v}, "ok", "") for v in ("eth", "no,ib", "=ib0", "^lo", "")),
    *(("network", GPU, {"environment.NCCL_SOCKET_IFNAME": v}, "fail", f"={v} names none") for v in ("bond0", "=eth")),
    ("network", CPU, {"environment.NCCL_SOCKET_IFNAME": "^eth,lo"}, "fail", "unset NCCL_SOCKET_IFNAME"),
    ("cores", GPU, {"cores": 1}, "warn", ""),
    ("cores", GPU, {"cores": 2}, "ok", ""),
    ("cpu", CPU, {"instructions": frozenset({"sse4_2"})}, "fail", "AVX2"),
    ("cpu", GPU, {"instructions": frozenset({"sse4_2"})}, "ok", ""),
    ("cpu", CPU, {"instructions": frozenset({"avx2", "avx512f", "avx512_vnni"})}, "ok", "AVX2, AVX512"),
    ("cpu", CPU, {"instructions": None}, "warn", ""),
    # 64 GiB with GPUs, 8 without, a tenth less being what the system keeps
    ("memory", GPU, {"memory": 58 * GIB}, "ok", "58.0 GiB"),
    ("memory", GPU, {"memory": 57 * GIB}, "warn", "less than 64 GiB"),
    ("memory", CPU, {"memory": int(7.3 * GIB)}, "ok", ""),
    ("memory", CPU, {"memory": 7 * GIB}, "warn", ""),
    *(
        row
        for check, field, needed in (("disk of models", "model_disk", 100), ("disk here", "here_disk", 200))
        for row in (
            (check, GPU, {field: free(needed)}, "ok", f"{needed}.0 GiB free for /d"),
            (check, GPU, {field: free(needed - 1)}, "warn", "/larger/disk"),
            (check, GPU, {field: free(0.9)}, "fail", "0.9 GiB free"),
            (check, CPU, {field: free(16)}, "ok", ""),
            (check, CPU, {field: free(4.9)}, "warn", ""),
        )
    ),
    # Ray stores nothing on a disk with less than 5 % free
    ("disk of Ray", GPU, {"ray_disk": free(49, 1000)}, "warn", "more than 95 % full"),
    ("disk of Ray", GPU, {"ray_disk": free(50, 1000)}, "ok", ""),
    # Ray takes 30 % of the memory: of 1,000 GiB, and of 16 GiB, which are 4.8
    ("/dev/shm", GPU, {"shared_memory": free(300, 400)}, "ok", "300.0 of 400.0 GiB free"),
    ("/dev/shm", GPU, {"shared_memory": free(299)}, "warn", "remount,size=300g /dev/shm"),
    ("/dev/shm", CPU, {"shared_memory": Disk("/dev/shm", GIB // 16, GIB // 16)}, "fail", "size=5g"),
    ("/dev/shm", GPU, {"shared_memory": None}, "fail", "no /dev/shm"),
    ("port 6379", GPU, {"ports": {8265: Process(1, "redis")}}, "ok", "free"),
    ("port 6379", GPU, {"ports": {6379: Process(7, "/ray/gcs/gcs_server --log_dir=/tmp")}}, "ok", "a Ray head"),
    ("port 8265", GPU, {"ports": {8265: Process(7, "ray::DashboardHead")}}, "ok", "(pid 7)"),
    ("port 6379", GPU, {"ports": {6379: Process(7, "/x/gcs_server", open_ray=True)}}, "warn", "RAY_AUTH_MODE=token"),
    ("port 6379", GPU, {"ports": {6379: Process(7, "redis-server")}}, "warn", "ray start --head --port 6380"),
    ("port 8265", GPU, {"ports": {8265: Process(None, "")}}, "warn", "--dashboard-port 8266"),
    ("port 8265", GPU, {"ports": {8265: Process(7, "/home/ray/server.py")}}, "warn", ""),  # a folder called ray
    ("open files", GPU, {"limits.nofile": Limit(1024, 8192)}, "ok", "8,192"),  # Ray raises the soft limit
    ("open files", GPU, {"limits.nofile": Limit(1024, 8191)}, "warn", "ulimit -"),
    ("open files", GPU, {"limits.nofile": Limit(256, 1023)}, "fail", "ulimit -"),
    ("processes", GPU, {"limits.nproc": Limit(8191, None)}, "warn", "8,191"),
    ("processes", GPU, {"limits.nproc": Limit(1000, None)}, "fail", "1,000"),
    ("locked memory", GPU, {"limits.memlock": Limit(2**30, 2**30)}, "ok", "1,024 MiB"),
    ("locked memory", GPU, {"limits.memlock": Limit(0, 0)}, "warn", "0 MiB"),
    ("locked memory", CPU, {}, "ok", "a CPU host locks none"),
    ("extensions", GPU, {"locks": Locks(stale=(LOCK, Path("/c/b c/lock")))}, "warn", "rm /tmp/lock '/c/b c/lock'"),
    ("extensions", GPU, {"locks": Locks(young=(LOCK,))}, "warn", "rm /tmp/lock  # if nothing compiles"),
    ("extensions", GPU, {"locks": Locks(foreign=(LOCK,), stale=(Path("/c"),))}, "warn", "rm /c /tmp/lock  # if"),
    ("hub", CPU, {"hub": Hub("https://hub", None)}, "ok", "https://hub answers"),
    ("hub", CPU, {"hub": Hub("https://hub", "timed out")}, "warn", "export HF_HUB_OFFLINE=1"),
    ("hub", CPU, {"hub": Hub("https://hub", None), "environment.HF_HUB_OFFLINE": "1"}, "warn", ""),
    ("hub", CPU, {"hub": Hub("https://hub", None), "environment.HF_HUB_OFFLINE": "0"}, "ok", ""),
]


@pytest.mark.parametrize(("check", "host", "changes", "status", "part"), [*SOFTWARE, *MACHINE])
def test_a_check_says_what_it_found(request, check, host, changes, status, part):
    finding = CHECKS[check](changed(request.getfixturevalue(host), changes))
    line = f"{finding.found} -> {finding.fix}"
    assert (finding.status, part in line) == (status, True), line
    assert len(line) < 400


def test_versions_are_those_of_the_package():
    (low, high) = software.PYTHONS
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"] == f">={low[0]}.{low[1]},<{high[0]}.{high[1]}"
    assert f"openrlhf[vllm]=={software.OPENRLHF}\n" in (ROOT / "requirements.txt").read_text(encoding="utf-8")
