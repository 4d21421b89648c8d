"""The change of entropy against what the theorems predict."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from openrlhf_cov.report.contents import Contents, TheorySection
from openrlhf_cov.report.style import legend_below, new_panels, part_of, short
from openrlhf_cov.report.text import with_interval

MOST_RUNS = 4
"""Runs that have a row of their own."""
CLOUD, TREND = "#56B4E9", "#000000"
SHOWN = (0.005, 0.995)
"""Quantiles between which most of a cloud lies; the axes reach no further than REACH times as far."""
REACH = 1.6
COVARIANCES = {1: "Cov(log π, π A)", 2: "Cov(log π, A)"}


def theory_figure(contents: Contents) -> Figure | str:
    """A row per run, a panel per theorem, or why there is none."""
    found = [run for run in contents.runs if any(section.check for section in run.theory)]
    runs = found[:MOST_RUNS]
    if not runs:
        return contents.runs[0].theory[0].reason
    sections = [(run.name, section) for run in runs for section in run.theory]
    theorems = len(runs[0].theory)
    title = part_of("Change of entropy against its prediction", len(runs), len(found))
    figure, panels = new_panels(len(sections), columns=theorems, title=title)
    for axes, (name, section) in zip(panels, sections, strict=True):
        _draw(axes, section)
        axes.set_title(f"{short(name)}, theorem {section.theorem}\n{_subtitle(section)}")
    handles = [Line2D([], [], color=CLOUD, marker="o", markersize=4, linestyle="none", label="a step")]
    if any(len(section.group_changes) for _, section in sections):
        handles.append(Line2D([], [], color=TREND, marker="D", markersize=5, label="means of tenths of the steps"))
    legend_below(figure, handles)
    return figure


def _draw(axes: Axes, section: TheorySection) -> None:
    check = section.check
    if check is None:
        axes.set_axis_off()
        return
    axes.axhline(0.0, color="black", linewidth=0.7)
    axes.axvline(0.0, color="black", linewidth=0.7)
    axes.scatter(check.predicted, check.changes, s=10, color=CLOUD, linewidths=0, alpha=0.7)
    axes.plot(section.group_predicted, section.group_changes, color=TREND, marker="D", markersize=4)
    axes.set_xlim(*_reach(check.predicted))
    axes.set_ylim(*_reach(check.changes))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlabel(f"−η {COVARIANCES[section.theorem]}, up to a constant")
    axes.set_ylabel("ΔH of the next step (nats)")


def _reach(values: np.ndarray) -> tuple[float, float]:
    """Ends of an axis that shows the cloud, 0 and the outliers that are not far."""
    low, high = np.quantile(values, SHOWN)
    middle, half = (low + high) / 2, (high - low) / 2 or abs(high) or 1.0
    ends = max(values.min(), middle - REACH * half), min(values.max(), middle + REACH * half)
    low, high = min(ends[0], 0.0), max(ends[1], 0.0)
    margin = 0.05 * (high - low or 1.0)
    return low - margin, high + margin


def _subtitle(section: TheorySection) -> str:
    if section.check is None:
        return section.reason
    return f"rank correlation {with_interval(section.check.correlation)}"
