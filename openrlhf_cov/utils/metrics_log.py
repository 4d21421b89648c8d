"""``metrics.jsonl``: one JSON object per global step, on disk as soon as the step ends."""

import json
import logging
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openrlhf_cov.utils.json_lines import json_number, parse_object, read_bounded, replacing

logger = logging.getLogger(__name__)

# Bytes of a file of metrics: a million steps of 1 kB.
MAX_BYTES = 2**30
METRICS_FILE = "metrics.jsonl"
EVAL_FILE = "eval.jsonl"
# Folder of a run with the tokens of highest covariance, a file for each dumped step.
TOKENS_FOLDER = "cov_tokens"
# File of a run of the lab or of a study: the correct responses of the test, problem by problem.
TEST_FILE = "test.json"
# File of the same runs: the last evaluation and the test, written when the run is complete.
RESULT_FILE = "result.json"


class MetricsLog:
    """Appends one JSON line per step to ``path`` and syncs it, so that a crash loses at most the step in flight.

    A line holds ``step``, ``time`` (Unix seconds) and every number of the values given; NaN and infinities become
    null, entries that are not numbers are left out. Lines of steps after ``resumed_step`` that an earlier run left
    behind, and lines that are none of a step, are moved to ``<path>.bak`` (``.bak2``, ...) when the log is opened, so
    that a resumed run continues without a duplicate and nothing is lost.
    """

    def __init__(self, path: str | Path, resumed_step: int = 0) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            self._keep_until(resumed_step)

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Append the line of one step and sync it to the disk.

        Args:
            step: The global step, from 1; 0 for an evaluation before the first step.
            values: Name -> value; values that are no numbers are left out.
        """
        numbers = {name: json_number(value) for name, value in values.items() if _is_number(value)}
        line = json.dumps({"step": step, "time": round(time.time(), 3), **numbers}, allow_nan=False)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())

    def values_of(self, step: int) -> dict[str, float] | None:
        """Return the numbers that were written for one step; None without a line of it."""
        if not self.path.exists():
            return None
        for line in read_metrics(self.path):
            if line["step"] == step:
                return {
                    name: value for name, value in line.items() if name not in ("step", "time") and _is_number(value)
                }
        return None

    def _keep_until(self, step: int) -> None:
        lines = self.path.read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if _step_of(line) <= step]
        dropped = [line for line in lines if _step_of(line) > step]
        if dropped:
            backup = _write_backup(self.path, dropped)
            logger.warning(f"{self.path}: {len(dropped)} lines of steps after {step} were moved to {backup.name}")
        _write(self.path, kept)


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """Return the lines of steps in a metrics file, in order.

    A line that is no record of a step, such as a last line that was cut in the middle, is left out.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file has more than ``MAX_BYTES`` bytes.
    """
    return [
        parse_object(line) for line in read_bounded(Path(path), MAX_BYTES).splitlines() if _step_of(line) != math.inf
    ]


def _write_backup(path: Path, lines: list[bytes]) -> Path:
    """Write lines to ``path`` with .bak, .bak2, ... at its end: the first of them that does not exist."""
    backup = path.with_name(f"{path.name}.bak")
    number = 1
    while os.path.lexists(backup):
        number += 1
        backup = path.with_name(f"{path.name}.bak{number}")
    _write(backup, lines)
    return backup


def _write(path: Path, lines: list[bytes]) -> None:
    with replacing(path) as file:
        file.writelines(line.rstrip(b"\r\n") + b"\n" for line in lines)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _step_of(line: bytes) -> float:
    """Return the global step of a line; infinity for a line that is no record of a step."""
    try:
        step = parse_object(line).get("step")
    except ValueError:
        return math.inf
    return step if isinstance(step, int | float) and _is_number(step) and math.isfinite(step) else math.inf
