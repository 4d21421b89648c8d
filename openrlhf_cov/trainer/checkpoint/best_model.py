"""Track the best evaluation of a run by the metric of ``--ckpt.best_metric_key``."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from openrlhf.utils.logging_utils import init_logger

logger = init_logger(__name__)

# The flag's value with which no model is kept.
NO_METRIC = "none"


@dataclass(frozen=True)
class BestModel:
    """The best evaluation so far."""

    # The name of the metric; empty: the first metric whose name ends with _pass1 is taken.
    key: str = ""
    value: float = -math.inf
    # The metric of the last evaluation, None before the first one.
    latest: float | None = None

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
        return BestModel(key, value if value > self.value else self.value, value)

    def state_dict(self) -> dict[str, Any]:
        """Return the entries of a checkpoint's client states."""
        return {
            "best_eval_metric_key": self.key,
            "best_eval_metric_value": self.value,
            "latest_eval_metric_value": self.latest,
        }

    def restored(self, states: Mapping[str, Any]) -> "BestModel":
        """Return the state of a checkpoint, unless ``--ckpt.best_metric_key`` has changed since."""
        saved = states.get("best_eval_metric_key") or NO_METRIC
        chosen_by_itself = self.key == "" and saved != NO_METRIC
        if self.key != saved and not chosen_by_itself:
            return self
        value = states.get("best_eval_metric_value")
        if value is None:
            return replace(self, key=saved)
        return BestModel(saved, value, states.get("latest_eval_metric_value", value))
