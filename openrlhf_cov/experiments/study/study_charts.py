"""The charts of a study: accuracies, their differences, curves by step and pass@k (pure)."""

import math
from collections.abc import Sequence

import numpy as np

from openrlhf_cov.analysis.pages.chart import STEPS, Axis, Chart, Look, Mark, Panel, bands, look_of
from openrlhf_cov.experiments.study.answer import Runs, shown
from openrlhf_cov.experiments.study.run_results import Result
from openrlhf_cov.experiments.study.seed_estimates import SHARE, mean_over_seeds
from openrlhf_cov.experiments.study.table_rows import PASS_AT, ArmRow, passed

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
# With more arms, the curves could not be distinguished.
MAX_CURVES = 12


def charts(rows: Sequence[ArmRow], runs: Runs) -> list[Chart]:
    """Return the accuracy of each arm with a run, the differences from the first arm and, for few arms, curves."""
    known = [row for row in rows if row.seeds]
    if not known:
        return []
    made = [_dots("test", "Accuracy in the test, mean and 95 % interval over seeds", known, "numbers")]
    if len(known) > 1:
        made.append(_dots("differences", f"The same minus {rows[0].arm}, on the same seeds", known[1:], "differences"))
    named = {row.arm: runs[row.arm] for row in known}
    if len(named) <= MAX_CURVES:
        made += [_curve(name, *what, named) for name, what in CURVES.items()]
        made.append(_pass_at_k(named))
    return made


def _dots(name: str, title: str, rows: Sequence[ArmRow], field: str) -> Chart:
    """Return a chart with one line per arm, the first arm on top."""
    found = [getattr(row, field)["accuracy"] for row in rows]
    places = list(range(len(rows), 0, -1))
    middle, low, high = ([getattr(each, end) for each in found] for end in ("estimate", "low", "high"))
    low, high = ([m if np.isnan(e) else e for e, m in zip(ends, middle, strict=True)] for ends in (low, high))
    is_difference = field == "differences"
    x = Axis("accuracy", zero=is_difference, possible=(-1.0, 1.0) if is_difference else (0.0, 1.0))
    # Student's t interval of a mean may reach beyond what an accuracy can be.
    low, high = np.clip([low, high], *x.possible)
    texts = [f"{row.arm}: {shown(each)}, {len(row.seeds)} seeds" for row, each in zip(rows, found, strict=True)]
    mark = Mark(
        "dots", Look("#0072b2", marker="circle", size=9.0), middle, places, low=low, high=high, whiskers="x",
        hover="%{customdata}<extra></extra>", texts=texts,
    )  # fmt: skip
    y = Axis(ticks=dict(zip(places, (row.arm for row in rows), strict=True)), ends=(0.4, len(rows) + 0.6))
    panel = Panel((mark,), x, y)
    height = 110 + 34 * len(rows)
    return Chart(name, title, (panel,), "; ".join(texts), height=height, row=1.0 + 0.3 * len(rows))


def _curve(name: str, title: str, number: str, share: bool, runs: Runs) -> Chart:
    """Return the means over seeds at each common step; the band is the 95 % interval of the first arm."""
    marks: list[Mark] = []
    for place, (arm, of_arm) in enumerate(runs.items()):
        steps, values = _together(list(of_arm.values()), number)
        found = [mean_over_seeds(column, SHARE if share else (0.0, math.inf)) for column in values.T]
        if place == 0 and len(of_arm) > 1:
            low, high = ([getattr(each, end) for each in found] for end in ("low", "high"))
            marks += bands(steps, low, high, Look(look_of(0).color, opacity=0.15), group=arm)
        hover = f"{arm}, step %{{x}}: %{{y:.3f}}<extra></extra>"
        marks.append(Mark("line", look_of(place), steps, [each.estimate for each in found], name=arm, hover=hover))
    note = f"Means over the seeds of each arm; the band is the 95 % interval of {next(iter(runs))}."
    panel = Panel(tuple(marks), STEPS, Axis(share=share))
    return Chart(name, title, (panel,), title, note, linked=True, columns=1)


def _together(results: Sequence[Result], number: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps (n,) that all runs have, and their values (runs, n)."""
    steps = sorted(set.intersection(*(set(each.evaluations.steps.tolist()) for each in results)))
    rows = [each.evaluations.column(number)[np.isin(each.evaluations.steps, steps)] for each in results]
    return np.array(steps), np.array(rows)


def _pass_at_k(runs: Runs) -> Chart:
    """Return pass@k in the test against k."""
    places = list(range(len(PASS_AT)))
    marks = []
    for place, (arm, of_arm) in enumerate(runs.items()):
        found = [mean_over_seeds([passed(k)(each) for each in of_arm.values()]) for k in PASS_AT]
        hover = f"{arm}: %{{y:.3f}}<extra></extra>"
        marks.append(Mark("line", look_of(place), places, [each.estimate for each in found], name=arm, hover=hover))
    x = Axis("k", ticks={place: str(k) for place, k in enumerate(PASS_AT)})
    note = "Means over the seeds of each arm, unbiased, from all samples of the test."
    return Chart(
        "pass_at_k",
        "pass@k in the test",
        (Panel(tuple(marks), x, Axis(share=True)),),
        note,
        note,
        columns=1,
    )
