import pytest
import torch

from openrlhf_cov.cluster import cpu_host

cpu_host.install()  # the laboratory imports OpenRLHF, which loads on a CPU host only after that


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Small matrices gain nothing from two threads, and sums then run in one order."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def no_ranks(monkeypatch):
    """Accelerate reads the variables of a rank, which tests of DeepSpeed and Ray in this process can leave behind."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
