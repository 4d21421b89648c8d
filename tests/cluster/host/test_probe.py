"""vLLM's kernels on a CPU host: the one library that the platform loads for the CPU decides, and no other."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import vllm

from openrlhf_cov.cluster.cpu_host import is_cpu_host

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_cpu_host(), reason="the libraries are those of vLLM's build for CPUs"),
]

# Library -> whether the CPU has AVX512, and AVX512-BF16.
CPUS = {"_C_AVX2.abi3.so": (False, False), "_C_AVX512.abi3.so": (True, False), "_C.abi3.so": (True, True)}

PROBE = """
import json, os, sys
import torch, vllm, vllm.platforms
from openrlhf_cov.cluster.host import probe

for folder, avx512, bf16 in json.loads(sys.argv[1]):
    if not os.fork():
        vllm.__path__[:] = [folder]
        torch.cpu._is_avx512_supported = lambda: avx512
        torch.cpu._is_avx512_bf16_supported = lambda: bf16
        probe.main(["vllm"], sys.stdout)
        os._exit(0)
    if status := os.wait()[1]:
        print(json.dumps({"fault": f"status {status}"}), flush=True)
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """(library that the CPU needs, what is done to it) -> what the probe says; the other two are always broken.

    Every library is that for AVX2 under another name, so that all run on any CPU.
    """
    package = Path(vllm.__file__).parent
    cases = []
    for needed in CPUS:
        for fate in ("whole", "corrupt", "missing"):
            folder = tmp_path_factory.mktemp("vllm")
            for entry in package.iterdir():
                if entry.name not in CPUS:
                    (folder / entry.name).symlink_to(entry)
            for name in CPUS:
                (folder / name).write_bytes(b"no library")
            if fate != "corrupt":
                (folder / needed).unlink()
            if fate == "whole":
                (folder / needed).symlink_to(package / "_C_AVX2.abi3.so")
            cases.append((needed, fate, str(folder)))
    asked = json.dumps([(folder, *CPUS[needed]) for needed, _, folder in cases])
    done = subprocess.run([sys.executable, "-c", PROBE, asked], capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {case[:2]: line for case, line in zip(cases, lines, strict=True)}


@pytest.mark.parametrize("needed", CPUS)
def test_the_library_of_the_cpu_is_enough(outcomes, needed):
    assert outcomes[needed, "whole"] == {"name": "vllm", "fault": None, "facts": {"platform": "cpu"}}


@pytest.mark.parametrize("fate", ["corrupt", "missing"])
@pytest.mark.parametrize("needed", CPUS)
def test_a_broken_library_of_the_cpu_is_a_fault_that_names_it(outcomes, needed, fate):
    assert needed.partition(".")[0] in outcomes[needed, fate]["fault"]
