"""Updates whose gradient is NaN or infinite: skipped on every rank, counted, kept for inspection."""

import math
from collections.abc import Iterable
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from deepspeed.accelerator import get_accelerator
from openrlhf.utils.logging_utils import init_logger
from torch import Tensor, nn

from openrlhf_cov.errors import RunStopped

logger = init_logger(__name__)

# Bad updates without a good one between them, after which ``--train.on_nan stop`` ends the run.
IN_A_ROW = 3
KEPT_BATCHES = 3


def check_every_gradient(engine: Any) -> None:
    """Let a DeepSpeed 0.19 engine look for NaN and infinities before every update, not in fp16 only.

    If there are any, its optimizer skips the update on all ranks and sets ``overflow``.
    """
    optimizer = engine.optimizer
    if hasattr(optimizer, "check_grad_overflow"):  # ZeRO stages 1 and 2
        optimizer.check_grad_overflow = True
    elif engine.fp16_enabled():
        return  # DeepSpeed looks for them itself, to move its loss scale
    elif hasattr(optimizer, "grad_partitions_flat_buffer"):  # stage 3 reads ``overflow`` after ``_update_scale``
        update_scale = optimizer._update_scale

        def check_first(has_overflow: bool) -> None:
            # not DeepSpeed's own check_overflow, which makes a copy of all gradients of the rank
            optimizer.overflow = not gradients_are_finite([optimizer.grad_partitions_flat_buffer])
            update_scale(optimizer.overflow)

        optimizer._update_scale = check_first
    else:  # stage 0, and stage 1 with fp32 gradients of a bf16 model: no check of their own
        step = optimizer.step
        parameters = list(engine.module.parameters())

        @wraps(step)
        def step_if_finite(*args, **kwargs) -> Any:
            optimizer.overflow = not gradients_are_finite(map(gradient_of, parameters))
            return None if optimizer.overflow else step(*args, **kwargs)

        optimizer.step = step_if_finite


def gradient_of(parameter: nn.Parameter) -> Tensor | None:
    """Return the gradient of the optimizer step: DeepSpeed's fp32 gradient, if it keeps one."""
    return getattr(parameter, "_hp_grad", parameter.grad)


def gradients_are_finite(gradients: Iterable[Tensor | None]) -> bool:
    """Return True if no gradient of any rank has a NaN or an infinity; the answer is equal on all ranks.

    It is read off the largest absolute value, which takes no memory beside the gradients and does not overflow as a
    norm may.
    """
    # The maximum of a tensor with a NaN is NaN.
    largest = [torch.linalg.vector_norm(each, ord=math.inf) for each in gradients if each is not None and each.numel()]
    verdict = torch.stack(largest).isfinite().all()
    verdict = verdict.to(get_accelerator().current_device_name(), torch.int32)  # offloaded ones are on the host
    torch.distributed.all_reduce(verdict, op=torch.distributed.ReduceOp.MIN)
    return bool(verdict)


class BadUpdates:
    """The updates that a DeepSpeed engine skips by ``check_every_gradient``: their number, and their micro-batches.

    Args:
        engine: The DeepSpeed engine of the model.
        on_nan: ``--train.on_nan``, ``skip`` or ``stop``.
        folder: Folder for the micro-batches of skipped updates; made when the first of them is kept.
        rank: Number of this rank, for the names of files.
        model: Name of the model in messages.
    """

    def __init__(self, engine: Any, on_nan: str, folder: Path, rank: int, model: str = "policy") -> None:
        self.engine = engine
        self.on_nan = on_nan
        self.folder = folder
        self.rank = rank
        self.model = model
        self.total = self.in_a_row = 0
        check_every_gradient(engine)

    @property
    def gradient(self) -> str:
        """Return the name of the gradient in messages."""
        return "the gradient" if self.model == "policy" else f"the gradient of the {self.model}"

    def check(self, global_step: int, micro_batch: Any) -> bool:
        """Return True if the last update was skipped, which is equal on all ranks, and save its last micro-batch.

        Args:
            global_step: Number of the global step, from 0. The message and the name of the file count from 1, as the
                log does.
            micro_batch: The last micro-batch of the update. Those of the first ``KEPT_BATCHES`` skipped updates are
                saved.

        Raises:
            RunStopped: ``IN_A_ROW`` updates in a row were skipped, with ``--train.on_nan stop``.
        """
        if not getattr(self.engine.optimizer, "overflow", False):
            self.in_a_row = 0
            return False
        self.total += 1
        self.in_a_row += 1
        logged_step = global_step + 1
        kept = "not kept"
        if self.total <= KEPT_BATCHES:
            self.folder.mkdir(parents=True, exist_ok=True)
            kept = self.folder / f"step{logged_step}_{self.total}_rank{self.rank}.pt"
            torch.save(micro_batch, kept)
        message = (
            f"global step {logged_step}: {self.gradient} is NaN or infinite, update skipped (micro-batch: {kept})"
        )
        logger.warning(message)
        if self.on_nan == "stop" and self.in_a_row >= IN_A_ROW:
            raise RunStopped(f"{message}; {IN_A_ROW} in a row end the run, --train.on_nan skip would go on")
        return True
