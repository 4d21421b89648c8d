"""Upstream's modules import on a CPU host only with the stand-ins installed; ranks and actors without processes."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from openrlhf_cov.config import CovConfig
from openrlhf_cov.trainer import cpu_host
from openrlhf_cov.trainer.selection import Ranks

cpu_host.install()


class Simulated:
    """Ranks that run in threads; ``moved`` counts the bytes that each of them contributes."""

    def __init__(self, world_size):
        self.barrier = threading.Barrier(world_size, timeout=20)
        self.slots, self.moved = [None] * world_size, [0] * world_size

    def exchange(self, rank, tensor):
        """What all ranks contribute."""
        self.moved[rank] += tensor.numel() * tensor.element_size()
        self.slots[rank] = tensor
        self.barrier.wait()
        parts = [part.clone() for part in self.slots]
        self.barrier.wait()
        return parts

    def rank(self, rank):
        return Ranks(
            all_reduce_sum=lambda tensor: sum(self.exchange(rank, tensor)),
            all_gather=lambda tensor: torch.cat(self.exchange(rank, tensor)),
        )

    def run(self, function, *arguments):
        """``function(arguments of the rank..., Ranks)`` on every rank; results by rank."""
        with ThreadPoolExecutor(len(self.slots)) as pool:
            ranks = map(self.rank, range(len(self.slots)))
            return list(pool.map(lambda args: self._guarded(function, args), zip(*arguments, ranks, strict=True)))

    def _guarded(self, function, arguments):
        try:
            return function(*arguments)
        except BaseException:
            self.barrier.abort()
            raise


@pytest.fixture(scope="session")
def simulated() -> type[Simulated]:
    return Simulated


class StubActor(nn.Module):
    """The forward contract of upstream's ``Actor``: log-probs (B, A), with ``return_output`` also the model's output,
    which carries ``entropy`` (B, T - 1) when ``return_entropy`` asks for it. Token v has log-prob -v, entropy 10 v."""

    def forward(
        self, sequences, action_mask=None, attention_mask=None, return_output=False, ring_attn_group=None,
        return_entropy=False, **kwargs,
    ):  # fmt: skip
        output = SimpleNamespace()
        if return_entropy:
            assert return_output
            output.entropy = (sequences * 10.0)[:, :-1]
        action_log_probs = -sequences[:, -action_mask.shape[1] :].float() * action_mask
        return (action_log_probs, output) if return_output else action_log_probs


@pytest.fixture(scope="session")
def stub_actor() -> type[StubActor]:
    return StubActor


@pytest.fixture(scope="session")
def cov_config():
    """Function (cov_type, ratio, band of Clip-Cov, ...) -> CovConfig; ratios may be as large as 1."""

    def make(cov_type, ratio, lower=-9.0, upper=9.0, **others):
        band = {"clip_cov_lb": lower, "clip_cov_ub": upper} if cov_type == "clip_cov" else {}
        settings = {f"{cov_type}_ratio": ratio} | band | others
        return CovConfig(cov_type=cov_type, allow_large_cov_ratio=True, **settings)

    return make


@pytest.fixture
def one_process(tmp_path):
    """A process group of one; upstream's trainer asks for the rank and waits at barriers."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()
