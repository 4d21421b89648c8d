"""Pictures of the coefficients: of all runs beside each other, and against model size."""

import math
from collections.abc import Collection

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from openrlhf_cov.report.contents import Contents, RunReport, SizeSection
from openrlhf_cov.report.style import GREY, LINE_STYLES, new_panels, part_of, run_style, short
from openrlhf_cov.report.text import size_text
from openrlhf_cov.utils.estimates import Interval

NAMES = ("a", "b", "ceiling")
ROW_HEIGHT = 0.32
MOST_ROWS = 40
TICKS_APART = 0.12
"""Of the width of the axis."""
TREND = LINE_STYLES[0].color


def coefficients_figure(contents: Contents) -> Figure | str:
    """a, b and ceiling of every run with their intervals; hollow and grey where the law does not apply."""
    found = [run for run in contents.runs if run.law.result.fit]
    runs = found[:MOST_ROWS]
    if len(runs) < 2:
        return "fewer than two runs have a fit"
    figure, panels = new_panels(
        len(NAMES), title=part_of("Coefficients of the law", len(runs), len(found)), share_y=True
    )
    figure.set_figheight(1.6 + ROW_HEIGHT * len(runs))
    for axes, name in zip(panels, NAMES, strict=True):
        for row, run in enumerate(runs):
            _whisker(axes, row, run, name)
        axes.set_title(name)
        axes.tick_params(labelleft=axes is panels[0])
    panels[0].set_yticks(range(len(runs)), [_label(run) for run in runs])
    panels[0].set_ylim(len(runs) - 0.5, -0.5)
    return figure


def size_figure(contents: Contents) -> Figure | str:
    """a, b and ceiling against the logarithm of size, with the trend; hollow where the law does not apply."""
    sizes = contents.sizes
    if sizes is None:
        return "no run has a size (--size RUN=N)"
    if sizes.trend is None:
        return sizes.reason
    figure, panels = new_panels(len(NAMES), title="Coefficients against model size")
    fits = {run.name: run.law.result.fit for run in contents.runs}
    for axes, name in zip(panels, NAMES, strict=True):
        for place, (run, size) in enumerate(zip(sizes.names, sizes.sizes, strict=True)):
            marker = run_style(place).marker or "o"
            _point(axes, size, getattr(fits[run], name), marker, "black", hollow=run in sizes.unfit)
        _trend(axes, sizes, name)
        axes.set_title(name)
    return figure


def _whisker(axes: Axes, row: int, run: RunReport, name: str) -> None:
    interval, applies = getattr(run.law.result.fit, name), run.law.result.verdict.applies
    color = TREND if applies else GREY
    axes.plot([interval.low, interval.high], [row, row], color=color, linestyle="-" if applies else ":")
    face = color if applies else "white"
    axes.plot([interval.estimate], [row], color=color, marker="o", markersize=5, markerfacecolor=face)


def _label(run: RunReport) -> str:
    return short(run.name) + ("" if run.law.result.verdict.applies else "\n(does not apply)")


def _trend(axes: Axes, sizes: SizeSection, name: str) -> None:
    xs = [place.size for place in sizes.grid]
    values = [getattr(place, name) for place in sizes.grid]
    axes.plot(xs, [value.estimate for value in values], color=TREND)
    if all(math.isfinite(value.low) for value in values):
        axes.fill_between(
            xs, [value.low for value in values], [value.high for value in values], color=TREND, alpha=0.2, linewidth=0
        )
    if sizes.extrapolation is not None:
        _point(axes, sizes.extrapolation.size, getattr(sizes.extrapolation, name), "*", LINE_STYLES[1].color)
    axes.set_xscale("log")
    ticks = _apart({*sizes.sizes, *([sizes.extrapolation.size] if sizes.extrapolation else [])})
    axes.set_xticks(ticks, [size_text(size) for size in ticks])
    axes.minorticks_off()
    axes.set_xlabel("non-embedding parameters")


def _apart(sizes: Collection[float]) -> list[float]:
    """The sizes without those so near to the one before that their labels would touch."""
    nearest = (max(sizes) / min(sizes)) ** TICKS_APART
    ticks: list[float] = []
    for size in sorted(sizes):
        if not ticks or size >= ticks[-1] * nearest:
            ticks.append(size)
    return ticks


def _point(axes: Axes, size: float, interval: Interval, marker: str, color: str, *, hollow: bool = False) -> None:
    if math.isfinite(interval.low):
        axes.plot([size, size], [interval.low, interval.high], color=color, linewidth=1.2, zorder=3)
    face = "white" if hollow else color
    big = marker == "*"
    axes.plot([size], [interval.estimate], color=color, marker=marker, mfc=face, markersize=8 if big else 5, zorder=4)
