"""Track the best evaluation of a run by the metric of ``--ckpt.best_metric_key``."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openrlhf.utils.logging_utils import init_logger

logger = init_logger(__name__)

# The flag's value with which no model is kept.
NO_METRIC = "none"
# Flags of an evaluation that say when it is made and where its data are, and not what its values mean.
FREE = frozenset({"eval.steps", "eval_at_start", "eval_data_dir"})


# What the evaluation on a prompt data set takes from the flags of the rollouts. Benchmarks have settings of their own.
OF_PROMPTS = (
    *("data.max_samples", "data.apply_chat_template", "data.input_template", "data.input_key", "data.label_key"),
    *("rollout.max_new_tokens", "rollout.top_p", "reward.remote_url", "train.agent_func_path"),
    *("reward_source", "reward_grader", "reward_format", "reward_incorrect", "reward_format_bonus"),
    *("reward_keep_truncated", "thinking_markers", "thinking_opened", "code_extract"),
)


def evaluation_settings(args: SimpleNamespace) -> dict[str, Any]:
    """Return the flags on which the values of an evaluation depend; files without their folders, which may move.

    JSON can hold the values.

    Args:
        args: The flags of the run.
    """
    flags = {f"eval.{name}": value for name, value in vars(args.eval).items()}
    flags |= {name: value for name, value in vars(args).items() if name.startswith("eval_")}
    settings = {name: value for name, value in flags.items() if name not in FREE}
    kind, colon, files = (args.eval.dataset or "").rpartition(":")
    settings["eval.dataset"] = kind + colon + ",".join(Path(name).name for name in files.split(","))
    settings["chat_template_kwargs"] = args.chat_template_kwargs
    settings["data.max_len"] = args.data.max_len
    if kind != "bench":
        settings |= {name: attrgetter(name)(args) for name in OF_PROMPTS}
        urls = settings["reward.remote_url"]
        settings["reward.remote_url"] = [Path(url).name if url.endswith(".py") else url for url in urls or []]
        settings["train.agent_func_path"] = Path(args.train.agent_func_path or "").name
        settings["thinking_markers"] = list(args.thinking_markers)
    return dict(sorted(settings.items()))


def changed_settings(now: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    """Return the names of the settings that are others than before; what an earlier version lacks is unchanged."""
    return sorted(name for name in now.keys() & before.keys() if now[name] != before[name])


@dataclass(frozen=True)
class BestModel:
    """The best evaluation so far."""

    # The name of the metric; empty: the first metric whose name ends with _pass1 is taken.
    key: str = ""
    value: float = -math.inf
    # True if the metric is chosen by itself (``--ckpt.best_metric_key auto``).
    automatic: bool = False
    # ``evaluation_settings`` of the run.
    settings: Mapping[str, Any] = field(default_factory=dict)

    def after(self, metrics: Mapping[str, float]) -> "BestModel":
        """Return the state after an evaluation; its value is that of the evaluation if that is the best one."""
        if self.key == NO_METRIC:
            return self
        if self.automatic and self.key and self.key not in metrics:  # an earlier version gave it another name
            return replace(self, key="", value=-math.inf).after(metrics)
        key = self.key or next((name for name in sorted(metrics) if name.endswith("_pass1")), "")
        if key not in metrics:
            logger.warning(
                f"--ckpt.best_metric_key {self.key or 'auto'}: the evaluation has no such metric; choose one of "
                f"{', '.join(sorted(metrics))}"
            )
            return self
        value = metrics[key]
        best = value if value > self.value else self.value  # NaN is never the best
        return replace(self, key=key, value=best)

    def state_dict(self) -> dict[str, Any]:
        """Return the entries of a checkpoint's client states."""
        return {
            "best_eval_metric_key": self.key,
            "best_eval_metric_value": self.value,
            "best_eval_settings": dict(self.settings),
        }

    def changed(self, states: Mapping[str, Any]) -> list[str]:
        """Return the names of the settings of an evaluation that are others than those of a checkpoint."""
        return changed_settings(self.settings, states.get("best_eval_settings", {}))

    def restored(self, states: Mapping[str, Any]) -> "BestModel":
        """Return the state of a checkpoint, unless ``--ckpt.best_metric_key`` has changed since.

        If the settings of the evaluation have changed, the former values say nothing about the next ones: the next
        evaluation is the best one so far.
        """
        saved = states.get("best_eval_metric_key") or NO_METRIC
        chosen_by_itself = self.key == "" and saved != NO_METRIC
        if self.key != saved and not chosen_by_itself:
            return self
        if changed := self.changed(states):
            logger.warning(
                f"--ckpt.load_enable: {', '.join(f'--{name}' for name in changed)} changed, so the best evaluation of "
                "the checkpoint is no longer compared with; the next evaluation replaces the best model"
            )
            return self
        return replace(self, key=saved, value=states.get("best_eval_metric_value", self.value))
