from dataclasses import replace

import pytest
import torch

from openrlhf_cov.cluster import cpu_host

cpu_host.install()  # upstream's modules import on a CPU host only after that

from openrlhf_cov.experiments.lab.tasks import TASKS  # noqa: E402
from openrlhf_cov.experiments.tiny_task import commands  # noqa: E402
from openrlhf_cov.experiments.tiny_task.base_policy import BasePolicyConfig, build_model  # noqa: E402
from openrlhf_cov.experiments.tiny_task.tokenizer import build_tokenizer  # noqa: E402

SMALL = BasePolicyConfig(layers=1, heads=2, hidden_size=16, intermediate_size=32, max_length=16, tied=False)


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Small matrices gain nothing from two threads, and sums then run in one order."""
    torch.set_num_threads(1)


@pytest.fixture
def task():
    """``commands`` with a reward that an untrained policy earns now and then: what begins with a digit is right."""
    return replace(TASKS["commands"](), is_right=lambda response, label: response[:1].isdigit())


@pytest.fixture
def policy():
    """An untrained policy for ``commands`` and its tokenizer; the same weights every time."""
    tokenizer = build_tokenizer(SMALL.max_length, commands.CHARACTERS)
    torch.manual_seed(0)
    return build_model(SMALL, tokenizer), tokenizer
