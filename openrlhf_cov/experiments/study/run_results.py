"""Read and pack the results of a study's runs: curves, and the test question by question."""

import json
import lzma
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openrlhf_cov.analysis.table import Table
from openrlhf_cov.errors import UsageError, reason_of
from openrlhf_cov.experiments.study.result_records import Answers, Columns, LastEvaluation, PackedRun, read_record
from openrlhf_cov.experiments.study.run_plan import REPORT, Score, StudyRun
from openrlhf_cov.experiments.study.spec import Spec
from openrlhf_cov.utils.json_lines import parse_json, regular, replacing
from openrlhf_cov.utils.metric_table import CPU_TIME, STEP, STEP_TOTAL, TIME
from openrlhf_cov.utils.metrics_log import EVAL_FILE, METRICS_FILE, RESULT_FILE, TEST_FILE, read_metrics
from openrlhf_cov.utils.record_checks import checked_value

# Of a run of the whole trainer, whose ``eval.jsonl`` is the trainer's own: what the study saw of the policy.
VALIDATION_FILE = "validation.jsonl"
# In the result of a run that ended before its last step: the step after which it ended.
STOPPED_AT = "stopped_at"
# Significant digits of a packed number.
DIGITS = 4
# Metrics that a packed run of tuning keeps, beside the evaluations and the test. Tuning selects by evaluations.
OF_TUNING = ("reward", "entropy/mean", "entropy/position_0", "gradient/norm", "response_length", STEP_TOTAL)
# The same of every run of a sweep, whose page reads nothing but evaluations: what the law and its forecasts need.
OF_SWEEP = ("reward", "entropy/mean")
# The same of the reported runs of a task that is learned or not, which are long: what pages read. A name that ends
# with a slash stands for all names that begin with it.
OF_LEARNED = (
    *OF_TUNING,
    *("truncated", "cov/selected_frac", "gradient/positive_mass", "gradient/negative_mass", "gradient/zero_frac"),
    *("entropy/delta", "entropy/delta_theorem1", "entropy/delta_theorem2", CPU_TIME, "decision/", "drop/"),
)
# Metrics that no packed run keeps: two more averages of what ``cov/group_weighted_acc_…``, the paper's, are of.
LEFT_OUT = tuple(f"cov/{kind}_{share}" for kind in ("acc", "token_acc") for share in ("low", "mid", "high"))
# A run that is no part of a study.
ALONE = StudyRun("", REPORT, (), 0)
# Bytes of a line, and of all lines, of a packed file. A file of a few kB can unpack to any number of bytes.
MAX_BYTES = 2**22
MAX_TOTAL_BYTES = 2**32
# Bytes that the lines may have for each byte of the file, beside one line. Files of studies have about 5.
MAX_RATIO = 50
# Memory of the decompressor. A file can ask for gigabytes; the highest preset needs 65 MiB.
DECOMPRESSOR_BYTES = 2**27

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Result:
    """One finished run: its metrics and evaluations by step, and what was right in its test."""

    run: StudyRun
    metrics: Table
    evaluations: Table
    # Of each question, "" where all are alike.
    kinds: tuple[str, ...]
    # (N,) by question.
    greedy: NDArray[np.bool_]
    # (N,) right ones of ``samples`` samples of each question.
    right: NDArray[np.int64]
    samples: int

    @property
    def sampled(self) -> NDArray[np.bool_]:
        """(N, K) for ``openrlhf_cov.evaluation.scores``: correct samples first; no score depends on the order."""
        return np.arange(self.samples) < self.right[:, None]


def area(steps: ArrayLike, values: ArrayLike) -> float:
    """Return the mean of a curve over its steps: the area under it divided by their range.

    Args:
        steps: Global steps (n,), which increase. They need not be evenly spaced.
        values: Values (n,) of the curve, which is linear between them.

    Returns:
        The mean; NaN with fewer than three values.
    """
    steps = np.asarray(steps, dtype=np.float64)
    values = np.asarray(values, dtype=np.float64)
    return float(np.trapezoid(values, steps) / (steps[-1] - steps[0])) if len(steps) > 2 else float("nan")


def score_of(result: Result) -> Score:
    """Return the numbers of a run by which tuning and sweeps decide."""
    greedy = result.evaluations.column("greedy")
    return Score(float(greedy[-1]), area(result.evaluations.steps, greedy), float(hard_accuracy(result)[-1]))


def hard_accuracy(result: Result) -> Floats:
    """Return the greedy accuracy (n,) of each evaluation on the questions that need exploration.

    They are the questions that the habit of the base policy does not answer; all questions where the task has no such
    habit.
    """
    columns = result.evaluations.columns
    return result.evaluations.column("greedy_hard" if "greedy_hard" in columns else "greedy")


def read_result(folder: Path, run: StudyRun, evaluated: Collection[int] = ()) -> Result | None:
    """Return a run in a study's folder; None where it is missing or unfinished.

    Args:
        folder: The folder of the study.
        run: The run.
        evaluated: See ``read_run``.

    Raises:
        ValueError: See ``read_run``.
    """
    place = folder / run.folder
    return read_run(place, run, evaluated=evaluated) if (place / RESULT_FILE).is_file() else None


def read_run(place: Path, run: StudyRun = ALONE, *, evaluated: Collection[int] = ()) -> Result:
    """Return the finished run in a folder.

    Args:
        place: The folder of the run.
        run: The run that the folder holds; ``ALONE`` for one that is no part of a study.
        evaluated: The steps that have an evaluation; empty where they are not known.

    Raises:
        ValueError: A file is missing, cut or of another form, or lacks steps.
    """
    # The trainer writes an eval.jsonl of its own, so the study keeps its evaluations in another file there.
    seen = VALIDATION_FILE if (place / VALIDATION_FILE).exists() else EVAL_FILE
    try:
        ended = read_record(LastEvaluation, place / RESULT_FILE)
        test = read_record(Answers, place / TEST_FILE)
        result = _result(run, _table(place / METRICS_FILE), _table(place / seen), test)
        # A run that stopped early has only the evaluations up to its last step.
        last = max(evaluated, default=0) if ended.stopped_at is None else ended.stopped_at
        if evaluated and result.evaluations.steps.tolist() != [step for step in evaluated if step <= last]:
            raise ValueError("evaluations are missing")
        # The files are written one after another. A different value shows that they are of two runs.
        if ended.greedy != result.evaluations.column("greedy")[-1]:
            raise ValueError(f"{RESULT_FILE} has not the last evaluation")
        return result
    except (OSError, LookupError, ValueError) as error:
        raise ValueError(f"{place} is damaged: {reason_of(error)}") from error


def reported_metrics(spec: Spec) -> tuple[str, ...] | None:
    """Return the metrics that the reported runs of a study keep in its packed file; None stands for all of them."""
    if spec.sweep:
        return OF_SWEEP
    return OF_LEARNED if spec.learned is not None else None


def pack(
    results: Sequence[Result],
    path: Path,
    asked: Callable[[StudyRun], Sequence[str]],
    reported: Collection[str] | None = None,
) -> None:
    """Write one file of all results, a line of JSON each, compressed; numbers have ``DIGITS`` digits.

    Runs of tuning keep the metrics ``OF_TUNING``, but no more than reported runs do. All else is there of all runs.

    Args:
        results: The runs, in the order of the file.
        path: The file.
        asked: The flags of a run, by which ``unpack`` knows those of another study.
        reported: Metrics that reported runs keep, see ``OF_LEARNED``. None: all but ``LEFT_OUT``.
    """
    tuned = OF_TUNING if reported is None else tuple(name for name in OF_TUNING if name in reported)
    with replacing(path) as file, lzma.LZMAFile(file, "w", preset=9) as lines:
        for each in results:
            run = each.run
            test = {"kinds": each.kinds, "greedy": each.greedy.astype(int).tolist(), "right": each.right.tolist()}
            record = {
                # The keys of published files; see ``RunFields``.
                "run": {"arm": run.method, "stage": run.stage, "cell": run.configuration, "seed": run.seed},
                "asked": asked(run),
                "metrics": _columns(each.metrics, reported if run.stage == REPORT else tuned),
                "evaluations": _columns(each.evaluations),
                "test": test | {"samples": each.samples},
            }
            lines.write(json.dumps(record, separators=(",", ":"), allow_nan=False).encode() + b"\n")


def unpack(path: Path, asked: Callable[[StudyRun], Sequence[str]] | None = None) -> Iterator[Result]:
    """Yield the results in a file of ``pack``.

    Args:
        path: The file.
        asked: Returns the flags with which a run must have been packed to be yielded; runs packed with other flags are
            left out. None: all runs are yielded.

    Raises:
        UsageError: The file cannot be read, or holds anything other than results of a study.
    """
    try:
        with regular(path).open("rb") as file:
            for line in _unpacked_lines(file, path.stat().st_size):
                packed = checked_value(PackedRun, parse_json(line))
                run = packed.study_run
                result = _result(run, _unpacked(packed.metrics), _unpacked(packed.evaluations), packed.test)
                if asked is None or packed.asked == asked(run):
                    yield result
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"{path}: {reason}; give a file that openrlhf-cov study --pack wrote") from error
    except (EOFError, lzma.LZMAError, LookupError, ValueError, MemoryError) as error:
        raise UsageError(f"{path} holds no results of a study: {reason_of(error)}") from error


def _unpacked_lines(file: IO[bytes], size: int) -> Iterator[bytes]:
    """Yield the lines of a compressed file of ``size`` bytes.

    Raises:
        ValueError: If a line, or all lines together, are larger than any file of ``pack`` has them.
    """
    most = min(MAX_TOTAL_BYTES, MAX_BYTES + MAX_RATIO * size)
    decompressor = lzma.LZMADecompressor(memlimit=DECOMPRESSOR_BYTES)
    rest = b""
    total = 0
    while not decompressor.eof:
        content = file.read(CHUNK) if decompressor.needs_input else b""
        if decompressor.needs_input and not content:
            raise EOFError("the file was cut off")
        unpacked = decompressor.decompress(content, CHUNK)
        total += len(unpacked)
        if total > most:
            raise ValueError(f"it unpacks to more than {most:,} bytes")
        *lines, rest = (rest + unpacked).split(b"\n")
        yield from lines
        if len(rest) > MAX_BYTES:
            raise ValueError(f"a line has more than {MAX_BYTES:,} bytes")
    if decompressor.unused_data or file.read(1):
        raise ValueError("something follows the compressed lines")
    if rest:
        yield rest


CHUNK = 2**20


def _result(run: StudyRun, metrics: Table, evaluations: Table, test: Answers) -> Result:
    """Return a run; ValueError where a step up to the last evaluation is missing, or columns or the test are wrong."""
    last = int(evaluations.steps[-1]) if len(evaluations) else 0
    if last < 1 or (np.diff(evaluations.steps) <= 0).any() or not np.isfinite(evaluations.column("greedy")).all():
        raise ValueError("evaluations are missing")
    if len(metrics) != last or (metrics.steps != np.arange(1, last + 1)).any():
        raise ValueError(f"metrics of steps up to {last} are missing")
    if any(column.shape != table.steps.shape for table in (metrics, evaluations) for column in table.columns.values()):
        raise ValueError("columns are of different lengths")
    right = np.array(test.right, dtype=np.int64)
    return Result(run, metrics, evaluations, tuple(test.kinds), np.array(test.greedy, dtype=bool), right, test.samples)


def _table(path: Path) -> Table:
    lines = read_metrics(path)
    names = dict.fromkeys(name for line in lines for name in line if name not in (STEP, TIME))
    columns = {name: [line.get(name) for line in lines] for name in (STEP, *names)}
    try:
        return _unpacked(checked_value(Columns, columns))
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error


def _unpacked(columns: Columns) -> Table:
    """Return the table of columns; ValueError for steps that are not whole numbers from 0."""
    steps = columns.get(STEP, [])
    if not all(step is not None and step.is_integer() and 0 <= step <= 2**53 for step in steps):
        raise ValueError("steps are no numbers from 0")
    rest = {name: _numbers(values) for name, values in columns.items() if name != STEP}
    return Table(np.array(steps, dtype=np.int64), rest)


def _columns(table: Table, names: Collection[str] | None = None) -> dict[str, list[float | None]]:
    """Return the columns that have a number, with ``names`` these alone; "x/" stands for all that begin so."""
    asked = table.columns
    if names is not None:
        beginnings = tuple(name for name in names if name.endswith("/"))
        asked = {name: each for name, each in asked.items() if name in names or name.startswith(beginnings)}
    kept = {name: values for name, values in asked.items() if name not in LEFT_OUT and np.isfinite(values).any()}
    return {STEP: table.steps.tolist()} | {name: [_rounded(value) for value in kept[name]] for name in sorted(kept)}


def _rounded(value: float) -> float | None:
    return float(f"{value:.{DIGITS}g}") if np.isfinite(value) else None


def _numbers(values: Sequence[float | None]) -> Floats:
    found = np.array(values, dtype=np.float64)
    return np.where(np.isfinite(found), found, np.nan)
