"""Comparisons of evaluations: read the runs from their folders, and describe the result for a terminal."""

from collections.abc import Sequence
from pathlib import Path

from openrlhf_cov.errors import UsageError
from openrlhf_cov.evaluation.pairing import ALPHA, BenchmarkComparison, ComparedRun, Comparison, RunScore
from openrlhf_cov.evaluation.samples import read_samples
from openrlhf_cov.evaluation.tables import percent, percent_interval
from openrlhf_cov.utils.estimates import LEVEL
from openrlhf_cov.utils.terminal import printable
from openrlhf_cov.utils.text_table import NONE, Row, aligned


def read_compared_runs(folders: Sequence[Path], grader: str) -> list[ComparedRun]:
    """Return the runs in these folders, named after their folders, or by their paths where two names are equal.

    Args:
        folders: Folders of evaluations, the baseline first.
        grader: ``strict``, or ``published`` for the grades of the published grader.

    Raises:
        UsageError: A folder is given twice, is no evaluation, or lacks the grades of this grader.
    """
    paths = [folder.resolve() for folder in folders]
    for folder, path in zip(folders, paths, strict=True):
        if paths.count(path) > 1:
            raise UsageError(f"{folder} is given twice")
    names = [path.name for path in paths]
    runs = []
    for path, folder in zip(paths, folders, strict=True):
        settings, samples = read_samples(folder, grader)
        name = path.name if names.count(path.name) == 1 else str(path)
        runs.append(ComparedRun(name=name, settings=settings, samples=samples))
    return runs


def comparison_table(comparison: Comparison) -> str:
    """Return the comparison for a terminal: one line per benchmark and run, then what the columns mean."""
    has_differences = len(comparison.runs) > 1
    score = "avg@K" if comparison.metric == "avg" else comparison.metric
    head = ("benchmark", "run", "problems", "K", score, f"{LEVEL:.0%} interval")
    if has_differences:
        head += ("difference", f"{LEVEL:.0%} interval", "p", "p (Holm)", "")
    rows = [row for each in comparison.benchmarks for row in _rows(each, has_differences)]
    lines = [printable(f"{name}: {model}") for name, model in zip(comparison.runs, comparison.models, strict=True)]
    if comparison.grader != "strict":
        lines.append(f"graded by: {comparison.grader}")
    lines += ["", *aligned([head, *rows], left=(0, 1, 10)), ""]
    if has_differences:
        first = comparison.runs[0]
        count = sum(score.difference is not None for each in comparison.benchmarks for score in each.scores)
        if count == 0:
            lines += [f"Scores in percent. Nothing can be compared with {first}.", ""]
        else:
            lines += [
                f"Scores in percent. difference: points more than {first}, paired bootstrap over the problems.",
                f"noise: the interval contains 0, or p exceeds {ALPHA:g} after Holm's correction for the {count} "
                "differences.",
                "",
            ]
    return "\n".join([*lines, *map(printable, comparison.notes)]).rstrip()


def _rows(benchmark: BenchmarkComparison, has_differences: bool) -> list[Row]:
    rows = [_run_row(score, has_differences) for score in benchmark.scores]
    width = len(rows[0])
    for method, score in benchmark.published.items():
        row = (f"paper {method}", "", "", percent(score), "not given")
        rows.append(row + ("",) * (width - len(row)))
    return [(benchmark.name if number == 0 else "", *row) for number, row in enumerate(rows)]


def _run_row(score: RunScore, has_differences: bool) -> Row:
    shown = (percent(score.score.estimate), percent_interval(score.score)) if score.score else (NONE, NONE)
    row = (score.run, f"{score.problems:,}", str(score.samples), *shown)
    if not has_differences:
        return row
    if score.difference is None:
        return (*row, "", "", "", "", score.reason or "")
    difference = score.difference
    interval = difference.interval
    if difference.noise:
        verdict = "noise"
    elif interval.estimate > 0:
        verdict = "higher"
    else:
        verdict = "lower"
    bounds = f"{_points(interval.low)} to {_points(interval.high)}"
    p_values = ("<0.001" if p < 0.001 else f"{p:.3f}" for p in (difference.p_value, difference.p_holm))
    return (*row, _points(interval.estimate), bounds, *p_values, verdict)


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"
