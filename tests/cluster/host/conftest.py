from dataclasses import replace

import pytest

from openrlhf_cov.cluster.extension_locks import Locks
from openrlhf_cov.cluster.host.facts import Disk, Facts, Gpu, Limit
from openrlhf_cov.cluster.host.installed import Package

GIB = 2**30


def _package(version, **facts):
    return Package(version, True, None, facts)


@pytest.fixture
def gpu_host() -> Facts:
    """A host with two GPUs on which every check is ok."""
    return Facts(
        python=(3, 11, 7),
        system="Linux x86_64",
        cpu_host=False,
        packages={
            "openrlhf_cov": _package("0.1.0"),
            "openrlhf": _package("0.11.2"),
            "torch": _package("2.13.0+cu130", built_for="13.0", nccl="2.28.9", devices=2, gcc="12.2.0", cpu="AVX512"),
            "vllm": _package("0.29.0", platform="cuda"),
            "deepspeed": _package("0.19.6", nvcc="13.0"),
            "flash_attn": _package("2.8.3"),
            "ray": _package("2.55.0"),
            "transformers": _package("5.15.0"),
        },
        pins={
            "deepspeed": "0.19.6",
            "flash-attn": "2.8.3",
            "ray": "2.55.0",
            "transformers": "5.15.0",
            "vllm": "0.29.0",
        },
        gpus=(Gpu("NVIDIA H100", 81559, "580.95.05"),) * 2,
        compiler="/usr/bin/g++",
        ninja="/env/bin/ninja",
        python_headers=True,
        model_disk=Disk("/cache", 4000 * GIB, 2000 * GIB),
        ray_disk=Disk("/tmp", 4000 * GIB, 2000 * GIB),
        here_disk=Disk("/run", 4000 * GIB, 2000 * GIB),
        shared_memory=Disk("/dev/shm", 500 * GIB, 500 * GIB),
        ports={},
        limits={"nofile": Limit(1024, 1048576), "nproc": Limit(None, None), "memlock": Limit(None, None)},
        cores=64,
        memory=1000 * GIB,
        environment={},
        interfaces=("eth0", "ib0", "lo"),
        locks=Locks(),
        sandbox_fault=None,
    )


@pytest.fixture
def cpu_host(gpu_host) -> Facts:
    """A laptop on which every check is ok."""
    packages = gpu_host.packages | {
        "torch": _package("2.13.0+cpu", built_for=None, nccl=None, devices=0, gcc="12.2.0", cpu="AVX512"),
        "vllm": _package("0.29.0", platform="cpu"),
        "deepspeed": _package("0.19.6", nvcc=None),
        "flash_attn": Package(None, False),
    }
    small = {"cores": 4, "memory": 16 * GIB, "interfaces": ("eth0", "lo")}
    disks = {name: Disk("/", 200 * GIB, 50 * GIB) for name in ("model_disk", "ray_disk", "here_disk")}
    limits = gpu_host.limits | {"memlock": Limit(8 * 2**20, 8 * 2**20)}
    shared = Disk("/dev/shm", 8 * GIB, 8 * GIB)
    changes = {"cpu_host": True, "packages": packages, "gpus": None}
    return replace(gpu_host, **changes, **small, **disks, limits=limits, shared_memory=shared)


@pytest.fixture
def with_package():
    """Function (host, module, fields of the package) -> the same host with that package changed."""

    def change(host, module, **fields):
        return replace(host, packages=host.packages | {module: replace(host.packages[module], **fields)})

    return change
