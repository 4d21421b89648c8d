"""The charts of a report, for its pictures and for its page (pure). A text in the place of a chart says why not."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from openrlhf_cov.analysis.pages.chart import (
    FAINT,
    Axis,
    Chart,
    Look,
    Mark,
    Panel,
    bands,
    color_of,
    look_of,
    short_names,
    shortened,
)
from openrlhf_cov.analysis.report.contents import Contents, RunReport
from openrlhf_cov.analysis.report.curves import (
    BAND_CURVES,
    PROGRESS,
    SELECTION,
    Curve,
    CurveFigure,
    figures_of,
)
from openrlhf_cov.analysis.report.run_charts import (
    EXP_H,
    SOLID,
    accuracy_panels,
    bands_panels,
    curve,
    fall_panels,
    law_panels,
    phase_panels,
    running_means,
    theory_panels,
    whisker,
)
from openrlhf_cov.analysis.report.series import spread_out
from openrlhf_cov.analysis.report.words import share, size_text
from openrlhf_cov.analysis.theory import GROUP_COVARIANCE
from openrlhf_cov.utils.estimates import LEVEL

MAX_RAW = 4
"""Runs up to which single values are drawn behind their running mean."""
TOGETHER = 5
"""Runs up to which one label has the values of all at a step."""
MAX_PANELS = 9
"""Of a picture with panels for each run."""
MAX_ROWS = 40
"""Runs of the picture of coefficients."""
DOTS = 300
"""Of a run beside those of others."""
COEFFICIENTS = {"a": "a", "b": "b", "ceiling": "ceiling, −a + b"}


def run_key(place: int) -> str:
    """Legend group of the run at this place, in every chart."""
    return f"run{place}"


def labels(contents: Contents) -> list[str]:
    return short_names([run.name for run in contents.runs])


def curve_chart(contents: Contents, figure: CurveFigure) -> Chart | str:
    """A panel for each column that any run has values of, a line per run in each."""
    runs, names = contents.runs, labels(contents)
    wanted = figure.panels_of(column for run in runs for column in run.series)
    if figure is PROGRESS and contents.options.metric not in figure.columns:
        wanted += (Curve(contents.options.metric, shortened(contents.options.metric)),)
    found = [(panel, [run.series.get(panel.column, run.evaluations.get(panel.column)) for run in runs])
             for panel in wanted]  # fmt: skip
    found = [(panel, curves) for panel, curves in found if any(curves)]
    if not found:
        return f"no run has {' or '.join(figure.columns)}"
    selected = [run.series[SELECTION.columns[0]].values for run in runs if SELECTION.columns[0] in run.series]
    if figure is SELECTION and not any((values > 0).any() for values in selected):
        return "no token was selected in any run"
    raw, together = len(runs) <= MAX_RAW, 1 < len(runs) <= TOGETHER
    panels = []
    for panel, curves in found:
        marks = [
            mark
            for place, series in enumerate(curves)
            if series is not None
            for mark in curve(
                series, names[place], run_key(place), look_of(place), raw, "%{y:.4~g}" if together else ""
            )
        ]
        panels.append(Panel(tuple(marks), y=Axis(share=panel.share), title=panel.label))
    zoom = "With a mouse, drag across to zoom: all charts by step follow. A double-click goes back."
    words = [running_means([panel for panel, _ in found], runs, raw), zoom if figure is PROGRESS else ""]
    return Chart(
        name=figure.name,
        title=figure.title,
        panels=tuple(panels),
        description=f"{figure.title} by global step, {len(runs)} runs: {', '.join(p.label for p, _ in found)}.",
        note=" ".join(filter(None, words)),
        linked=True,
        together=together,
        wide=figure is PROGRESS,
    )


def law_of_all(contents: Contents) -> Chart | str:
    """R against exp(H) of all runs, with the line of each run that follows the law, down to its ceiling."""
    metric, names, marks = contents.options.metric, labels(contents), []
    for place, run in enumerate(contents.runs):
        points, law, style = run.law.points, run.law, {"name": names[place], "group": run_key(place)}
        if not len(points):
            continue
        few = spread_out(len(points), DOTS)
        at, look = np.exp(points.entropy[few]), look_of(place, opacity=0.45)
        hover = "step %{customdata}: exp(H) %{x:.4~g}, R %{y:.4~g}"
        marks.append(
            Mark("dots", look, at, points.reward[few], hover=hover, texts=points.steps[few].tolist(), **style)
        )
        if law.line is not None and law.result.verdict.applies:
            look = look_of(place, marker="", width=2.5)
            hover = "line at exp(H) %{x:.4~g}: R %{y:.4~g}"
            marks.append(Mark("line", look, law.line.exp_entropy, law.line.reward, group=run_key(place), hover=hover))
    if not marks:
        return _no_law(contents)
    applies = sum(run.law.result.verdict.applies for run in contents.runs)
    return Chart(
        "law_of_all",
        "The law, all runs",
        (Panel(tuple(marks), EXP_H, Axis(shortened(metric))),),
        f"{metric} against exp(H) of {len(contents.runs)} runs; {applies} have a fitted line.",
        "Training goes from right to left. A line ends at exp(H) = 1, where no entropy is left: its ceiling. "
        "Runs to which the law does not apply have dots only.",
        wide=True,
        height=400,
    )


def _no_law(contents: Contents) -> str:
    return f"no run has entropy and {contents.options.metric} of the same steps"


def evaluation_charts(contents: Contents) -> list[Chart]:
    """A chart for each number of evaluations, scores before lengths and shares of failures."""
    runs, names = contents.runs, labels(contents)
    columns = list(dict.fromkeys(name for run in runs for name in run.evaluations))
    columns.sort(key=lambda name: ("avg@" not in name and "pass" not in name and "acc" not in name, name))
    charts = []
    for number_of, column in enumerate(columns):
        marks = [
            mark
            for place, run in enumerate(runs)
            if column in run.evaluations
            for mark in curve(run.evaluations[column], names[place], run_key(place), look_of(place))
        ]
        said = f"{column} by global step, {len(marks)} runs."
        charts.append(Chart(f"evaluation{number_of}", column, (Panel(tuple(marks)),), said, linked=True))
    return charts


def size_chart(contents: Contents) -> Chart | str:
    """a, b and the ceiling against the size of the model, with the trend and where it leads."""
    section = contents.sizes
    if section is None:
        return "no run has a size (--size RUN=N)"
    if section.trend is None:
        return section.reason
    fits = {run.name: run.law.result.fit for run in contents.runs}
    sizes, wanted, panels = [each.size for each in section.grid], section.extrapolation, []
    for row, (name, title) in enumerate(COEFFICIENTS.items()):
        trend, color = [getattr(each, name) for each in section.grid], look_of(row, **SOLID)
        marks = bands(sizes, [each.low for each in trend], [each.high for each in trend], replace(color, opacity=0.2))
        middle, hover = [each.estimate for each in trend], "trend at %{customdata}: %{y:.4~g}"
        marks.append(Mark("line", color, sizes, middle, hover=hover, texts=list(map(size_text, sizes))))
        for run, size in zip(section.names, section.sizes, strict=True):
            look = look_of(row, size=8, hollow=run in section.unfit)
            said = f"{shortened(run)}, {size_text(size)}"
            marks.append(whisker(look, [size], getattr(fits[run], name), said))
        if wanted is not None:
            look, said = look_of(row, marker="star", size=11), f"extrapolated to {size_text(wanted.size)}"
            marks.append(whisker(look, [wanted.size], getattr(wanted, name), said))
        ticks = {tick: size_text(tick) for tick in size_ticks(min(sizes), max(sizes))}
        panels.append(Panel(tuple(marks), Axis("non-embedding parameters", log=True, ticks=ticks), title=title))
    note = f"Bands: where one more model of that size would lie, {share(LEVEL)}; none with two sizes."
    note += " Hollow: the law does not apply to that run." if section.unfit else ""
    words = f"a, b and ceiling of {len(section.names)} runs against model size, with their trend."
    return Chart("model_size", "Coefficients against model size", tuple(panels), words, note, wide=True)


def size_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten between two sizes, both included; the ends where there are fewer than two."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    inside = [tick for tick in ticks if low <= tick <= high]
    return inside if len(inside) > 1 else [low, high]


def coefficients_chart(contents: Contents) -> Chart | str:
    """a, b and ceiling of every run with their intervals; hollow and grey where the law does not apply."""
    found = [run for run in contents.runs if run.law.result.fit]
    runs = found[:MAX_ROWS]
    if len(runs) < 2:
        return "fewer than two runs have a fit"
    names = [name + ("" if run.law.result.verdict.applies else "\n(does not apply)")
             for name, run in zip(short_names([run.name for run in runs]), runs, strict=True)]  # fmt: skip
    rows, panels = Axis(ticks=dict(enumerate(names)), ends=(len(runs) - 0.5, -0.5)), []
    for name in COEFFICIENTS:
        marks = []
        for row, run in enumerate(runs):
            applies, interval = run.law.result.verdict.applies, getattr(run.law.result.fit, name)
            look = Look(color_of(0) if applies else FAINT, hollow=not applies, size=6)
            x, low, high = (np.array([getattr(interval, each)]) for each in ("estimate", "low", "high"))
            marks.append(Mark("dots", look, x, [row], low, high, whiskers="x"))
        panels.append(Panel(tuple(marks), Axis(), rows, title=name))
    title = _part_of("Coefficients of the law", len(runs), len(found))
    return Chart("coefficients", title, tuple(panels), shared="y", row=1.1 + 0.32 * len(runs))


# --- pictures


def runs_beside(
    contents: Contents,
    name: str,
    title: str,
    panels_of: Callable[[RunReport], list[Panel]],
    why: str,
    shared: str = "",
) -> Chart | str:
    """A picture with the panels of each run, as many runs as there is room for; a shared y axis has all their ends."""
    found = [(label, panels) for label, run in zip(labels(contents), contents.runs, strict=True)
             if (panels := panels_of(run))]  # fmt: skip
    if not found:
        return why
    most = max(len(panels) for _, panels in found)
    shown = found[: MAX_PANELS // most]
    panels = [
        replace(panel, title=", ".join(filter(None, [label, panel.title]))) for label, each in shown for panel in each
    ]
    if "y" in shared and all(panel.y.ends for panel in panels):
        low, high = min(panel.y.ends[0] for panel in panels), max(panel.y.ends[1] for panel in panels)
        panels = [replace(panel, y=replace(panel.y, ends=(low, high))) for panel in panels]
    title = _part_of(title, len(shown), len(found))
    return Chart(name, title, tuple(panels), columns=3 if most == 1 else most, shared=shared)


def _part_of(title: str, shown: int, found: int) -> str:
    return title if shown == found else f"{title} ({shown} of {found} runs)"


def pictures(contents: Contents) -> dict[str, Chart | str]:
    """By the name of the file: what there is to draw, or why there is nothing."""
    figures = figures_of(column for run in contents.runs for column in run.series)
    curves = {figure.name: curve_chart(contents, figure) for figure in figures}
    law, lacks = (
        f"The entropy law R = −a exp(H) + b, R: {shortened(contents.options.metric)}",
        "no run has {} and the like".format,
    )
    no_theory = contents.runs[0].theory[0].reason
    how_of = {
        "law": (law, partial(law_panels, options=contents.options), _no_law(contents), "xy"),
        "covariance_bands": ("Covariance of the tokens, by band", bands_panels, lacks(BAND_CURVES[0].column), "y"),
        "entropy_change": ("Change of entropy against its prediction", theory_panels, no_theory, ""),
        "entropy_fall": ("Fall of entropy and covariance", fall_panels, lacks(GROUP_COVARIANCE), ""),
        "timing": ("Time of a step, by phase", phase_panels, "no run has the time of its phases", "y"),
        "covariance_by_accuracy": (
            *("Covariance by the accuracy of the prompt", accuracy_panels, lacks("cov/group_weighted_acc_low"), ""),
        ),
    }
    of_runs = {name: runs_beside(contents, name, *how) for name, how in how_of.items()}
    return curves | of_runs | {"coefficients": coefficients_chart(contents), "model_size": size_chart(contents)}


def overview_charts(contents: Contents) -> tuple[list[Chart], list[str]]:
    """Charts of the page with a line per run, and the titles of those that no run has values for.

    Of a single run the law is among its own.
    """
    figures = figures_of(column for run in contents.runs for column in run.series)
    curves = {figure.title: curve_chart(contents, figure) for figure in figures}
    across = [law_of_all(contents) if len(contents.runs) > 1 else "", size_chart(contents)]
    first, *others = curves.values()
    charts = [chart for chart in (first, *across, *others) if isinstance(chart, Chart)]
    return charts, [title for title, chart in curves.items() if isinstance(chart, str)]
