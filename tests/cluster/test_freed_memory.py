"""Freed memory stays with the process: making the same tensors again maps no pages."""

import json
import os
import subprocess
import sys

import pytest

# In forks of one process, each with the variables that it is given: eight tensors of 16 MiB, ten times.
# Prints the pages that the last five times took in each fork.
PROGRAM = """
import json, os, resource, sys, torch
from openrlhf_cov.cluster.freed_memory import keep_freed_memory

def pages(keeps, variables):
    os.environ.update(variables)
    if keeps:
        keep_freed_memory()
    for number in range(10):
        if number == 5:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        tensors = [torch.ones(2**22) for _ in range(8)]
        del tensors
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

found = []
for case in json.loads(sys.argv[1]):
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writes, str(pages(*case)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    found.append(int(os.read(reads, 100)))
print(json.dumps(found))
"""
# Without ``keep_freed_memory`` glibc then maps every tensor; otherwise it would depend on what lies beside them.
# One thread: a fork has none of the others.
MAPS_ALL = {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=131072", "OMP_NUM_THREADS": "1"}


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's")
def test_tensors_are_made_in_the_memory_of_earlier_ones_unless_the_user_says_otherwise():
    cases = [(False, {}), (True, {}), (True, {"MALLOC_TRIM_THRESHOLD_": "131072"})]
    command = [sys.executable, "-c", PROGRAM, json.dumps(cases)]
    done = subprocess.run(command, env=os.environ | MAPS_ALL, capture_output=True, text=True, check=True)
    mapped, kept, as_the_user_says = json.loads(done.stdout)
    assert kept < mapped / 10
    assert as_the_user_says > mapped / 10
