import pytest
import torch

from openrlhf_cov.cluster import cpu_host

cpu_host.install()  # the laboratory imports OpenRLHF, which loads on a CPU host only after that


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Small matrices gain nothing from two threads, and sums then run in one order."""
    torch.set_num_threads(1)
