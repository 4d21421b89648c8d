"""The side of the engines of ``weight_transfer.py``: weights in buckets over gloo, loaded into a vLLM worker."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from openrlhf_cov.trainer.weights.weight_transfer import BACKEND, broadcast, join_group, unpack


@dataclass
class GlooInitInfo(WeightTransferInitInfo):
    """The address and the ranks with which a vLLM worker joins the group of the trainer.

    The trainer is rank 0. The first worker of the engine has the rank ``rank_offset``.
    """

    host: str
    port: int
    rank_offset: int
    world_size: int


@dataclass
class Bucket(WeightTransferUpdateInfo):
    """The content of one broadcast, in order: names of parameters, names of torch dtypes, and shapes."""

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
        self._group = join_group(init_info.host, init_info.port, rank, init_info.world_size)

    def start_weight_update(self) -> None:
        """Prepare the model for weights in checkpoint format."""
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict) -> None:
        """Receive one bucket; the base class would then wait for an accelerator, which a CPU host lacks."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: Bucket) -> None:
        """Receive one bucket and load it."""
        dtypes = [getattr(torch, name) for name in update_info.dtypes]
        # Tensors without memory: shape and type say how to cut the bytes of the bucket.
        metas = [
            torch.empty(shape, dtype=dtype, device="meta")
            for shape, dtype in zip(update_info.shapes, dtypes, strict=False)
        ]
        # One broadcast for the whole bucket, because every call of gloo costs time.
        buffer = torch.empty(sum(meta.nbytes for meta in metas), dtype=torch.uint8)
        broadcast(self._group, buffer)
        model: Any = self.model
        model.load_weights(zip(update_info.names, unpack(buffer, metas), strict=True))

    def finish_weight_update(self) -> None:
        """Run what vLLM does after loading (repacking, quantization).

        An output head that shares the embedding's weight is loaded with the embedding, and vLLM's reload then leaves
        the head's own packed copy, which CPU kernels compute with, as it was: it is packed again here.
        """
        head_is_tied = getattr(self.model_config.hf_config, "tie_word_embeddings", False)
        with _without_expected_warnings(head_is_tied):
            finalize_layerwise_reload(self.model, self.model_config)
        for layer in self.model.modules():
            if isinstance(layer, ParallelLMHead):
                layer.quant_method.process_weights_after_loading(layer)

    def shutdown(self) -> None:
        """Leave the group."""
        self._group = None


@contextmanager
def _without_expected_warnings(head_is_tied: bool) -> Iterator[None]:
    """Drop vLLM's warning "Failed to load weights" for layers that no weights are sent for, while the body runs.

    The tables of rotary embeddings are computed, and a tied output head has the weight of the embedding.

    Args:
        head_is_tied: True if the output head shares the weight of the embedding.
    """
    names = ("RotaryEmbedding", "ParallelLMHead") if head_is_tied else ("RotaryEmbedding",)

    def is_unexpected(record: logging.LogRecord) -> bool:
        layer, _, rest = record.getMessage().partition(": ")
        return rest != "Failed to load weights" or not any(name in layer for name in names)

    log = logging.getLogger(finalize_layerwise_reload.__module__)
    log.addFilter(is_unexpected)
    try:
        yield
    finally:
        log.removeFilter(is_unexpected)


WeightTransferEngineFactory.register_engine(BACKEND, GlooWeightTransferEngine)


class GlooWorkerExtension:
    """vLLM imports its ``worker_extension_cls`` in every worker; importing this module registers the engine there."""
