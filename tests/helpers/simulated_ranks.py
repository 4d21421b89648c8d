"""Data-parallel ranks that run in threads."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch

from openrlhf_cov.models.window import Ranks


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
