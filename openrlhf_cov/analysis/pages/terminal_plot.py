"""A panel as plotext draws it in a terminal: lines and dots of characters, and axes with few labels.

A terminal has no legend, so the last point of a mark shows the name of the mark: a short one, such as a number.
"""

from typing import Any

import numpy as np

from openrlhf_cov.analysis.pages.chart import Axis, Mark, Panel
from openrlhf_cov.analysis.pages.ticks import labels, log_ticks, ticks
from openrlhf_cov.analysis.regression import Floats, extremes

# Columns and rows below which nothing can be read.
LEAST_WIDTH = 12
LEAST_HEIGHT = 3
ROWS_PER_TICK = 2
COLUMNS_PER_TICK = 9
# So that the axes of charts below each other line up.
LABEL_WIDTH = 5
# Space above and below the values, as a share of their span.
MARGIN = 0.03
# Stands for a single point, and for the last point of a mark whose name is longer than a character.
DOT = "•"


def draw_panel(plot: Any, panel: Panel, width: int, height: int) -> bool:
    """Draw the lines and dots of a panel. Bands, stacks and whiskers need more room, and are left out.

    Args:
        plot: A figure of plotext, which is cleared.
        panel: The panel. Later marks cover earlier ones.
        width: Columns of the figure.
        height: Rows of the figure.

    Returns:
        False if there is nothing to draw, or no room for it.
    """
    plot.clear_figure()
    marks = [mark for mark in panel.marks if mark.kind in ("line", "dots") and np.isfinite(mark.values("y")).any()]
    if not marks or width < LEAST_WIDTH or height < LEAST_HEIGHT:
        return False
    panel = Panel(tuple(marks), panel.x, panel.y)
    is_log = panel.y.is_logarithmic(panel.values("y"))
    for mark in marks:
        _draw_mark(plot, mark, width, is_log)
    _draw_y_axis(plot, panel, height, is_log)
    _draw_x_axis(plot, panel.x, panel.values("x"), width)
    return True


def _draw_mark(plot: Any, mark: Mark, width: int, is_log: bool) -> None:
    x, y = _shown(mark, width)
    if is_log:
        y = np.log10(y)
    # The colors that a page defines by name are the terminal's own.
    color = mark.look.color
    color = tuple(bytes.fromhex(color[1:])) if color.startswith("#") else "default"
    if mark.kind == "dots":
        plot.scatter(x.tolist(), y.tolist(), marker=DOT, color=color)
    else:
        plot.plot(x.tolist(), y.tolist(), marker="braille", color=color)
    if mark.name or len(x) == 1:
        plot.scatter(x[-1:].tolist(), y[-1:].tolist(), marker=mark.name if len(mark.name) == 1 else DOT, color=color)


def _shown(mark: Mark, width: int) -> tuple[Floats, Floats]:
    """Return the points of a mark that can be told apart at this width."""
    known = np.isfinite(mark.values("y"))
    x = mark.values("x")[known]
    y = mark.values("y")[known]
    if mark.kind == "line":
        # Braille characters have two columns of dots, each with its lowest and its highest value.
        places = extremes(y, 4 * width)
        x = x[places]
        y = y[places]
    return x, y


def _draw_y_axis(plot: Any, panel: Panel, height: int, is_log: bool) -> None:
    values = panel.values("y")
    low = float(values.min())
    high = float(values.max())
    count = max(2, (height - 2) // ROWS_PER_TICK)
    marks = log_ticks(low, high, count) if is_log else ticks(low, high, count)
    places = marks
    if is_log:
        # plotext draws logarithms on a linear axis, whose labels are the values themselves.
        places = np.log10(marks).tolist()
        low = float(np.log10(low))
        high = float(np.log10(high))
    # A constant curve gets a range around its value.
    margin = MARGIN * (high - low) or abs(low) * 0.1 or 1.0
    plot.ylim(low - margin, high + margin)
    plot.yticks(places, [text.rjust(LABEL_WIDTH) for text in labels(marks)])
    plot.yaxes(True, False)


def _draw_x_axis(plot: Any, axis: Axis, values: Floats, width: int) -> None:
    low = float(values.min())
    high = float(values.max())
    places = ticks(low, high, max(2, width // COLUMNS_PER_TICK), whole=axis.whole)
    names = [f"{place:,.0f}" for place in places] if axis.whole else labels(places)
    # A curve of one point needs an axis of some length, too.
    plot.xlim(low, high if high > low else low + 1)
    # The title has no line of its own: it stands in front of the first label.
    names[0] = f"{axis.title} {names[0]}".strip()
    plot.xticks(places, names)
    plot.xaxes(True, False)
