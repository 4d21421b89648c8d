"""Weights from the trainer to vLLM in buckets, over gloo, through vLLM's own weight-transfer interface.

Used with ``--vllm.sync_backend gloo`` (the default on CPU hosts). GPU hosts keep upstream's NCCL and CUDA-IPC paths.
One bucket is one call of the engine and one broadcast; vLLM reloads layer by layer, which repacks weights on CPU.

This is the side of the trainer; ``weight_receiver.py`` is that of the engines. They are two modules because what the
receiver imports of vLLM takes longer than torch, and every process of the trainer imports this one.
"""

from collections.abc import Iterable, Iterator

import ray
import torch
from torch import Tensor, nn
from vllm.distributed.utils import stateless_init_torch_distributed_process_group

from openrlhf_cov.trainer.ports import reserve_port
from openrlhf_cov.trainer.weights.lora_weights import (
    adapted_layers,
    adapter_parameters,
    gathered,
    merged_weight,
    plain_parameters,
)

BACKEND = "openrlhf_cov_gloo"
# The class that vLLM imports in every worker; importing its module registers the engine of ``BACKEND`` there.
WORKER_EXTENSION = "openrlhf_cov.trainer.weights.weight_receiver.GlooWorkerExtension"
BUCKET_BYTES = 256 * 2**20


class GlooWeightSender:
    """Sending side, on rank 0 of the trainer; the other ranks only take part in gathering ZeRO-3 shards.

    ``engines`` are Ray handles of ``CovRolloutActor``; each has ``tensor_parallel_size`` workers.
    """

    def __init__(self, engines: list, tensor_parallel_size: int) -> None:
        self.engines = engines
        self.world_size = 1 + len(engines) * tensor_parallel_size
        host = ray.util.get_node_ip_address().strip("[]")
        with reserve_port() as reserved:
            port = reserved.getsockname()[1]
            infos = [
                dict(host=host, port=port, rank_offset=1 + i * tensor_parallel_size, world_size=self.world_size)
                for i in range(len(engines))
            ]
            # The engines must already be asked to join when this process does: a group forms when all members call.
            joined = [engine.init_weight_transfer.remote(info) for engine, info in zip(engines, infos, strict=True)]
            self._group = join_group(host, port, 0, self.world_size)
        ray.get(joined)

    def start(self) -> None:
        """Open an update on every engine."""
        ray.get([engine.start_weight_update.remote() for engine in self.engines])

    def send(self, named: list[tuple[str, Tensor]]) -> None:
        """Send one bucket of (name, tensor) to every engine."""
        tensors = [tensor.detach().cpu() for _, tensor in named]
        info = dict(
            names=[name for name, _ in named],
            dtypes=[str(tensor.dtype).removeprefix("torch.") for tensor in tensors],
            shapes=[list(tensor.shape) for tensor in tensors],
        )
        # For the same reason the engines are asked before the broadcast, and waited for after it.
        received = [engine.update_weights.remote(info) for engine in self.engines]
        broadcast(self._group, pack(tensors))
        ray.get(received)

    def finish(self) -> None:
        """Close the update on every engine; they use the new weights from here on."""
        ray.get([engine.finish_weight_update.remote() for engine in self.engines])


def transfer_weights(model: nn.Module, sender: GlooWeightSender | None, zero_stage: int) -> None:
    """Send all weights of a model to vLLM; called on every rank.

    vLLM gets the weights of the plain model: LoRA adapters are merged into copies (``lora_weights.py``).

    Args:
        model: The model inside of the DeepSpeed engine.
        sender: The sender on rank 0; None on the other ranks, which only take part in gathering.
        zero_stage: ``--ds.zero_stage``. At stage 3 the ranks gather each weight from its shards.
    """
    layers = adapted_layers(model)
    if sender:
        sender.start()
    for bucket in buckets(plain_parameters(model), BUCKET_BYTES):
        # ZeRO-3 needs the adapters of a weight beside the weight itself
        needed = [param for name, param in bucket for param in (param, *adapter_parameters(layers.get(name)))]
        with gathered(needed, zero_stage):
            if sender:
                sender.send([(name, merged_weight(param, layers.get(name))) for name, param in bucket])
    if sender:
        sender.finish()


def buckets(named: Iterable[tuple[str, nn.Parameter]], max_bytes: int) -> Iterator[list[tuple[str, nn.Parameter]]]:
    """Split parameters, in order, into lists of limited size; a larger parameter gets a list of its own.

    Args:
        named: (name, parameter); a shard of ZeRO-3 counts with its full size.
        max_bytes: Largest size of a list.
    """
    bucket = []
    size = 0
    for name, param in named:
        count = getattr(param, "ds_numel", param.numel())  # the full size of a ZeRO-3 shard
        num_bytes = count * param.element_size()
        if bucket and size + num_bytes > max_bytes:
            yield bucket
            bucket = []
            size = 0
        bucket.append((name, param))
        size += num_bytes
    if bucket:
        yield bucket


def pack(tensors: list[Tensor]) -> Tensor:
    """Return the bytes of all tensors, one after another, as one tensor, uint8 (bytes,)."""
    return torch.cat([tensor.contiguous().flatten().view(torch.uint8) for tensor in tensors])


def unpack(buffer: Tensor, metas: list[Tensor]) -> list[Tensor]:
    """Return the tensors from which ``pack`` made a buffer.

    Args:
        buffer: The bytes, uint8 (bytes,).
        metas: One tensor for each result, whose shape and dtype it has; the tensors need no memory.
    """
    chunks = buffer.split([meta.nbytes for meta in metas])
    # clone: a view that starts off the dtype's alignment cannot be reinterpreted
    return [chunk.clone().view(meta.dtype).view(meta.shape) for chunk, meta in zip(chunks, metas, strict=True)]


def join_group(host: str, port: int, rank: int, world_size: int):
    """Return the gloo group of the trainer, which is rank 0, and the workers of all engines.

    The call returns when all members have joined.

    Args:
        host: Address of the host of the trainer.
        port: Port on that host.
        rank: Rank of this process in the group.
        world_size: Number of members.
    """
    return stateless_init_torch_distributed_process_group(host, port, rank, world_size, backend="gloo")


def broadcast(group, buffer: Tensor) -> None:
    """Send a buffer from rank 0 of a group to its other ranks; every rank calls this function.

    Args:
        group: The group of ``join_group``.
        buffer: The tensor, on the CPU, of equal size on all ranks. On ranks other than 0 it is overwritten.
    """
    options = torch.distributed.BroadcastOptions()
    options.rootRank = options.rootTensor = 0
    group.broadcast([buffer], options).wait()
