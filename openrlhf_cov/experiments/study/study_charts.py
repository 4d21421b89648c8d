"""The charts of a study: accuracies, their differences, curves by step and pass@k (pure)."""

import math
from collections.abc import Sequence

import numpy as np

from openrlhf_cov.analysis.pages.chart import STEPS, Axis, Chart, Look, Mark, Panel, bands, look_of
from openrlhf_cov.experiments.study.answer import Runs, shown
from openrlhf_cov.experiments.study.seed_estimates import SHARE, mean_over_seeds
from openrlhf_cov.experiments.study.table_rows import PASS_AT, MethodRow, passed

# Chart -> its title, the number of the evaluations, and whether this number is a share.
CURVES = {
    "accuracy": ("Greedy accuracy on the validation split", "greedy", True),
    "first_token_entropy": (
        "Entropy of the first token of a response, frozen prompts (nats)",
        "entropy/position_0",
        False,
    ),
    "entropy": ("Entropy of all tokens, frozen prompts (nats)", "entropy", False),
}
# With more methods, the curves could not be distinguished.
MAX_CURVES = 12


def charts(rows: Sequence[MethodRow], runs: Runs) -> list[Chart]:
    """Return the charts of a study: accuracies, their differences from the first method, and curves.

    Args:
        rows: Rows of the main table. Methods without a run are left out, and with more than ``MAX_CURVES`` methods no
            curves are drawn.
        runs: Runs of the same methods.

    Returns:
        The charts; an empty list without a finished run.
    """
    known = [row for row in rows if row.seeds]
    if not known:
        return []
    made = [_dots("test", "Accuracy in the test, mean and 95 % interval over seeds", known, "numbers")]
    if len(known) > 1:
        made.append(
            _dots("differences", f"The same minus {rows[0].method}, on the same seeds", known[1:], "differences")
        )
    named = {row.method: runs[row.method] for row in known}
    if len(named) <= MAX_CURVES:
        made += [_curve(name, *what, named) for name, what in CURVES.items()]
        made.append(_pass_at_k(named))
    return made


def _dots(name: str, title: str, rows: Sequence[MethodRow], field: str) -> Chart:
    """Return a chart with a dot and its interval for each method, the first method on top."""
    found = [getattr(row, field)["accuracy"] for row in rows]
    places = list(range(len(rows), 0, -1))
    middle, low, high = ([getattr(each, end) for each in found] for end in ("estimate", "low", "high"))
    low, high = ([m if np.isnan(e) else e for e, m in zip(ends, middle, strict=True)] for ends in (low, high))
    is_difference = field == "differences"
    x = Axis("accuracy", zero=is_difference, possible=(-1.0, 1.0) if is_difference else (0.0, 1.0))
    # Student's t interval of a mean may reach beyond what an accuracy can be.
    low, high = np.clip([low, high], *x.possible)
    texts = [f"{row.method}: {shown(each)}, {len(row.seeds)} seeds" for row, each in zip(rows, found, strict=True)]
    mark = Mark(
        "dots", Look("#0072b2", marker="circle", size=9.0), middle, places, low=low, high=high, whiskers="x",
        hover="%{customdata}<extra></extra>", texts=texts,
    )  # fmt: skip
    y = Axis(ticks=dict(zip(places, (row.method for row in rows), strict=True)), ends=(0.4, len(rows) + 0.6))
    panel = Panel((mark,), x, y)
    height = 110 + 34 * len(rows)
    return Chart(name, title, (panel,), "; ".join(texts), height=height, row=1.0 + 0.3 * len(rows))


def _curve(name: str, title: str, number: str, share: bool, runs: Runs) -> Chart:
    """Return the chart of the means over seeds at each common step, with the 95 % interval of the first method."""
    marks: list[Mark] = []
    for place, (method, of_method) in enumerate(runs.items()):
        evaluations = [result.evaluations for result in of_method.values()]
        # A run that stopped early has fewer evaluations than the others: take the steps that all runs have.
        steps = np.array(sorted(set.intersection(*(set(each.steps.tolist()) for each in evaluations))))
        values = np.array([each.column(number)[np.isin(each.steps, steps)] for each in evaluations])
        found = [mean_over_seeds(column, SHARE if share else (0.0, math.inf)) for column in values.T]
        if place == 0 and len(of_method) > 1:
            low, high = ([getattr(each, end) for each in found] for end in ("low", "high"))
            marks += bands(steps, low, high, Look(look_of(0).color, opacity=0.15), group=method)
        hover = f"{method}, step %{{x}}: %{{y:.3f}}<extra></extra>"
        marks.append(Mark("line", look_of(place), steps, [each.estimate for each in found], name=method, hover=hover))
    note = f"Means over the seeds of each method; the band is the 95 % interval of {next(iter(runs))}."
    panel = Panel(tuple(marks), STEPS, Axis(share=share))
    return Chart(name, title, (panel,), title, note, linked=True, columns=1)


def _pass_at_k(runs: Runs) -> Chart:
    """Return pass@k in the test against k."""
    places = list(range(len(PASS_AT)))
    marks = []
    for place, (method, of_method) in enumerate(runs.items()):
        found = [mean_over_seeds([passed(k)(each) for each in of_method.values()]) for k in PASS_AT]
        hover = f"{method}: %{{y:.3f}}<extra></extra>"
        marks.append(Mark("line", look_of(place), places, [each.estimate for each in found], name=method, hover=hover))
    x = Axis("k", ticks={place: str(k) for place, k in enumerate(PASS_AT)})
    note = "Means over the seeds of each method, unbiased, from all samples of the test."
    return Chart(
        "pass_at_k",
        "pass@k in the test",
        (Panel(tuple(marks), x, Axis(share=True)),),
        note,
        note,
        columns=1,
    )
