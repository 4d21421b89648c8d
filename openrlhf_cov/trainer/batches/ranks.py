"""The collectives that a window needs, over the data-parallel ranks of torch.distributed."""

import torch
import torch.distributed as dist
from torch import Tensor

from openrlhf_cov.models.window import Ranks


def ranks_of(group: dist.ProcessGroup) -> Ranks:
    """Return the collectives of a torch.distributed group."""

    def all_reduce_sum(tensor: Tensor) -> Tensor:
        dist.all_reduce(tensor, group=group)
        return tensor

    def all_gather(tensor: Tensor) -> Tensor:
        parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, tensor, group=group)
        return torch.cat(parts)

    return Ranks(all_reduce_sum, all_gather, dist.get_world_size(group))
