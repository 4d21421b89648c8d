"""One of several processes that select together; ``test_window_placement.py`` starts them."""

from datetime import timedelta

import torch
import torch.distributed as dist
from planned import select_step

from openrlhf_cov.trainer.ranks import ranks_of


def select(rank, world_size, folder):
    """Write ``<rank>.pt``, masks by config, from ``inputs.pt``: ((micro-batches, keys) by rank, configs, ppo_clip)."""
    parts, configs, ppo_clip = torch.load(folder / "inputs.pt", weights_only=False)
    store = f"file://{folder}/store"  # no port to find, none to lose
    dist.init_process_group("gloo", store, timedelta(seconds=60), rank=rank, world_size=world_size)
    try:
        ranks = ranks_of(dist.group.WORLD)
        torch.save([select_step(*parts[rank], config, ppo_clip, ranks) for config in configs], folder / f"{rank}.pt")
    finally:
        dist.destroy_process_group()
