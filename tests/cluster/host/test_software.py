import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from openrlhf_cov.cluster.host import software
from openrlhf_cov.cluster.host.checks import CHECKS

ROOT = Path(__file__).parents[3]
PACKAGES = ("deepspeed", "ray", "transformers", "vllm", "torch")


def said(check, facts):
    finding = CHECKS[check](facts)
    return finding.status, finding.found, finding.fix


@pytest.mark.parametrize(
    ("version", "on_gpus", "on_cpus"),
    [
        ((3, 10, 9), "fail", "fail"),
        ((3, 11, 7), "ok", "ok"),
        ((3, 12, 1), "ok", "warn"),
        ((3, 13, 0), "fail", "fail"),
    ],
)
def test_python(gpu_host, cpu_host, version, on_gpus, on_cpus):
    assert said("python", replace(gpu_host, python=version))[0] == on_gpus
    assert said("python", replace(cpu_host, python=version))[0] == on_cpus


def test_pythons_are_those_of_the_package():
    low, high = software.PYTHONS
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"] == f">={low[0]}.{low[1]},<{high[0]}.{high[1]}"


def test_the_version_of_openrlhf_is_that_of_the_requirements():
    assert f"openrlhf[vllm]=={software.OPENRLHF}\n" in (ROOT / "requirements.txt").read_text()


def test_our_own_package(gpu_host, with_package):
    assert said("openrlhf_cov", gpu_host) == ("ok", "0.1.0", None)
    status, found, fix = said("openrlhf_cov", with_package(gpu_host, "openrlhf_cov", version=None))
    assert (status, fix) == ("warn", "pip install --no-deps .")
    assert "not installed" in found


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"version": None, "present": False}, "not installed"),
        ({"version": "0.11.3"}, "0.11.3; we extend 0.11.2 and no other"),
        ({"version": "0.11.2.post1"}, "0.11.2.post1; we extend 0.11.2 and no other"),
    ],
)
def test_openrlhf_is_one_version_exactly(gpu_host, with_package, changes, found):
    facts = with_package(gpu_host, "openrlhf", **changes)
    assert said("openrlhf", facts) == ("fail", found, "pip install --no-deps openrlhf==0.11.2")


def index_of(module):
    """PyPI has no torch for CPUs."""
    return " --extra-index-url https://download.pytorch.org/whl/cpu" if module == "torch" else ""


class TestPackages:
    @pytest.mark.parametrize("module", PACKAGES)
    def test_a_missing_one_fails(self, gpu_host, cpu_host, with_package, module):
        gone = {"version": None, "present": False}
        assert said(module, with_package(gpu_host, module, **gone))[:2] == ("fail", "not installed")
        assert said(module, with_package(gpu_host, module, **gone))[2] == "pip install -r requirements.txt"
        on_cpu = said(module, with_package(cpu_host, module, **gone))[2]
        assert on_cpu == "pip install --no-deps -r requirements-cpu.txt" + index_of(module)

    @pytest.mark.parametrize("module", PACKAGES)
    def test_one_whose_files_are_gone_fails(self, gpu_host, with_package, module):
        status, found, _ = said(module, with_package(gpu_host, module, version="1.0", present=False))
        assert (status, found) == ("fail", "metadata of 1.0, but no module")

    @pytest.mark.parametrize("module", PACKAGES)
    def test_one_that_cannot_be_imported_fails_and_says_why_in_short(self, cpu_host, with_package, module):
        status, found, fix = said(module, with_package(cpu_host, module, fault="ImportError: " + "x" * 999))
        assert status == "fail"
        assert re.fullmatch(r"\S+, but the import fails: ImportError: x{187}", found)  # 200 characters
        assert fix == "pip install --no-deps -r requirements-cpu.txt --force-reinstall" + index_of(module)

    @pytest.mark.parametrize("module", ["deepspeed", "ray", "transformers", "vllm"])
    def test_another_version_than_upstream_asks_for_is_a_warning(self, gpu_host, with_package, module):
        status, found, _ = said(module, with_package(gpu_host, module, version="1.0"))
        assert (status, found) == ("warn", f"1.0; openrlhf asks for {gpu_host.pins[module]}")

    def test_a_local_version_is_the_version(self, gpu_host, with_package):
        assert said("vllm", with_package(gpu_host, "vllm", version="0.29.0+cu130"))[0] == "ok"

    def test_without_upstream_no_version_is_wrong(self, gpu_host, with_package):
        assert said("ray", with_package(replace(gpu_host, pins={}), "ray", version="1.0")) == ("ok", "1.0", None)

    def test_one_without_metadata_is_of_unknown_version(self, gpu_host, with_package):
        assert (
            said("ray", with_package(gpu_host, "ray", version=None))[1] == "unknown version; openrlhf asks for 2.55.0"
        )

    def test_the_build_of_vllm_is_named_on_a_cpu_host(self, gpu_host, cpu_host):
        assert said("vllm", gpu_host) == ("ok", "0.29.0", None)
        assert said("vllm", cpu_host) == ("ok", "0.29.0, for CPUs", None)


class TestTorch:
    def test_good(self, gpu_host, cpu_host):
        assert said("torch", gpu_host) == ("ok", "2.13.0+cu130 for CUDA 13.0", None)
        assert said("torch", cpu_host) == ("ok", "2.13.0+cpu", None)

    def test_a_build_without_gpus_fails_where_they_are_needed(self, gpu_host, with_package):
        facts = with_package(gpu_host, "torch", version="2.13.0+cpu", facts={"built_for": None, "devices": 0})
        assert said("torch", facts)[:2] == ("fail", "2.13.0+cpu, built without CUDA")

    @pytest.mark.parametrize(
        ("environment", "why", "fix"),
        [
            ({}, "driver 580.95.05 may be too old", "sudo apt install nvidia-open && sudo reboot"),
            ({"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES is ''", "unset CUDA_VISIBLE_DEVICES"),
        ],
    )
    def test_one_that_sees_no_gpu_fails(self, gpu_host, with_package, environment, why, fix):
        facts = with_package(gpu_host, "torch", facts={"built_for": "13.0", "devices": 0})
        found = f"2.13.0+cu130 for CUDA 13.0 sees no GPU: {why}"
        assert said("torch", replace(facts, environment=environment)) == ("fail", found, fix)

    def test_where_the_driver_is_missing_that_is_said_by_the_check_of_gpus(self, gpu_host, with_package):
        facts = replace(with_package(gpu_host, "torch", facts={"built_for": "13.0", "devices": 0}), gpus=None)
        assert said("torch", facts)[0] == "ok"
        assert said("gpu", facts)[0] == "fail"

    def test_one_that_does_not_count_devices_is_believed(self, gpu_host, with_package):
        facts = with_package(gpu_host, "torch", facts={"built_for": "13.0", "devices": None})
        assert said("torch", facts)[0] == "ok"


class TestFlashAttention:
    GONE = {"version": None, "present": False}  # noqa: RUF012

    def test_a_cpu_host_needs_none(self, cpu_host):
        assert said("flash-attn", cpu_host) == ("ok", "not installed; a CPU host does without", None)

    def test_a_gpu_host_does(self, gpu_host, with_package):
        assert said("flash-attn", gpu_host) == ("ok", "2.8.3", None)
        facts = with_package(gpu_host, "flash_attn", **self.GONE)
        fix = "pip install --no-build-isolation flash-attn==2.8.3"
        assert said("flash-attn", facts) == ("fail", "not installed", fix)
        assert said("flash-attn", replace(facts, pins={}))[2] == "pip install --no-build-isolation flash-attn"

    def test_a_broken_one_fails_everywhere(self, cpu_host, with_package):
        # where it is there, upstream imports it, and our stand-in stays away
        facts = with_package(
            cpu_host, "flash_attn", version="2.8.3", present=True, fault="ImportError: undefined symbol"
        )
        assert said("flash-attn", facts)[:2] == ("fail", "2.8.3, but the import fails: ImportError: undefined symbol")


def test_compilers(gpu_host, cpu_host, with_package):
    assert said("g++", gpu_host) == ("ok", "/usr/bin/g++ 12.2.0", None)
    assert said("g++", with_package(gpu_host, "torch", facts={})) == ("ok", "/usr/bin/g++", None)
    for host in (gpu_host, cpu_host):
        assert said("g++", replace(host, compiler=None))[::2] == ("fail", "sudo apt install g++")
    assert said("nvcc", gpu_host) == ("ok", "13.0", None)
    assert said("nvcc", with_package(gpu_host, "deepspeed", facts={"nvcc": None}))[0] == "warn"
    assert said("nvcc", cpu_host) == ("ok", "not needed on a CPU host", None)
    # without DeepSpeed nobody can say what it would compile with
    assert CHECKS["nvcc"](with_package(gpu_host, "deepspeed", facts={})) is None


def test_headers(gpu_host):
    assert said("Python.h", gpu_host)[0] == "ok"
    status, _, fix = said("Python.h", replace(gpu_host, python_headers=False))
    assert (status, fix) == ("fail", "sudo apt install python3.11-dev")


class TestNccl:
    def test_a_cpu_host_needs_none(self, cpu_host):
        assert said("nccl", cpu_host) == ("ok", "not needed; a CPU host uses gloo", None)

    def test_a_gpu_host_does(self, gpu_host, with_package):
        assert said("nccl", gpu_host) == ("ok", "2.28.9", None)
        facts = with_package(gpu_host, "torch", facts={"built_for": "13.0", "nccl": None})
        assert said("nccl", facts)[:2] == ("fail", "torch has none")
        broken = with_package(gpu_host, "torch", fault="OSError: libcudart", facts={})
        assert said("nccl", broken)[:2] == ("fail", "unknown, as torch cannot be imported")

    def test_variables_that_switch_its_fast_paths_off_are_a_warning(self, gpu_host):
        environment = {"NCCL_IB_DISABLE": "1", "NCCL_P2P_DISABLE": "0", "NCCL_SHM_DISABLE": "1"}
        assert said("nccl", replace(gpu_host, environment=environment)) == (
            "warn",
            "2.28.9, but NCCL_IB_DISABLE and NCCL_SHM_DISABLE makes it slow",
            "unset NCCL_IB_DISABLE NCCL_SHM_DISABLE",
        )
