"""Runs the tests that ship inside the openrlhf wheel (top-level package ``tests``) with our host module installed."""

import sys
from importlib.metadata import distribution

import pytest

from openrlhf_cov.cluster import cpu_host

if __name__ == "__main__":
    cpu_host.install()
    folder = distribution("openrlhf").locate_file("tests")
    options = ["--rootdir", str(folder), "-c", "/dev/null", "-p", "no:cacheprovider", "-q", "--import-mode=importlib"]
    sys.exit(pytest.main([*options, str(folder)]))
