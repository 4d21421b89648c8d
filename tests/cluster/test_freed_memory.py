"""Freed memory stays with the process: making the same tensors again maps no pages."""

import os
import subprocess
import sys

import pytest

# Eight tensors of 16 MiB, twenty times; prints the pages that the last ten times took.
PROGRAM = """
import resource, sys, torch
from openrlhf_cov.cluster.freed_memory import keep_freed_memory
if "keep" in sys.argv:
    keep_freed_memory()
for number in range(20):
    if number == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    tensors = [torch.ones(2**22) for _ in range(8)]
    del tensors
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


# Without ``keep_freed_memory`` glibc then maps every tensor; otherwise it would depend on what lies beside them.
MAPS_ALL = {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=131072"}


def pages(*words, **variables):
    environment = os.environ | MAPS_ALL | variables
    command = [sys.executable, "-c", PROGRAM, *words]
    return int(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's")
def test_tensors_are_made_in_the_memory_of_earlier_ones_unless_the_user_says_otherwise():
    mapped = pages()
    assert pages("keep") < mapped / 10
    assert pages("keep", MALLOC_TRIM_THRESHOLD_="131072") > mapped / 10
