"""Pictures with a panel per run: covariance bands, covariance by accuracy, time per phase."""

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from openrlhf_cov.report.contents import Contents, RunReport
from openrlhf_cov.report.curve_figures import draw_curve
from openrlhf_cov.report.curves import ACCURACY_CURVES, BAND_CURVES, OTHER_PHASE, PHASES, Curve
from openrlhf_cov.report.style import (
    DARK_TO_LIGHT,
    LINE_STYLES,
    MOST_PANELS,
    LineStyle,
    legend_below,
    new_panels,
    part_of,
    short,
    steps_axis,
)

BAND_STYLES = tuple(
    LineStyle(color, style.dashes, style.marker) for color, style in zip(DARK_TO_LIGHT, LINE_STYLES, strict=False)
)
"""From the darkest, the top of the covariances, to the lightest, all tokens."""
ACCURACY_STYLES = tuple(LINE_STYLES[place] for place in (1, 0, 2))
PHASE_COLORS = ("#0072B2", "#56B4E9", "#E69F00", "#CC79A7", "#F0E442")
PHASE_HATCHES = ("", "//", "", "..", "")
MARGIN, STALL = 1.05, 1.6
"""Height of the stacks: above the highest, and at most so many times what 95 % of the steps stay below."""
LINEAR_BELOW = 0.1
"""Nearer to 0 the axis of covariances is linear: the mean over all tokens may be negative."""


def bands_figure(contents: Contents) -> Figure | str:
    """Mean covariance of the top shares of the tokens, by step."""

    def finish(axes: Axes, run: RunReport) -> None:
        axes.set_yscale("symlog", linthresh=LINEAR_BELOW)
        axes.set_ylabel("mean covariance")

    return _curves_by_run(contents, "Covariance of the tokens, by band", BAND_CURVES, BAND_STYLES, finish)


def accuracy_figure(contents: Contents) -> Figure | str:
    """Covariance of the responses to hard, medium and easy prompts, by step."""

    def finish(axes: Axes, run: RunReport) -> None:
        axes.axhline(0.0, color="black", linewidth=0.7)
        axes.set_ylabel("covariance of responses")

    title = "Covariance by the accuracy of the prompt"
    return _curves_by_run(contents, title, ACCURACY_CURVES, ACCURACY_STYLES, finish)


def timing_figure(contents: Contents) -> Figure | str:
    """Seconds of a step, stacked by phase."""
    found = [run for run in contents.runs if run.phases]
    runs = found[:MOST_PANELS]
    if not runs:
        return "no run has the time of its phases"
    phases = [
        (phase, color, hatch)
        for phase, color, hatch in zip((*PHASES, OTHER_PHASE), PHASE_COLORS, PHASE_HATCHES, strict=True)
        if any(phase.column in run.phases.seconds and run.phases.seconds[phase.column].any() for run in runs)
    ]
    title = part_of("Time of a step, by phase", len(runs), len(found))
    figure, panels = new_panels(len(runs), title=title, share_y=True)
    height = _height(runs)
    for axes, run in zip(panels, runs, strict=True):
        _stack(axes, run, phases, height)
    panels[0].set_ylim(0, height)
    handles = [
        Patch(facecolor=color, hatch=hatch, edgecolor="white", label=phase.label) for phase, color, hatch in phases
    ]
    legend_below(figure, handles)
    return figure


def _height(runs: Sequence[RunReport]) -> float:
    """Seconds to show: all, unless a few steps (compilation, a stall) are far above the others."""
    totals = np.concatenate([np.sum(list(run.phases.seconds.values()), axis=0) for run in runs])
    return float(min(MARGIN * totals.max(), STALL * np.quantile(totals, 0.95))) or 1.0


def _stack(axes: Axes, run: RunReport, phases: Sequence[tuple[Curve, str, str]], height: float) -> None:
    steps, seconds = run.phases.steps, run.phases.seconds
    floor = np.zeros(len(steps))
    for phase, color, hatch in phases:
        top = floor + seconds.get(phase.column, 0.0)
        axes.fill_between(steps, floor, top, facecolor=color, hatch=hatch, edgecolor="white", linewidth=0.3)
        floor = top
    cut = f"\nup to {floor.max():.3g} s, cut" if floor.max() > height else ""
    axes.set_title(short(run.name) + cut)
    axes.set_ylabel("seconds")
    axes.margins(x=0)
    steps_axis(axes)


def _curves_by_run(
    contents: Contents,
    title: str,
    curves: Sequence[Curve],
    styles: Sequence[LineStyle],
    finish: Callable[[Axes, RunReport], None],
) -> Figure | str:
    found = [run for run in contents.runs if any(curve.column in run.series for curve in curves)]
    runs = found[:MOST_PANELS]
    if not runs:
        return f"no run has {curves[0].column} and the like"
    figure, panels = new_panels(len(runs), title=part_of(title, len(runs), len(found)), share_y=True)
    for axes, run in zip(panels, runs, strict=True):
        for curve, style in zip(curves, styles, strict=False):
            if curve.column in run.series:
                draw_curve(axes, run.series[curve.column], style)
        axes.set_title(short(run.name))
        steps_axis(axes)
        finish(axes, run)
    legend_below(figure, [_handle(curve, style) for curve, style in zip(curves, styles, strict=False)])
    return figure


def _handle(curve: Curve, style: LineStyle) -> Line2D:
    return Line2D(
        [], [], color=style.color, linestyle=style.dashes, marker=style.marker, markersize=5, label=curve.label
    )
