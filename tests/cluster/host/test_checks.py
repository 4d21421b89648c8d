from dataclasses import replace

import pytest

from openrlhf_cov.cluster.host.checks import CHECKS, Line, examine
from openrlhf_cov.cluster.host.facts import Hub
from openrlhf_cov.cluster.host.findings import Finding, on_cpu
from openrlhf_cov.cluster.host.installed import Package


@pytest.mark.parametrize("host", ["gpu_host", "cpu_host"])
def test_a_good_host_is_good_throughout(host, request):
    lines = examine(request.getfixturevalue(host))
    assert {line.status for line in lines} == {"ok"}
    assert [line.check for line in lines] == [name for name in CHECKS if name != "hub"]


@pytest.mark.parametrize("host", ["gpu_host", "cpu_host"])
def test_a_host_without_any_package_is_examined_to_the_end(host, request):
    facts = request.getfixturevalue(host)
    missing = dict.fromkeys(facts.packages, Package(None, False))
    lines = {line.check: line for line in examine(replace(facts, packages=missing, pins={}, cpu_host=False))}
    # The hub was not asked, and DeepSpeed and torch cannot say what they know.
    assert CHECKS.keys() - lines.keys() == {"hub", "nvcc" if host == "gpu_host" else "cpu"}
    failing = {"openrlhf", "torch", "vllm", "deepspeed", "ray", "transformers"}
    # with vLLM goes what tells a CPU host: there, no GPU is in sight either
    failing |= {"flash-attn", "nccl"} if host == "gpu_host" else set()
    assert {name for name, line in lines.items() if line.status == "fail"} == failing
    assert lines["openrlhf_cov"].status == "warn"


def test_a_line_is_what_a_check_says(gpu_host):
    (line,) = (each for each in examine(replace(gpu_host, cores=1)) if each.check == "cores")
    assert line == Line("cores", "warn", "1; Ray, vLLM and training take turns", "docker run --cpus 4 …")


def test_the_hub_has_a_line_only_if_it_was_asked(gpu_host):
    assert examine(replace(gpu_host, hub=Hub("https://hub", None)))[-1] == Line(
        "hub", "ok", "https://hub answers", None
    )


@pytest.mark.parametrize(("status", "fix"), [("ok", "rm x"), ("warn", None), ("fail", None)])
def test_a_finding_has_a_fix_if_and_only_if_it_is_not_ok(status, fix):
    with pytest.raises(ValueError, match="if and only if it is not ok"):
        Finding(status, "something", fix)


def test_without_vllm_gpus_tell_what_a_host_is(gpu_host, cpu_host, with_package):
    assert not on_cpu(gpu_host)
    assert on_cpu(cpu_host)
    assert not on_cpu(with_package(gpu_host, "vllm", present=False))
    assert on_cpu(replace(with_package(gpu_host, "vllm", present=False), gpus=()))
