"""Weights from the trainer to vLLM in buckets, over gloo, through vLLM's own weight-transfer interface.

Used with ``--vllm.sync_backend gloo`` (the default on CPU hosts). GPU hosts keep upstream's NCCL and CUDA-IPC paths.
One bucket is one call of the engine and one broadcast; vLLM reloads layer by layer, which repacks weights on CPU.
"""

import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import ray
import torch
from torch import Tensor, nn
from vllm.distributed.utils import stateless_init_torch_distributed_process_group
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from openrlhf_cov.trainer.weights.lora_weights import (
    adapted_layers,
    adapter_parameters,
    gathered,
    merged_weight,
    plain_parameters,
)

BACKEND = "openrlhf_cov_gloo"
BUCKET_BYTES = 256 * 2**20


@dataclass
class GlooInitInfo(WeightTransferInitInfo):
    """The place of a vLLM worker in the group: the trainer is rank 0, this engine's workers follow ``rank_offset``."""

    host: str
    port: int
    rank_offset: int
    world_size: int


@dataclass
class Bucket(WeightTransferUpdateInfo):
    """The contents of one broadcast in order: parameter names, torch dtype names, shapes."""

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]


class GlooWeightTransferEngine(WeightTransferEngine[GlooInitInfo, Bucket]):
    """Receiving side, inside a vLLM worker."""

    init_info_cls = GlooInitInfo
    update_info_cls = Bucket

    def init_transfer_engine(self, init_info: GlooInitInfo) -> None:
        """Join the trainer's group."""
        rank = init_info.rank_offset + self.parallel_config.rank
        self._group = _join_group(init_info.host, init_info.port, rank, init_info.world_size)

    def start_weight_update(self) -> None:
        """Prepare the model for weights in checkpoint format."""
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict) -> None:
        """Receive one bucket; the base class would then wait for an accelerator, which a CPU host lacks."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: Bucket) -> None:
        """Receive one bucket and load it."""
        dtypes = [getattr(torch, name) for name in update_info.dtypes]
        metas = [
            torch.empty(shape, dtype=dtype, device="meta")
            for shape, dtype in zip(update_info.shapes, dtypes, strict=False)
        ]
        buffer = torch.empty(sum(meta.nbytes for meta in metas), dtype=torch.uint8)
        _broadcast(self._group, buffer)
        model: Any = self.model
        model.load_weights(zip(update_info.names, unpack(buffer, metas), strict=True))

    def finish_weight_update(self) -> None:
        """Run what vLLM does after loading (repacking, quantization).

        An output head that shares the embedding's weight is loaded with the embedding, and vLLM's reload then leaves
        the head's own packed copy, which CPU kernels compute with, as it was: it is packed again here.
        """
        finalize_layerwise_reload(self.model, self.model_config)
        for layer in self.model.modules():
            if isinstance(layer, ParallelLMHead):
                layer.quant_method.process_weights_after_loading(layer)

    def shutdown(self) -> None:
        """Leave the group."""
        self._group = None


WeightTransferEngineFactory.register_engine(BACKEND, GlooWeightTransferEngine)


class GlooWorkerExtension:
    """vLLM imports its ``worker_extension_cls`` in every worker; importing this module registers the engine there."""


class GlooWeightSender:
    """Sending side, on rank 0 of the trainer; the other ranks only take part in gathering ZeRO-3 shards.

    ``engines`` are Ray handles of ``CovRolloutActor``; each has ``tensor_parallel_size`` workers.
    """

    def __init__(self, engines: list, tensor_parallel_size: int) -> None:
        self.engines = engines
        self.world_size = 1 + len(engines) * tensor_parallel_size
        host = ray.util.get_node_ip_address().strip("[]")
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        infos = [
            dict(host=host, port=port, rank_offset=1 + i * tensor_parallel_size, world_size=self.world_size)
            for i in range(len(engines))
        ]
        joined = [engine.init_weight_transfer.remote(info) for engine, info in zip(engines, infos, strict=True)]
        self._group = _join_group(host, port, 0, self.world_size)
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
        received = [engine.update_weights.remote(info) for engine in self.engines]
        _broadcast(self._group, pack(tensors))
        ray.get(received)

    def finish(self) -> None:
        """Close the update on every engine; they use the new weights from here on."""
        ray.get([engine.finish_weight_update.remote() for engine in self.engines])


def transfer_weights(model: nn.Module, sender: GlooWeightSender | None, zero_stage: int) -> None:
    """Send all weights of ``model`` to vLLM; called on every rank, with a ``sender`` on rank 0 only.

    vLLM gets the weights of the plain model: LoRA adapters are merged into copies (``lora_weights.py``).
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
    """Split parameters, in order, into lists of at most ``max_bytes``; a larger parameter gets a list of its own."""
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
    """The bytes of all tensors, one after another, as one uint8 tensor."""
    return torch.cat([tensor.contiguous().flatten().view(torch.uint8) for tensor in tensors])


def unpack(buffer: Tensor, metas: list[Tensor]) -> list[Tensor]:
    """Inverse of ``pack``; ``metas`` carry the shapes and dtypes."""
    chunks = buffer.split([meta.nbytes for meta in metas])
    # clone: a view that starts off the dtype's alignment cannot be reinterpreted
    return [chunk.clone().view(meta.dtype).view(meta.shape) for chunk, meta in zip(chunks, metas, strict=True)]


def _join_group(host: str, port: int, rank: int, world_size: int):
    return stateless_init_torch_distributed_process_group(host, port, rank, world_size, backend="gloo")


def _broadcast(group, buffer: Tensor) -> None:
    options = torch.distributed.BroadcastOptions()
    options.rootRank = options.rootTensor = 0
    group.broadcast([buffer], options).wait()
