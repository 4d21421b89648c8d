"""Track the best evaluation of a run by the metric of ``--ckpt.best_metric_key``."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openrlhf.utils.logging_utils import init_logger

logger = init_logger(__name__)

# The flag's value with which no model is kept.
NO_METRIC = "none"
# Flags of an evaluation that say when it is made and where its data are, and not what its values mean.
FREE = frozenset({"eval.steps", "eval_at_start", "eval_data_dir"})


def evaluation_settings(args: SimpleNamespace) -> dict[str, Any]:
    """Return the flags on which the values of an evaluation depend; data sets without their folders, which may move.

    Args:
        args: The flags of the run.
    """
    flags = {f"eval.{name}": value for name, value in vars(args.eval).items()}
    flags |= {name: value for name, value in vars(args).items() if name.startswith("eval_")}
    settings = {name: value for name, value in sorted(flags.items()) if name not in FREE}
    kind, colon, files = (args.eval.dataset or "").rpartition(":")
    settings["eval.dataset"] = kind + colon + ",".join(Path(name).name for name in files.split(","))
    return settings


@dataclass(frozen=True)
class BestModel:
    """The best evaluation so far."""

    # The name of the metric; empty: the first metric whose name ends with _pass1 is taken.
    key: str = ""
    value: float = -math.inf
    # The metric of the last evaluation, None before the first one.
    latest: float | None = None
    # ``evaluation_settings`` of the run.
    settings: Mapping[str, Any] = field(default_factory=dict)

    def after(self, metrics: Mapping[str, float]) -> "BestModel":
        """Return the state after an evaluation; its value is that of the evaluation if that is the best one."""
        if self.key == NO_METRIC:
            return self
        key = self.key or next((name for name in sorted(metrics) if name.endswith("_pass1")), "")
        if key not in metrics:
            logger.warning(
                f"--ckpt.best_metric_key {self.key or 'auto'}: the evaluation has no such metric; choose one of "
                f"{', '.join(sorted(metrics))}"
            )
            return self
        value = metrics[key]
        best = value if value > self.value else self.value  # NaN is never the best
        return replace(self, key=key, value=best, latest=value)

    def state_dict(self) -> dict[str, Any]:
        """Return the entries of a checkpoint's client states."""
        return {
            "best_eval_metric_key": self.key,
            "best_eval_metric_value": self.value,
            "latest_eval_metric_value": self.latest,
            "best_eval_settings": dict(self.settings),
        }

    def restored(self, states: Mapping[str, Any]) -> "BestModel":
        """Return the state of a checkpoint, unless ``--ckpt.best_metric_key`` has changed since.

        If the settings of the evaluation have changed, the former values say nothing about the next ones: the next
        evaluation is the best one so far.
        """
        saved = states.get("best_eval_metric_key") or NO_METRIC
        chosen_by_itself = self.key == "" and saved != NO_METRIC
        if self.key != saved and not chosen_by_itself:
            return self
        before = states.get("best_eval_settings", self.settings)
        if changed := sorted(
            name for name in self.settings.keys() | before if self.settings.get(name) != before.get(name)
        ):
            logger.warning(
                f"--ckpt.load_enable: {', '.join(f'--{name}' for name in changed)} changed, so the best evaluation of "
                "the checkpoint is no longer compared with; the next evaluation replaces the best model"
            )
            return replace(self, key=saved)
        value = states.get("best_eval_metric_value")
        if value is None:
            return replace(self, key=saved)
        return replace(self, key=saved, value=value, latest=states.get("latest_eval_metric_value", value))
