"""What the runs of a study left behind: curves, and the test question by question."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openrlhf_cov.study.plan import Run, Score
from openrlhf_cov.utils.json_lines import read_json
from openrlhf_cov.utils.metrics_log import EVAL_FILE, METRICS_FILE, read_metrics

RESULT_FILE, TEST_FILE, SETTINGS_FILE = "result.json", "test.json", "lab.json"
"""Of a run in the laboratory: the first is written last."""

Lines = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Result:
    """One finished run: lines of its metrics and evaluations, and what was right in its test."""

    run: Run
    metrics: Lines
    evaluations: Lines
    kinds: tuple[str, ...]
    greedy: NDArray[np.bool_]
    """(N,) by question."""
    right: NDArray[np.int64]
    """(N,) right samples of each question."""
    samples: int

    @property
    def sampled(self) -> NDArray[np.bool_]:
        """(N, K) as ``evaluation.scores`` takes it: the right ones first, which no score looks at."""
        return np.arange(self.samples) < self.right[:, None]

    def curve(self, name: str) -> NDArray[np.float64]:
        """(steps, values) of an evaluation's number, (2, n)."""
        rows = [(line["step"], line[name]) for line in self.evaluations if line.get(name) is not None]
        return np.array(rows, dtype=np.float64).reshape(-1, 2).T

    def series(self, name: str) -> NDArray[np.float64]:
        """Values (steps,) of a metric, NaN where it was not logged."""
        return np.array([np.nan if line.get(name) is None else line[name] for line in self.metrics], dtype=np.float64)


def area(curve: NDArray[np.float64]) -> float:
    """Mean of a curve (2, n) over its steps, straight between the points; NaN with fewer than two."""
    steps, values = curve
    return float(np.trapezoid(values, steps) / (steps[-1] - steps[0])) if len(steps) > 1 else float("nan")


def read_result(folder: Path, run: Run) -> Result | None:
    """The finished run in a study's folder; None where it is missing or unfinished."""
    place = folder / run.folder
    if not (place / RESULT_FILE).is_file():
        return None
    test = read_json(place / TEST_FILE)
    if not isinstance(test, dict):
        return None
    return Result(
        run,
        read_metrics(place / METRICS_FILE),
        read_metrics(place / EVAL_FILE),
        tuple(test["kinds"]),
        np.array(test["greedy"], dtype=bool),
        np.array(test["right"], dtype=np.int64),
        test["samples"],
    )


def read_score(folder: Path, run: Run) -> Score | None:
    """What tuning looks at of a finished run; None where it is not finished."""
    place = folder / run.folder
    result = read_json(place / RESULT_FILE)
    if not isinstance(result, dict):
        return None
    rows = [(line["step"], line["greedy"]) for line in read_metrics(place / EVAL_FILE)]
    return Score(result["greedy"], area(np.array(rows, dtype=np.float64).T))


def read_results(folder: Path, runs: Iterable[Run]) -> list[Result]:
    """The finished ones, in their order."""
    return [result for run in runs if (result := read_result(folder, run)) is not None]
