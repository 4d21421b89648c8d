"""``metrics.jsonl``: one JSON object per global step, on disk as soon as the step ends."""

import json
import logging
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openrlhf_cov.utils.json_lines import json_number, write_lines

logger = logging.getLogger(__name__)

METRICS_FILE = "metrics.jsonl"
EVAL_FILE = "eval.jsonl"


class MetricsLog:
    """Appends one JSON line per step to ``path`` and syncs it, so that a crash loses at most the step in flight.

    A line holds ``step``, ``time`` (Unix seconds) and every number of the values given; NaN and infinities become
    null, entries that are not numbers are left out. Lines of steps after ``resumed_step`` that an earlier run left
    behind, and a line cut in the middle, are moved to ``<path>.bak`` (``.bak2``, ...) when the log is opened, so that
    a resumed run continues without a duplicate and nothing is lost.
    """

    def __init__(self, path: str | Path, resumed_step: int = 0) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            self._keep_until(resumed_step)

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Append the line of one step."""
        numbers = {name: json_number(value) for name, value in values.items() if _is_number(value)}
        line = json.dumps({"step": step, "time": round(time.time(), 3), **numbers}, allow_nan=False)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())

    def values_of(self, step: int) -> dict[str, float] | None:
        """The numbers that were written for one step; None without a line of it."""
        for line in read_metrics(self.path) if self.path.exists() else ():
            if line["step"] == step:
                return {
                    name: value for name, value in line.items() if name not in ("step", "time") and value is not None
                }
        return None

    def _keep_until(self, step: int) -> None:
        lines = self.path.read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines if _step_of(line) <= step]
        dropped = [line for line in lines if _step_of(line) > step]
        if dropped:
            backup = _write_backup(self.path, dropped)
            logger.warning(f"{self.path}: {len(dropped)} lines of steps after {step} were moved to {backup.name}")
        write_lines(self.path, kept)


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The complete lines of a metrics file, in order; a last line cut in the middle is left out."""
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if _step_of(line) != math.inf]


def _write_backup(path: Path, lines: list[str]) -> Path:
    """Write lines to ``path`` with .bak, .bak2, ... at its end: the first of them that does not exist."""
    backup, number = path.with_name(f"{path.name}.bak"), 1
    while backup.exists():
        number += 1
        backup = path.with_name(f"{path.name}.bak{number}")
    write_lines(backup, lines)
    return backup


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _step_of(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except (json.JSONDecodeError, KeyError, TypeError):
        return math.inf
