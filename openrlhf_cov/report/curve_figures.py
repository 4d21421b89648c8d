"""Pictures of one column per panel, with a line for each run."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from openrlhf_cov.report.contents import Contents
from openrlhf_cov.report.curves import PROGRESS, SELECTION, CurveFigure, Panel
from openrlhf_cov.report.series import Series
from openrlhf_cov.report.style import (
    MOST_NAMED,
    LineStyle,
    new_panels,
    percent_axis,
    run_legend,
    run_style,
    steps_axis,
)

FEW_POINTS = 60
"""A curve of no more points has a marker at each."""
MARKERS = 8
"""Markers of a longer curve."""


def curve_figure(contents: Contents, figure: CurveFigure) -> Figure | str:
    """The figure, or why there is none. Panels without a value are left out."""
    drawn = [(panel, curves) for panel in figure.panels if any(curves := panel_curves(contents, panel))]
    if figure is PROGRESS and contents.options.metric not in PROGRESS.columns:
        drawn += _metric_panel(contents)
    if not drawn:
        return f"no run has {' or '.join(figure.columns)}"
    if figure is SELECTION and not _any_selected(contents):
        return "no token was selected in any run"
    picture, panels = new_panels(len(drawn), title=figure.title)
    for axes, (panel, curves) in zip(panels, drawn, strict=True):
        for place, curve in reversed(list(enumerate(curves))):  # the first run on top
            if curve is not None:
                draw_curve(axes, curve, run_style(place), thin=place >= MOST_NAMED)
        axes.set_title(panel.axis)
        steps_axis(axes)
        if panel.share:
            percent_axis(axes)
    run_legend(picture, [run.name for run in contents.runs])
    return picture


def panel_curves(contents: Contents, panel: Panel) -> list[Series | None]:
    """The curve of each run, None where it has none."""
    return [run.series.get(panel.column) for run in contents.runs]


def draw_curve(axes: Axes, curve: Series, style: LineStyle, *, thin: bool = False) -> None:
    """The running mean as a line, over the values in a pale shade where they are not the same."""
    if thin:
        axes.plot(curve.steps, curve.mean, color=style.color, linewidth=0.7)
        return
    if curve.window > 1:
        axes.plot(curve.steps, curve.values, color=style.color, linewidth=0.6, alpha=0.3)
    every = 1 if len(curve) <= FEW_POINTS else len(curve) // MARKERS
    axes.plot(
        curve.steps,
        curve.mean,
        color=style.color,
        linestyle=style.dashes,
        marker=style.marker,
        markevery=every,
        markersize=3 if len(curve) <= FEW_POINTS else 4.5,
    )


def _metric_panel(contents: Contents) -> list[tuple[Panel, Sequence[Series | None]]]:
    metric = contents.options.metric
    curves = [run.evaluations.get(metric) for run in contents.runs]
    return [(Panel(metric, metric), curves)] if any(curves) else []


def _any_selected(contents: Contents) -> bool:
    curves = [run.series.get(SELECTION.panels[0].column) for run in contents.runs]
    return any(curve is not None and (curve.values > 0).any() for curve in curves)
