"""Keep the settings of an optimizer while a checkpoint is loaded, which has those of an earlier run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Settings of a parameter group that flags have, beside its learning rate. What else a group holds is the optimizer's.
OF_FLAGS = ("betas", "eps", "weight_decay", "momentum")


@dataclass(frozen=True)
class OptimizerSettings:
    """Settings of an optimizer and its scheduler."""

    # Of each parameter group: name -> value, of those in ``OF_FLAGS`` that it has.
    groups: Sequence[Mapping[str, Any]]
    # Learning rate of each group before the scheduler's factor; () without a scheduler.
    base_rates: Sequence[float]
    # Largest norm of a gradient; None if the optimizer keeps none itself, as with ZeRO-0 in fp32.
    max_norm: float | None


def settings_of(engine: Any) -> OptimizerSettings:
    """Return the settings of a DeepSpeed engine, which are those of the flags until a checkpoint is loaded.

    Args:
        engine: The engine, with its optimizer.
    """
    groups = engine.basic_optimizer.param_groups
    scheduler = engine.lr_scheduler
    return OptimizerSettings(
        groups=[{name: group[name] for name in OF_FLAGS if name in group} for group in groups],
        base_rates=() if scheduler is None else tuple(scheduler.base_lrs),
        max_norm=getattr(engine.optimizer, "clip_grad", None),
    )


def apply_settings(engine: Any, settings: OptimizerSettings) -> None:
    """Let a DeepSpeed engine that has loaded a checkpoint go on with these settings.

    The learning rate is that of the schedule at the update that the checkpoint has reached: with unchanged flags the
    same number as without the restart.

    Args:
        engine: The engine. Its scheduler is a ``LambdaLR``, as all of transformers' are that upstream offers.
        settings: What ``settings_of`` returned before the load.
    """
    groups = engine.basic_optimizer.param_groups
    for group, values in zip(groups, settings.groups, strict=True):
        group.update(values)
    if settings.max_norm is not None:
        engine.optimizer.clip_grad = settings.max_norm
    scheduler = engine.lr_scheduler
    if scheduler is None:
        return
    scheduler.base_lrs = list(settings.base_rates)
    rates = [
        base * factor(scheduler.last_epoch)
        for base, factor in zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
    ]
    for group, base, rate in zip(groups, scheduler.base_lrs, rates, strict=True):
        group["initial_lr"] = base
        group["lr"] = rate
    scheduler._last_lr = rates
