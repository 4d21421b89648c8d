"""The exponential moving average of the weights of the policy (needs torch alone)."""

import torch
from torch import Tensor, nn


class MovingAverage:
    """An exponential moving average in fp32, which a model of another type holds rounded.

    In bf16 the average would stay where it began: a weight has 8 significant bits, so an increment below 1/512 of the
    weight rounds away, and 1 - beta times the change of an update is far less. The average takes 4 bytes of main
    memory for each weight.

    With ZeRO-3 each rank averages its own shards of the weights. Upstream gathers them and changes what it gathered,
    which DeepSpeed drops.

    Args:
        model: The model that is exported; its weights are the first value of the average.
        beta: Weight of the former average in an update.
    """

    def __init__(self, model: nn.Module, beta: float) -> None:
        self._model = model
        self._beta = beta
        self._averages = [_stored(weight).to("cpu", torch.float32, copy=True) for weight in model.parameters()]

    @torch.no_grad()
    def update(self, trained: nn.Module) -> None:
        """Move the average toward the weights of a model, and write it into the model that is exported.

        Args:
            trained: A model of the same architecture and with the same shards. Weights without gradient keep their
                value.
        """
        weights = zip(self._model.parameters(), trained.parameters(), self._averages, strict=True)
        for exported, weight, average in weights:
            if weight.requires_grad:
                average.lerp_(_stored(weight).cpu().float(), 1 - self._beta)
                _stored(exported).copy_(average)


def _stored(weight: Tensor) -> Tensor:
    """Return what this rank stores of a weight: its shard with ZeRO-3, else all of it."""
    return getattr(weight, "ds_tensor", weight).data
