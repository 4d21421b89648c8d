"""Make panels of the dashboard's curves, which ``openrlhf_cov.analysis.pages.terminal_plot`` draws (pure)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from openrlhf_cov.analysis.dashboard.state import RunCurve
from openrlhf_cov.analysis.pages.chart import STEPS, Axis, Look, Mark, Panel
from openrlhf_cov.analysis.pages.ticks import label
from openrlhf_cov.analysis.regression import Floats, running_mean
from openrlhf_cov.utils.metric_table import title_and_unit

# The palette of Okabe and Ito for color-blind readers, on the dark ground of most terminals. A curve also ends in the
# number of its run.
COLORS = ("#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#d55e00")
# The axis of steps of all charts, with a title that has room in front of a label.
STEP_AXIS = replace(STEPS, title="step")
# Runs whose number is one character.
NUMBERED = 9
# A smoothed value is the mean of a window of a twentieth of the points, at least five.
SMOOTH_SHARE = 20
SMOOTH_LEAST = 5


@dataclass(frozen=True)
class View:
    """The style of the curves."""

    log: bool = False
    smooth: bool = False


@dataclass(frozen=True, eq=False)
class NumberedCurve:
    """A curve of run ``number`` (from 0)."""

    number: int
    curve: RunCurve


def color_of(number: int) -> str:
    """Return the color of run ``number``, counted from 0."""
    return COLORS[number % len(COLORS)]


def curve_panel(metric: str, curves: Sequence[NumberedCurve], view: View, *, has_numbers: bool) -> Panel:
    """Return the panel of a metric by step; its title has the newest value of the first curve.

    Args:
        metric: The metric.
        curves: The curves, that of the selected run first. It is drawn over the others.
        view: Style of all curves.
        has_numbers: True to name each curve by the number of its run.
    """
    is_log = view.log and all((each.curve.values > 0).all() for each in curves)
    notes = [" (log)"] * is_log + [" (not above 0: no log)"] * (view.log and not is_log)
    notes += [" (smoothed)"] * view.smooth
    title = chart_title(curves[0].curve, "".join(notes)) if curves else title_and_unit(metric)
    marks = [_mark(each, view, has_numbers) for each in reversed(curves)]
    return Panel(tuple(marks), STEP_AXIS, Axis(log=is_log), title)


def chart_title(curve: RunCurve, note: str = "") -> str:
    """Return the title of a chart: its metric, its unit and its newest value.

    Args:
        curve: The curve of the chart.
        note: Text behind the value, such as " (log)"; "" for none.
    """
    shown = label(curve.last) if len(curve.values) else "none"
    return f"{title_and_unit(curve.metric)}: {shown}{note}"


def smoothed(values: Floats) -> Floats:
    """Return the centred running mean (n,) of a series (n,); at both ends the window has fewer values."""
    half = max(SMOOTH_LEAST, len(values) // SMOOTH_SHARE) // 2
    return running_mean(values, 2 * half + 1, np.arange(len(values)))


def _mark(numbered: NumberedCurve, view: View, has_number: bool) -> Mark:
    number = numbered.number
    values = smoothed(numbered.curve.values) if view.smooth else numbered.curve.values
    name = ""
    if has_number:
        name = str(number + 1) if number < NUMBERED else "•"
    return Mark("line", Look(color_of(number)), numbered.curve.steps, values, name=name)
