"""What the runs of a study left behind: curves, the test question by question; as folders, or packed in one file."""

import json
import lzma
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openrlhf_cov.analysis.table import Table
from openrlhf_cov.errors import UsageError
from openrlhf_cov.study.plan import Score, StudyRun
from openrlhf_cov.utils.json_lines import parse_object, read_json, replacing
from openrlhf_cov.utils.metric_table import STEP, TIME
from openrlhf_cov.utils.metrics_log import EVAL_FILE, METRICS_FILE, RESULT_FILE, TEST_FILE, read_metrics

VALIDATION_FILE = "validation.jsonl"
"""Of a run of the whole trainer, whose ``eval.jsonl`` is the trainer's own: what the study saw of the policy."""
DIGITS = 5
"""Significant digits of a packed number."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Result:
    """One finished run: its metrics and evaluations by step, and what was right in its test."""

    run: StudyRun
    metrics: Table
    evaluations: Table
    kinds: tuple[str, ...]
    """Of each question, "" where all are alike."""
    greedy: NDArray[np.bool_]
    """(N,) by question."""
    right: NDArray[np.int64]
    """(N,) right ones of ``samples`` samples of each question."""
    samples: int

    @property
    def sampled(self) -> NDArray[np.bool_]:
        """(N, K) as ``evaluation.scores`` takes it: the right ones first, an order that no score looks at."""
        return np.arange(self.samples) < self.right[:, None]


def area(steps: ArrayLike, values: ArrayLike) -> float:
    """Mean of a curve over its steps, straight between the points; NaN with fewer than three, which are no curve."""
    steps, values = np.asarray(steps, dtype=np.float64), np.asarray(values, dtype=np.float64)
    return float(np.trapezoid(values, steps) / (steps[-1] - steps[0])) if len(steps) > 2 else float("nan")


def score_of(result: Result) -> Score:
    """What tuning looks at."""
    greedy = result.evaluations.column("greedy")
    return Score(float(greedy[-1]), area(result.evaluations.steps, greedy))


def read_result(folder: Path, run: StudyRun) -> Result | None:
    """The finished run in a study's folder; None where it is missing or unfinished."""
    place = folder / run.folder
    test = read_json(place / TEST_FILE) if (place / RESULT_FILE).is_file() else None
    if not isinstance(test, dict):
        return None
    seen = next(path for name in (VALIDATION_FILE, EVAL_FILE) if (path := place / name).exists())
    return _result(run, _table(read_metrics(place / METRICS_FILE)), _table(read_metrics(seen)), test)


def pack(results: Sequence[Result], path: Path, asked: Callable[[StudyRun], Sequence[str]]) -> None:
    """One file of all results, a line of JSON each, compressed; numbers have ``DIGITS`` digits.

    ``asked``: the flags of a run, by which ``unpack`` knows those of another study.
    """
    with replacing(path) as file, lzma.LZMAFile(file, "w", preset=9) as lines:
        for each in results:
            test = {"kinds": each.kinds, "greedy": each.greedy.astype(int).tolist(), "right": each.right.tolist()}
            record = {
                "run": asdict(each.run),
                "asked": asked(each.run),
                "metrics": _columns(each.metrics),
                "evaluations": _columns(each.evaluations),
                "test": test | {"samples": each.samples},
            }
            lines.write(json.dumps(record, separators=(",", ":"), allow_nan=False).encode() + b"\n")


def unpack(path: Path, asked: Callable[[StudyRun], Sequence[str]] | None = None) -> Iterator[Result]:
    """The results in a file of ``pack``, with ``asked`` those whose flags are these; UsageError for another file."""
    try:
        with lzma.open(path, "rb") as lines:
            for line in lines:
                record = parse_object(line)
                run = record["run"]
                metrics, evaluations = (_unpacked(record[name]) for name in ("metrics", "evaluations"))
                made = StudyRun(run["arm"], run["stage"], tuple(run["cell"]), run["seed"])
                if asked is None or record.get("asked") == asked(made):
                    yield _result(made, metrics, evaluations, record["test"])
    except (OSError, EOFError, lzma.LZMAError, LookupError, ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} holds no results of a study: {' '.join(str(error).split())}") from error


def _result(run: StudyRun, metrics: Table, evaluations: Table, test: Mapping[str, Any]) -> Result:
    greedy, right = np.array(test["greedy"], dtype=bool), np.array(test["right"], dtype=np.int64)
    return Result(run, metrics, evaluations, tuple(test["kinds"]), greedy, right, test["samples"])


def _table(lines: Sequence[Mapping[str, Any]]) -> Table:
    names = dict.fromkeys(name for line in lines for name in line if name not in (STEP, TIME))
    steps = np.array([line[STEP] for line in lines], dtype=np.int64)
    return Table(steps, {name: _numbers(line.get(name) for line in lines) for name in names})


def _unpacked(columns: Mapping[str, Any]) -> Table:
    rest = {name: _numbers(values) for name, values in columns.items() if name != STEP}
    return Table(np.array(columns[STEP], dtype=np.int64), rest)


def _columns(table: Table) -> dict[str, list[float | None]]:
    """Every column that has a number."""
    kept = {name: values for name, values in table.columns.items() if np.isfinite(values).any()}
    return {STEP: table.steps.tolist()} | {name: [_rounded(value) for value in kept[name]] for name in sorted(kept)}


def _rounded(value: float) -> float | None:
    return float(f"{value:.{DIGITS}g}") if np.isfinite(value) else None


def _numbers(values: Iterable[Any]) -> Floats:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
