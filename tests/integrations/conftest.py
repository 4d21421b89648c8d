import sys
from pathlib import Path

import pytest
import torch
from rank_group import RankGroup

from openrlhf_cov.cluster import cpu_host

cpu_host.install()  # the laboratory imports OpenRLHF, which loads on a CPU host only after that


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Small matrices gain nothing from two threads, and sums then run in one order."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def ranks(tmp_path_factory):
    """Two processes that train with TRL and import it once."""
    command = [sys.executable, str(Path(__file__).parents[1] / "helpers" / "trl_rank.py")]
    group = RankGroup(command, 2, tmp_path_factory.mktemp("ranks"))
    yield group
    group.end()


@pytest.fixture(autouse=True)
def no_ranks(monkeypatch):
    """Accelerate reads the variables of a rank, which tests of DeepSpeed and Ray in this process can leave behind."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
