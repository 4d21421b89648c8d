"""A chart as Plotly draws it in a page: one plot for each panel (pure)."""

import math
from html import escape
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openrlhf_cov.analysis.pages.chart import FAINT, FEW_POINTS, GROUND, Axis, Chart, Mark, Panel

DIGITS = 5
# Pixels: the height of one of several panels, and of a single one.
PANEL_HEIGHT = 260
SINGLE_HEIGHT = 320
# Ratio of the largest and smallest value up to which a logarithmic axis has labels between the powers of ten.
FEW_DECADES = 30
EARLY_TO_LATE = [[0, "var(--early)"], [1, "var(--late)"]]

Json = dict[str, Any]


def figure(chart: Chart) -> Json:
    """Return what the script of the page needs to draw a chart: the words, and traces and layout of each panel."""
    height = chart.height or (PANEL_HEIGHT if len(chart.panels) > 1 else SINGLE_HEIGHT)
    panels = []
    for panel in chart.panels:
        # Several panels need a heading each; a single one has the heading of the chart.
        heading = panel.title or (panel.y.title if len(chart.panels) > 1 else "")
        layout = _layout(panel, height, chart.together)
        if panel.y.title and heading != panel.y.title:
            layout["yaxis"]["title"] = {"text": plain(panel.y.title), "standoff": 8}
        traces = [_trace(mark) for mark in panel.marks]
        panels.append({"title": heading, "said": panel.said, "traces": traces, "layout": layout})
    words = {"title": chart.title, "note": chart.note, "description": chart.description}
    return words | {"linked": chart.linked, "panels": panels}


def numbers(values: ArrayLike, digits: int = DIGITS) -> list[float | None]:
    """Return values with few significant digits, None for values that are not finite.

    Args:
        values: The values (n,).
        digits: Number of significant digits.
    """
    # Fewer digits make the page smaller: most of it is numbers.
    flat = np.asarray(values, dtype=np.float64).tolist()
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in flat]


def places(values: ArrayLike) -> list[float | None]:
    """Return the values of an x axis; whole numbers, such as steps, keep all digits."""
    found = np.asarray(values, dtype=np.float64)
    if not (found == np.floor(found)).all():
        return numbers(found)
    return found.astype(np.int64).tolist()


def plain(text: str) -> str:
    """Return text that Plotly shows as it is; Plotly would interpret ``<b>`` and ``&amp;`` as HTML."""
    return escape(text, quote=False)


def _trace(mark: Mark) -> Json:
    look = mark.look
    trace: Json = {"type": "scatter", "name": plain(mark.name), "legendgroup": mark.group or mark.name}
    trace |= {"x": places(mark.x), "y": numbers(mark.y), "opacity": look.opacity}
    trace |= {"hoverinfo": "skip"} if mark.hover is None else {"hovertemplate": mark.hover}
    if not mark.name or mark.kind == "band":
        trace["showlegend"] = False
    if len(mark.texts):
        trace["customdata"] = [plain(each) if isinstance(each, str) else each for each in mark.texts]
    if mark.kind == "band":
        # Plotly fills a closed line: there along the upper ends, back along the lower ones.
        outline = np.concatenate([mark.values("high"), mark.values("low")[::-1]])
        area = {"x": [*trace["x"], *trace["x"][::-1]], "y": numbers(outline), "mode": "lines"}
        return trace | area | {"fill": "toself", "fillcolor": look.color, "line": {"width": 0, "color": look.color}}
    if mark.kind == "stack":
        pattern = {"fillmode": "overlay", "size": 7, "solidity": 0.2, "fgcolor": GROUND, "shape": look.hatch}
        return trace | {"type": "bar", "marker": {"color": look.color, "line": {"width": 0}, "pattern": pattern}}
    symbol = (look.marker or "circle") + ("-open" if look.hollow else "")
    trace["marker"] = {"color": look.color, "size": look.size, "symbol": symbol}
    if mark.kind == "dots":
        if mark.by_time:
            trace["marker"] |= {"color": list(range(len(trace["x"]))), "colorscale": EARLY_TO_LATE}
        return trace | {"mode": "markers"} | _whiskers(mark)
    trace["line"] = {"color": look.color, "dash": look.dash, "width": look.width}
    # A line through one point would be invisible.
    if len(trace["x"]) == 1:
        return trace | {"mode": "markers"}
    has_markers = look.marker and len(trace["x"]) <= FEW_POINTS
    return trace | {"mode": "lines+markers" if has_markers else "lines"}


def _whiskers(mark: Mark) -> Json:
    low = mark.values("low")
    high = mark.values("high")
    if not len(low) or not np.isfinite([low, high]).all():
        return {}
    middle = mark.values(mark.whiskers)
    ends = {"array": numbers(high - middle), "arrayminus": numbers(middle - low)}
    bars = {"type": "data", "symmetric": False, "thickness": 1.5, "width": 4, "color": mark.look.color}
    return {f"error_{mark.whiskers}": bars | ends}


def _layout(panel: Panel, height: int, together: bool) -> Json:
    layout: Json = {"height": height, "barmode": "stack", "bargap": 0}
    layout["hovermode"] = "x unified" if together else "closest"
    layout["xaxis"] = _axis(panel.x, panel.values("x")) | {"title": {"text": plain(panel.x.title), "standoff": 8}}
    layout["yaxis"] = _axis(panel.y, panel.values("y"))
    if together:
        layout["xaxis"]["hoverformat"] = ",d"
    return layout


def _axis(axis: Axis, values: NDArray[np.float64]) -> Json:
    found: Json = {} if axis.whole else {"tickformat": ".4~g"}
    logarithmic = axis.is_logarithmic(values)
    if axis.share:
        found |= {"tickformat": ".3~%"}
    if logarithmic:
        # "D2" labels 2 and 5 between the powers of ten, 1 labels the powers alone.
        found |= {"type": "log", "tickformat": "~g", "dtick": 1 if values.max() > FEW_DECADES * values.min() else "D2"}
    if axis.ticks:
        found |= {"tickvals": list(axis.ticks), "ticktext": list(map(plain, axis.ticks.values()))}
    if axis.zero:
        found |= {"zeroline": True, "zerolinecolor": FAINT, "zerolinewidth": 1, "nticks": 6, "exponentformat": "power"}
    if ends := axis.shown(values):
        # Plotly takes the range of a logarithmic axis as exponents of ten.
        found["range"] = numbers(np.log10(ends) if logarithmic else ends)
    return found
