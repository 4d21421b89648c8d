"""All checks. A new one is a function in ``software`` or ``machine`` and a line here (pure)."""

from dataclasses import dataclass
from functools import partial

from openrlhf_cov.cluster.host import machine, software
from openrlhf_cov.cluster.host.facts import Facts
from openrlhf_cov.cluster.host.findings import Check, Status


@dataclass(frozen=True)
class Line:
    """One line of the report; ``fix`` is None if the status is ok."""

    check: str
    status: Status
    found: str
    fix: str | None


# All checks, in the order of the report.
CHECKS: dict[str, Check] = {
    "python": software.check_python,
    "openrlhf_cov": software.check_own_package,
    "openrlhf": software.check_openrlhf,
    "torch": software.check_torch,
    "gpu": machine.check_gpus,
    "vllm": software.check_vllm,
    "deepspeed": partial(software.check_package, module="deepspeed"),
    "flash-attn": software.check_flash_attn,
    "ray": partial(software.check_package, module="ray"),
    "transformers": partial(software.check_package, module="transformers"),
    "g++": software.check_compiler,
    "ninja": software.check_ninja,
    "Python.h": software.check_headers,
    "nvcc": software.check_nvcc,
    "nccl": software.check_nccl,
    "network": machine.check_interfaces,
    "cpu": machine.check_cpu,
    "cores": machine.check_cores,
    "memory": machine.check_memory,
    "disk of models": partial(
        machine.check_disk, name="model_disk", gpu_gib=100, fix="export HF_HOME=/larger/disk/huggingface"
    ),
    "disk of Ray": machine.check_ray_disk,
    "disk here": partial(machine.check_disk, name="here_disk", gpu_gib=200, fix="cd /larger/disk"),
    "/dev/shm": machine.check_shared_memory,
    "port 6379": partial(machine.check_port, port=6379, flag="--port"),
    "port 8265": partial(machine.check_port, port=8265, flag="--dashboard-port"),
    "open files": partial(
        machine.check_limit, name="nofile", fix="ulimit -n 65536  # in Docker: docker run --ulimit nofile=65536 …"
    ),
    "processes": partial(
        machine.check_limit, name="nproc", fix="ulimit -u unlimited  # in Docker: docker run --ulimit nproc=-1 …"
    ),
    "locked memory": machine.check_locked_memory,
    "extensions": machine.check_extension_locks,
    "code sandbox": machine.check_sandbox,
    "hub": machine.check_hub,
}


def examine(facts: Facts) -> list[Line]:
    """Return the findings of all checks about a host."""
    findings = ((name, check(facts)) for name, check in CHECKS.items())
    return [Line(name, each.status, each.found, each.fix) for name, each in findings if each]
