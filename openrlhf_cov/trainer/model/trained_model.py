"""A model that is trained beside the policy: the critic, or a process reward model."""

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from openrlhf_cov.models.window import Ranks
from openrlhf_cov.trainer.bad_updates import BadUpdates
from openrlhf_cov.trainer.batches.ranks import ranks_of
from openrlhf_cov.trainer.batches.windows import BatchLayout
from openrlhf_cov.trainer.records import MicroBatch


@dataclass
class TrainedModel:
    """The model of one rank, what trains it, and how its samples are cut into updates."""

    # critic or prm, as in folders and metrics.
    name: str
    strategy: Any
    # What runs forward: the DeepSpeed engine, or ``CovActor`` around it.
    model: Any
    engine: Any
    scheduler: Any
    ranks: Ranks
    bad_updates: BadUpdates
    layout: BatchLayout

    @classmethod
    def of(cls, name: str, title: str, strategy: Any, model: Any, engine: Any, scheduler: Any) -> "TrainedModel":
        """Make the model of this rank from its DeepSpeed engine.

        Args:
            name: ``critic`` or ``prm``, as in folders and metrics.
            title: Name of the model in messages.
            strategy: The strategy of the rank, with the flags of the run.
            model: What runs forward: the engine, or ``CovActor`` around it.
            engine: The DeepSpeed engine.
            scheduler: The scheduler of the learning rate.
        """
        ranks = ranks_of(strategy.ds_device_mesh["dp"].get_group())
        kept = Path(strategy.args.ckpt.output_dir) / "bad_updates" / name
        bad_updates = BadUpdates(engine, strategy.args.on_nan, kept, strategy.get_rank(), model=title)
        return cls(name, strategy, model, engine, scheduler, ranks, bad_updates, BatchLayout.of(strategy, ranks))

    @property
    def args(self) -> SimpleNamespace:
        """The flags of the run."""
        return self.strategy.args

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.model.parameters()).device

    def end_micro_batch(self, loss: Tensor, micro_batch: MicroBatch, *, step: int, ends_update: bool) -> None:
        """Add the gradient of a micro-batch. At the end of an update the optimizer steps unless the gradient is NaN.

        Args:
            loss: The loss of the micro-batch, 0-d.
            micro_batch: Its samples, which are kept where the gradient is NaN.
            step: Number of the global step, for messages.
            ends_update: True for the last micro-batch of an update.

        Raises:
            RunStopped: The gradient stays NaN (``--train.on_nan stop``).
        """
        self.strategy.backward(loss, self.model, None)
        # DeepSpeed counts every micro-batch of a static layout itself.
        if ends_update or not self.layout.dynamic:
            self.strategy.optimizer_step(None, self.model, self.scheduler, name=self.name)
        if ends_update:
            self.bad_updates.check(step, micro_batch)
