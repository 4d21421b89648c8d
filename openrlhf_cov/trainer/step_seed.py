"""The random numbers of a rank are a function of run, global step and the samples that it holds."""

from typing import Any

import torch

from openrlhf_cov.utils.seeds import seed_of


def seed_step(strategy: Any, global_step: int) -> int:
    """Seed torch for one global step, so that a resumed run has the random numbers of an uninterrupted one.

    Args:
        strategy: The strategy of the rank, with the seed of the run.
        global_step: Number of the global step, from 0.

    Returns:
        The data-parallel rank. The ranks of one ring or one tensor-parallel group hold the same samples and have the
        same random numbers.
    """
    rank = strategy.ds_device_mesh["dp"].get_local_rank()
    torch.manual_seed(seed_of(strategy.seed, global_step, rank))
    return rank
