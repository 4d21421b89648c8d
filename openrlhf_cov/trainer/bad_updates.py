"""Updates whose gradient is NaN or infinite: skipped on every rank, counted, kept for inspection."""

from collections.abc import Iterable
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from openrlhf.utils.logging_utils import init_logger
from torch import nn

from openrlhf_cov.errors import RunStopped

logger = init_logger(__name__)

IN_A_ROW = 3
"""Bad updates without a good one between them, after which ``--train.on_nan stop`` ends the run."""
KEPT_BATCHES = 3


def check_every_gradient(engine: Any) -> None:
    """Let a DeepSpeed 0.19 engine look for NaN and infinities before every update, not in fp16 only.

    If there are any, its optimizer skips the update on all ranks and sets ``overflow``.
    """
    optimizer = engine.optimizer
    if hasattr(optimizer, "check_grad_overflow"):  # ZeRO stages 1 and 2
        optimizer.check_grad_overflow = True
    elif hasattr(optimizer, "inf_or_nan_tracker"):  # stage 3 reads ``overflow`` after it has updated the loss scale
        update_scale = optimizer._update_scale

        def check_first(has_overflow: bool) -> None:
            optimizer.check_overflow()
            update_scale(optimizer.overflow)

        optimizer._update_scale = check_first
    elif not engine.fp16_enabled():  # stage 0, and stage 1 with fp32 gradients of a bf16 model: no check of their own
        step, parameters = optimizer.step, list(engine.module.parameters())

        @wraps(step)
        def step_if_finite(*args, **kwargs) -> Any:
            optimizer.overflow = not gradients_are_finite(parameters)
            return None if optimizer.overflow else step(*args, **kwargs)

        optimizer.step = step_if_finite


def gradients_are_finite(parameters: Iterable[nn.Parameter]) -> bool:
    """True if no gradient has a NaN or an infinity, on no rank; every rank comes to the same answer."""
    gradients = [getattr(param, "_hp_grad", param.grad) for param in parameters]  # DeepSpeed's fp32 gradient, if any
    finite = torch.stack([gradient.isfinite().all() for gradient in gradients if gradient is not None]).all()
    verdict = finite.to(torch.int32)
    torch.distributed.all_reduce(verdict, op=torch.distributed.ReduceOp.MIN)
    return bool(verdict)


class BadUpdates:
    """Watches the optimizer of a DeepSpeed engine (``check_every_gradient``); counts and keeps what was skipped."""

    def __init__(self, engine: Any, on_nan: str, folder: Path, rank: int) -> None:
        self.engine, self.on_nan, self.folder, self.rank = engine, on_nan, folder, rank
        self.total = self.in_a_row = 0
        check_every_gradient(engine)

    def check(self, global_step: int, micro_batch: Any) -> bool:
        """True if the update that was just asked for was skipped; its last micro-batch is then saved.

        Every rank comes to the same answer. Raises RunStopped as ``--train.on_nan`` says.
        """
        if not getattr(self.engine.optimizer, "overflow", False):
            self.in_a_row = 0
            return False
        self.total += 1
        self.in_a_row += 1
        kept = self._keep(global_step, micro_batch) if self.total <= KEPT_BATCHES else "not kept"
        message = f"global step {global_step}: the gradient is NaN or infinite, update skipped (micro-batch: {kept})"
        logger.warning(message)
        if self.on_nan == "stop" and self.in_a_row >= IN_A_ROW:
            raise RunStopped(f"{message}; {IN_A_ROW} in a row end the run, --train.on_nan skip would go on")
        return True

    def _keep(self, global_step: int, micro_batch: Any) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"step{global_step}_{self.total}_rank{self.rank}.pt"
        torch.save(micro_batch, path)
        return path
