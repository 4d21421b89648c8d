"""Charts of the page with a line per run, as Plotly figures (pure)."""

import math
from collections.abc import Sequence

import numpy as np

from openrlhf_cov.report.contents import Contents, RunReport
from openrlhf_cov.report.curves import CURVE_FIGURES, PROGRESS, SELECTION, CurveFigure
from openrlhf_cov.report.plotly_figure import (
    Chart,
    Json,
    axis_name,
    band,
    color_of,
    curve,
    line_of,
    marker_of,
    numbers,
    panels,
    plain,
    running_means,
    short_names,
    step_numbers,
)
from openrlhf_cov.report.text import size_text
from openrlhf_cov.report.words import share

MOST_RAW = 4
"""Runs up to which single values are drawn behind their running mean."""
HOVER_TOGETHER = 5
"""Runs up to which one label has the values of all at a step."""
DOTS = 300
"""Dots of a run beside those of others."""

NOTES = {
    "reward_and_entropy": "With a mouse, drag across to zoom: all charts by step follow. A double-click goes back."
}


def run_key(place: int) -> str:
    """Legend group of the run at this place, in every chart."""
    return f"run{place}"


def curve_charts(contents: Contents) -> list[Chart]:
    """Reward and entropy, selection, sampling, length: those that any run has logged."""
    charts = [curve_chart(figure, contents.runs) for figure in CURVE_FIGURES]
    return [chart for chart in charts if chart]


def missing_charts(contents: Contents) -> list[str]:
    """Titles of the figures that no run has values for."""
    return [figure.title for figure in CURVE_FIGURES if not curve_chart(figure, contents.runs)]


def curve_chart(figure: CurveFigure, runs: Sequence[RunReport]) -> Chart | None:
    """A panel for each column that any run has values of, a line per run in each; None without any."""
    shown = [panel for panel in figure.panels if _has_values(panel.column, runs)]
    if not shown:
        return None
    names = short_names([run.name for run in runs])
    raw, together = len(runs) <= MOST_RAW, 1 < len(runs) <= HOVER_TOGETHER
    how = {"raw": raw} | ({"hover": "%{y:.4~g}"} if together else {})
    traces, drawn = [], []
    for place, run in enumerate(runs):
        for row, panel in enumerate(shown):
            series = run.series.get(panel.column)
            if series is not None:
                traces += curve(series, names[place], run_key(place), line_of(place), axis_name(row), **how)
                drawn.append(series)
    layout = panels([panel.axis for panel in shown], [panel.share for panel in shown])
    layout["hovermode"] = "x unified" if together else "closest"
    if together:
        layout["xaxis"]["hoverformat"] = ",d"
    words = [running_means(drawn, raw), NOTES.get(figure.name, "")]
    return Chart(
        name=figure.name,
        title=figure.title,
        description=f"{figure.title} by global step, {len(runs)} runs: {', '.join(p.axis for p in shown)}.",
        traces=traces,
        layout=layout,
        note=" ".join(filter(None, words)),
        linked=True,
        wide=figure is PROGRESS,
    )


def _has_values(column: str, runs: Sequence[RunReport]) -> bool:
    """True if any run has logged the column; of selected tokens only if any were selected."""
    found = [run.series[column].values for run in runs if column in run.series]
    if column in SELECTION.columns:
        return any(np.nan_to_num(values).any() for values in found)
    return bool(found)


def law_chart(contents: Contents) -> Chart | None:
    """R against exp(H) of all runs, with the line of each run that follows the law, down to its ceiling."""
    metric = contents.options.metric
    names = short_names([run.name for run in contents.runs])
    traces: list[Json] = []
    for place, run in enumerate(contents.runs):
        points, law = run.law.points, run.law
        if not len(points):
            continue
        few = np.unique(np.linspace(0, len(points) - 1, min(DOTS, len(points))).round().astype(int))
        group = {"type": "scatter", "name": plain(names[place]), "legendgroup": run_key(place)}
        marker = marker_of(place, 5) | {"opacity": 0.45}
        traces.append(
            group
            | {"x": numbers(np.exp(points.entropy[few])), "y": numbers(points.reward[few]), "mode": "markers"}
            | {"customdata": step_numbers(points.steps[few]), "marker": marker}
            | {"hovertemplate": "step %{customdata}: exp(H) %{x:.4~g}, R %{y:.4~g}"}
        )
        if law.line is not None and law.result.verdict.applies:
            line = {"x": numbers(law.line.exp_entropy), "y": numbers(law.line.reward), "line": line_of(place, 2.5)}
            hover = {"hovertemplate": "line at exp(H) %{x:.4~g}: R %{y:.4~g}"}
            traces.append(group | line | hover | {"mode": "lines", "showlegend": False})
    if not traces:
        return None
    layout = panels([plain(metric)], [False], "exp(H), H the mean token entropy in nats")
    layout |= {"height": 400, "hovermode": "closest"}
    applies = [run.law.result.verdict.applies for run in contents.runs]
    return Chart(
        name="law_of_all",
        title="The law, all runs",
        description=f"{metric} against exp(H) of {len(contents.runs)} runs; {sum(applies)} have a fitted line.",
        traces=traces,
        layout=layout,
        note="Training goes from right to left. A line ends at exp(H) = 1, where no entropy is left: its ceiling. "
        "Runs to which the law does not apply have dots only.",
        wide=True,
    )


def evaluation_charts(runs: Sequence[RunReport]) -> list[Chart]:
    """A chart for each number of evaluations, scores before lengths and shares of failures."""
    columns = list(dict.fromkeys(name for run in runs for name in run.evaluations))
    columns.sort(key=lambda name: ("avg@" not in name and "pass" not in name and "acc" not in name, name))
    return [_evaluation_chart(f"evaluation{place}", column, runs) for place, column in enumerate(columns)]


def _evaluation_chart(name: str, column: str, runs: Sequence[RunReport]) -> Chart:
    names = short_names([run.name for run in runs])
    traces = []
    for place, run in enumerate(runs):
        series = run.evaluations.get(column)
        if series is not None:
            mode = "lines+markers" if len(series) <= 100 else "lines"
            points = {"x": step_numbers(series.steps), "y": numbers(series.values), "mode": mode}
            style = {"line": line_of(place), "marker": marker_of(place)}
            hover = {"hovertemplate": "step %{x}: %{y:.4~g}", "legendgroup": run_key(place)}
            traces.append({"type": "scatter", "name": plain(names[place])} | points | style | hover)
    return Chart(
        name=name,
        title=column,
        description=f"{column} by global step, {len(traces)} runs.",
        traces=traces,
        layout=panels([""], [False]) | {"hovermode": "closest"},
        linked=True,
    )


def size_chart(contents: Contents) -> Chart | None:
    """a, b and the ceiling against the size of the model, with the trend and where it leads; None without a trend."""
    section = contents.sizes
    if section is None or section.trend is None:
        return None
    fits = {run.name: run.law.result.fit for run in contents.runs}
    titles = {"a": "a", "b": "b", "ceiling": "ceiling, −a + b"}
    sizes = [each.size for each in section.grid]
    traces: list[Json] = []
    for row, name in enumerate(titles):
        axis = {"type": "scatter", "yaxis": axis_name(row), "showlegend": False, "name": name}
        trend = [getattr(each, name) for each in section.grid]
        traces += band(sizes, [each.low for each in trend], [each.high for each in trend], color_of(row), axis)
        line = {"x": numbers(sizes), "y": numbers([each.estimate for each in trend]), "line": line_of(row)}
        texts = {"text": [size_text(size) for size in sizes], "hovertemplate": "trend at %{text}: %{y:.4~g}"}
        traces.append(axis | line | texts | {"mode": "lines"})
        values = [getattr(fits[each], name).estimate for each in section.names]
        marker = marker_of(row, 9)
        marker["symbol"] = [marker["symbol"] + ("-open" if each in section.unfit else "") for each in section.names]
        dots = {"x": numbers(section.sizes), "y": numbers(values), "mode": "markers", "marker": marker}
        said = [f"{plain(each)}, {size_text(size)}" for each, size in zip(section.names, section.sizes, strict=True)]
        traces.append(axis | dots | {"text": said, "hovertemplate": "%{text}: %{y:.4~g}<extra></extra>"})
        if section.extrapolation is not None:
            there = getattr(section.extrapolation, name)
            point = {"x": numbers([section.extrapolation.size]), "y": numbers([there.estimate]), "mode": "markers"}
            marker = marker_of(row, 12)
            marker["symbol"] = "star"
            said = f"extrapolated to {size_text(section.extrapolation.size)}: %{{y:.4~g}}"
            traces.append(axis | point | {"marker": marker, "hovertemplate": said})
    layout = panels(list(titles.values()), [False] * len(titles), "non-embedding parameters")
    ticks = size_ticks(min(sizes), max(sizes))
    layout["xaxis"] |= {"type": "log", "tickvals": ticks, "ticktext": [size_text(tick) for tick in ticks]}
    layout["hovermode"] = "closest"
    note = f"Bands: where one more model of that size would lie, {share(contents.options.level)}; none with two sizes."
    note += " Hollow: the law does not apply to that run." if section.unfit else ""
    words = f"a, b and ceiling of {len(section.names)} runs against model size, with their trend."
    return Chart("size", "Coefficients against model size", words, traces, layout, note, wide=True)


def size_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten between two sizes, both included; the ends where there are fewer than two."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    inside = [tick for tick in ticks if low <= tick <= high]
    return inside if len(inside) > 1 else [low, high]
