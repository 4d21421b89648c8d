"""The charts of a report that show all its runs, and the charts of its files; None: nothing to show (pure)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from openrlhf_cov.analysis.law import LawFit
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
    whisker,
)
from openrlhf_cov.analysis.report.contents import (
    TRAINING_METRICS,
    Contents,
    Extrapolation,
    RunReport,
    evaluation_columns,
    is_part,
    is_score,
)
from openrlhf_cov.analysis.report.curves import (
    CURVE_FIGURES,
    METHOD_FIGURES,
    OVERVIEW,
    PROGRESS,
    SELECTED_SHARE,
    Curve,
    CurveFigure,
    spread_out,
)
from openrlhf_cov.analysis.report.run_charts import (
    EXP_H,
    LAW_HEIGHT,
    accuracy_panels,
    bands_panels,
    curve,
    drawn_only,
    fall_panels,
    law_panels,
    phase_panels,
    running_means,
    theory_panels,
)
from openrlhf_cov.analysis.report.words import share, size_text
from openrlhf_cov.utils.estimates import LEVEL, Interval

# With more runs, only running means are drawn, without the values behind them.
MAX_RAW = 4
# With more runs, each line has its own label instead of one label for all lines at a step.
TOGETHER = 5
# Panels of a picture that has panels for each run.
MAX_PANELS = 9
# Runs in the picture of coefficients.
MAX_ROWS = 40
# Dots of a run in a chart with other runs.
DOTS = 300
# Panels of the scores of evaluations; the page has a selection of the other numbers.
MAX_SCORES = 4
COEFFICIENTS = {"a": "a", "b": "b", "ceiling": "ceiling, −a + b"}
ZOOM = "With a mouse, drag across a chart to zoom; all charts by step follow. Double-click to zoom out."


# --- curves by step


@dataclass(frozen=True)
class PageCharts:
    """The charts of a page with a line per run, by section; ``numbers`` has one chart per number of evaluations."""

    overview: Chart | None
    method: list[Chart]
    scores: Chart | None
    numbers: list[Chart]
    law: list[Chart]


def page_charts(contents: Contents) -> PageCharts:
    """Return the charts of a page with a line per run; the law of a single run is among the charts of the run."""
    overview = curve_chart(contents, OVERVIEW)
    method = [curve_chart(contents, figure, without=OVERVIEW.columns) for figure in METHOD_FIGURES]
    law = [law_of_all(contents) if len(contents.runs) > 1 else None, size_chart(contents)]
    scores, numbers = evaluation_charts(contents)
    return PageCharts(overview, drawn_only(method), scores, numbers, drawn_only(law))


def run_key(place: int) -> str:
    """Return the legend group of the run at this place, which is the same in every chart."""
    return f"run{place}"


def labels(contents: Contents) -> list[str]:
    """Return the names of the runs as legends show them."""
    return short_names([run.name for run in contents.runs])


def curve_chart(contents: Contents, figure: CurveFigure, *, without: Sequence[str] = ()) -> Chart | None:
    """Return a chart with a panel for each column that a run has values of, and a line per run in each panel.

    Args:
        contents: The runs.
        figure: The columns.
        without: Columns of the figure that are left out.
    """
    runs = contents.runs
    wanted = figure.panels_of(column for run in runs for column in run.series)
    if figure in (OVERVIEW, PROGRESS) and contents.options.metric not in figure.columns:
        wanted += (Curve(contents.options.metric, shortened(contents.options.metric)),)
    # A run without a method logs zeros for its selection; empty panels about it would say nothing.
    selects = any((run.series[SELECTED_SHARE].values > 0).any() for run in runs if SELECTED_SHARE in run.series)
    selection = () if selects else (SELECTED_SHARE, "cov/selected_abs_log_ratio", "cov/selected_ppo_kl")
    wanted = tuple(panel for panel in wanted if panel.column not in (*without, *selection))
    panels = [_run_panel(contents, panel) for panel in wanted]
    drawn = [panel for panel in panels if panel.marks]
    if not drawn:
        return None
    note = running_means(wanted, runs, raw=len(runs) <= MAX_RAW)
    return Chart(
        name=figure.name,
        title=figure.title,
        panels=tuple(drawn),
        description=f"{figure.title} by global step of {len(runs)} runs: {', '.join(panel.title for panel in drawn)}.",
        note=" ".join(filter(None, [note, ZOOM if figure is OVERVIEW else ""])),
        linked=True,
        together=1 < len(runs) <= TOGETHER,
    )


def _run_panel(contents: Contents, panel: Curve) -> Panel:
    """Return a panel with a line per run; it has no marks if no run has values."""
    runs = contents.runs
    names = labels(contents)
    column = panel.column
    is_evaluation = any(column in run.evaluations for run in runs)
    # Beyond MAX_RAW runs the faint values would hide the means. Evaluations have few values, so they are always shown.
    raw = len(runs) <= MAX_RAW or is_evaluation
    # Where one box lists all runs at a step, the box names the step once.
    hover = "%{y:.4~g}" if 1 < len(runs) <= TOGETHER else ""
    marks: list[Mark] = []
    for place, run in enumerate(runs):
        series = run.series.get(column, run.evaluations.get(column))
        if series is not None:
            marks += curve(series, names[place], run_key(place), look_of(place), raw=raw, hover=hover)
    can_be_share = column in TRAINING_METRICS or (is_evaluation and is_score(column))
    return Panel(tuple(marks), y=_curve_axis(marks, panel.share, can_be_share), title=panel.label)


def _curve_axis(marks: Sequence[Mark], is_share: bool, can_be_share: bool) -> Axis:
    """Return the y axis of curves, which ends where values are impossible.

    Values that are never negative have an axis that ends at 0. A score that stays within 0 and 1 is a share of correct
    responses, so its axis ends at 1.
    """
    values = Panel(tuple(marks)).values("y")
    if is_share or not len(values) or values.min() < 0:
        return Axis(share=is_share)
    return Axis(possible=(0.0, 1.0 if can_be_share and values.max() <= 1 else math.inf))


def evaluation_charts(contents: Contents) -> tuple[Chart | None, list[Chart]]:
    """Return a chart of the main scores, and a chart for each of the other numbers of the evaluations."""
    columns = evaluation_columns(contents.runs)
    if not columns:
        return None, []
    together = 1 < len(contents.runs) <= TOGETHER
    found = [column for column in columns if is_score(column)]
    overall = [column for column in found if not is_part(column, columns)]
    main = (overall or found or columns[:1])[:MAX_SCORES]
    panels = tuple(_run_panel(contents, Curve(column, column)) for column in main)
    words = f"Scores of evaluations by global step: {', '.join(main)}."
    scores = Chart("scores", "Scores", panels, words, linked=True, together=together)
    others = [
        Chart(
            f"evaluation{place}",
            column,
            (replace(_run_panel(contents, Curve(column, column)), title=""),),
            f"{column} by global step.",
            linked=True,
            together=together,
        )
        for place, column in enumerate(columns)
        if column not in main
    ]
    return scores, others


# --- the law across runs


def law_of_all(contents: Contents) -> Chart | None:
    """Return R against exp(H) of all runs, with the line of each run that the law describes, down to its ceiling."""
    metric = contents.options.metric
    names = labels(contents)
    marks = []
    for place, run in enumerate(contents.runs):
        points = run.law.points
        line = run.law.line
        if not len(points):
            continue
        # A browser draws some hundred dots of each run without delay.
        few = spread_out(len(points), DOTS)
        marks.append(
            Mark(
                "dots",
                look_of(place, opacity=0.45),
                np.exp(points.entropy[few]),
                points.reward[few],
                name=names[place],
                group=run_key(place),
                hover="step %{customdata}: exp(H) %{x:.4~g}, R %{y:.4~g}",
                texts=points.steps[few].tolist(),
            )
        )
        # A line of a run that the law does not describe would invite reading off a ceiling.
        if line is not None and run.law.accepted:
            look = look_of(place, marker="", width=2.5)
            hover = "line at exp(H) %{x:.4~g}: R %{y:.4~g}"
            marks.append(Mark("line", look, line.exp_entropy, line.reward, group=run_key(place), hover=hover))
    if not marks:
        return None
    applies = sum(run.law.accepted is not None for run in contents.runs)
    return Chart(
        "law_of_all",
        "Reward against entropy, all runs",
        (Panel(tuple(marks), EXP_H, Axis(shortened(metric))),),
        f"{metric} against exp(H) of {len(contents.runs)} runs; {applies} have a fitted line.",
        "A dot is a step. A line ends at its ceiling, at exp(H) = 1, where no entropy is left. Runs that the law does "
        "not describe have dots only.",
        height=LAW_HEIGHT,
    )


def size_chart(contents: Contents) -> Chart | None:
    """Return a, b and the ceiling against the size of the model, with the trend and its extrapolation."""
    section = contents.sizes
    if section is None or section.trend is None:
        return None
    fits = {run.name: run.law.result.fit for run in contents.runs}
    sizes = [each.size for each in section.grid]
    panels = []
    for row, (name, title) in enumerate(COEFFICIENTS.items()):
        trend = [_coefficient(each, name) for each in section.grid]
        look = look_of(row, dash="solid", marker="")
        area = replace(look, opacity=0.2)
        marks = bands(sizes, [each.low for each in trend], [each.high for each in trend], area)
        hover = "trend at %{customdata}: %{y:.4~g}"
        middle = [each.estimate for each in trend]
        marks.append(Mark("line", look, sizes, middle, hover=hover, texts=list(map(size_text, sizes))))
        for run, size in zip(section.names, section.sizes, strict=True):
            if fit := fits[run]:
                look = look_of(row, size=8, hollow=run in section.unfit)
                said = f"{shortened(run)}, {size_text(size)}"
                marks.append(whisker(look, [size], _coefficient(fit, name), said))
        if wanted := section.extrapolation:
            look = look_of(row, marker="star", size=11)
            said = f"extrapolated to {size_text(wanted.size)}"
            marks.append(whisker(look, [wanted.size], _coefficient(wanted, name), said))
        ticks = {tick: size_text(tick) for tick in size_ticks(min(sizes), max(sizes))}
        panels.append(Panel(tuple(marks), Axis("non-embedding parameters", log=True, ticks=ticks), title=title))
    note = f"Bands are {share(LEVEL)} intervals for one more model of that size; two sizes have no interval."
    note += " Hollow: the law does not describe this run." if section.unfit else ""
    words = f"a, b and ceiling of {len(section.names)} runs against model size, with their trend."
    return Chart("model_size", "Coefficients against model size", tuple(panels), words, note)


def _coefficient(found: Extrapolation | LawFit, name: str) -> Interval:
    return getattr(found, name)


def size_ticks(low: float, high: float) -> list[float]:
    """Return the ticks of an axis of model sizes: 1, 2 and 5 times powers of ten.

    Args:
        low: Lower end of the axis in parameters, above 0.
        high: Upper end of the axis in parameters.

    Returns:
        The ticks within [low, high]; both ends where there are fewer than two of these.
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    inside = [tick for tick in ticks if low <= tick <= high]
    return inside if len(inside) > 1 else [low, high]


def coefficients_chart(contents: Contents) -> Chart | None:
    """Return a, b and the ceiling of every run with a fit; hollow and grey where the law does not apply."""
    found = [(run, run.law.result.fit) for run in contents.runs if run.law.result.fit]
    shown = found[:MAX_ROWS]
    if len(shown) < 2:
        return None
    names = short_names([run.name for run, _ in shown])
    names = [
        name if run.law.accepted else f"{name}\n(does not apply)" for name, (run, _) in zip(names, shown, strict=True)
    ]
    # The axis goes from high to low, so that the first run is at the top.
    rows = Axis(ticks=dict(enumerate(names)), ends=(len(shown) - 0.5, -0.5))
    panels = []
    for name in COEFFICIENTS:
        marks = []
        for row, (run, fit) in enumerate(shown):
            look = Look(color_of(0) if run.law.accepted else FAINT, hollow=not run.law.accepted, size=6)
            value = _coefficient(fit, name)
            marks.append(Mark("dots", look, [value.estimate], [row], [value.low], [value.high], whiskers="x"))
        panels.append(Panel(tuple(marks), Axis(), rows, title=name))
    title = _part_of("Coefficients of the law", len(shown), len(found))
    return Chart("coefficients", title, tuple(panels), shared="y", row=1.1 + 0.32 * len(shown))


# --- files


def pictures(contents: Contents) -> list[Chart]:
    """Return the charts that are written as files."""
    metric = shortened(contents.options.metric)

    def law(run: RunReport) -> list[Panel]:
        return law_panels(run, contents.options)

    beside = [
        runs_beside(contents, "law", f"The entropy law R = −a exp(H) + b, R: {metric}", law, shared="xy"),
        runs_beside(contents, "covariance_bands", "Covariance of the tokens, by band", bands_panels, shared="y"),
        runs_beside(contents, "entropy_change", "Change of entropy against its prediction", theory_panels),
        runs_beside(contents, "entropy_fall", "Drop of entropy and covariance", fall_panels),
        runs_beside(contents, "timing", "Time of a step, by phase", phase_panels, shared="y"),
        runs_beside(contents, "covariance_by_accuracy", "Covariance by the accuracy of the prompt", accuracy_panels),
    ]
    curves = [curve_chart(contents, figure) for figure in CURVE_FIGURES]
    return drawn_only([*curves, *beside, coefficients_chart(contents), size_chart(contents)])


def runs_beside(
    contents: Contents,
    name: str,
    title: str,
    panels_of: Callable[[RunReport], list[Panel]],
    shared: str = "",
) -> Chart | None:
    """Return a picture with the panels of each run, for as many runs as fit; None if no run has a panel.

    Args:
        contents: The runs.
        name: Name of the file.
        title: Title of the picture, which gets the number of runs that are left out.
        panels_of: Returns the panels of a run.
        shared: Axes that all panels have in common: "x", "y", "xy" or none. A shared y axis covers all panels.
    """
    found = [
        (label, panels)
        for label, run in zip(labels(contents), contents.runs, strict=True)
        if (panels := panels_of(run))
    ]
    if not found:
        return None
    most = max(len(panels) for _, panels in found)
    shown = found[: MAX_PANELS // most]
    panels: list[Panel] = []
    for label, of_run in shown:
        for panel in of_run:
            panels.append(replace(panel, title=", ".join(filter(None, [label, panel.title]))))
    # With a shared axis, matplotlib takes the ends of the panel that it draws last.
    ranges = [panel.y.ends for panel in panels if panel.y.ends]
    if "y" in shared and len(ranges) == len(panels):
        both = (min(low for low, _ in ranges), max(high for _, high in ranges))
        panels = [replace(panel, y=replace(panel.y, ends=both)) for panel in panels]
    title = _part_of(title, len(shown), len(found))
    return Chart(name, title, tuple(panels), columns=3 if most == 1 else most, shared=shared)


def _part_of(title: str, shown: int, found: int) -> str:
    return title if shown == found else f"{title} ({shown} of {found} runs)"
