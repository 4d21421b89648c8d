"""A chart as Plotly draws it in a page (pure)."""

import math
from html import escape
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from openrlhf_cov.analysis.pages.chart import FAINT, FEW_POINTS, GROUND, Axis, Chart, Mark

DIGITS = 5
PANEL_HEIGHT, AROUND, SINGLE_HEIGHT = 190, 70, 320
"""Pixels of one of several panels, above and below all of them, and of a single one with what is around it."""
GAP = 36
FEW_DECADES = 30
"""Ratio of largest and smallest up to which a logarithmic axis has names between the powers of ten."""
EARLY_TO_LATE = [[0, "var(--early)"], [1, "var(--late)"]]

Json = dict[str, Any]


def figure(chart: Chart) -> Json:
    """What the page's script needs to draw it: traces, layout and words."""
    traces = [
        trace for place, panel in enumerate(chart.panels) for mark in panel.marks for trace in _traces(mark, place)
    ]
    words = {"title": chart.title, "note": chart.note, "description": chart.description}
    return {"traces": traces, "layout": _layout(chart), "linked": chart.linked} | words


def numbers(values: ArrayLike, digits: int = DIGITS) -> list[float | None]:
    """Values with this many significant digits, None for what is no finite number."""
    flat = np.asarray(values, dtype=np.float64).tolist()
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in flat]


def places(values: ArrayLike) -> list[float | None]:
    """Values of an x axis: whole ones, such as steps, in full."""
    values = np.asarray(values, dtype=np.float64)
    if not (values == np.floor(values)).all():
        return numbers(values)
    return values.astype(np.int64).tolist()


def plain(text: str) -> str:
    """Text that Plotly shows as it is: it takes ``<b>`` and ``&amp;`` as HTML would."""
    return escape(text, quote=False)


def _axis_name(place: int) -> str:
    return "y" if place == 0 else f"y{place + 1}"


def _traces(mark: Mark, place: int) -> list[Json]:
    look = mark.look
    trace: Json = {"type": "scatter", "name": plain(mark.name), "legendgroup": mark.group or mark.name}
    trace |= {"yaxis": _axis_name(place), "x": places(mark.x), "y": numbers(mark.y), "opacity": look.opacity}
    trace |= {"hoverinfo": "skip"} if mark.hover is None else {"hovertemplate": mark.hover}
    if not mark.name or mark.kind == "band":
        trace["showlegend"] = False
    if len(mark.texts):
        trace["customdata"] = [plain(each) if isinstance(each, str) else each for each in mark.texts]
    if mark.kind == "band":
        outline = {"x": [*trace["x"], *trace["x"][::-1]], "y": numbers([*mark.high, *np.flip(mark.low)])}
        fill = {"fill": "toself", "fillcolor": look.color, "line": {"width": 0, "color": look.color}}
        return [trace | outline | fill | {"mode": "lines"}]
    if mark.kind == "stack":
        pattern = {"fillmode": "overlay", "size": 7, "solidity": 0.2, "fgcolor": GROUND, "shape": look.hatch}
        marker = {"color": look.color, "line": {"width": 0}, "pattern": pattern}
        return [trace | {"type": "bar", "marker": marker}]
    symbol = (look.marker or "circle") + ("-open" if look.hollow else "")
    trace["marker"] = {"color": look.color, "size": look.size, "symbol": symbol}
    if mark.kind == "dots":
        if mark.by_time:
            trace["marker"] |= {"color": list(range(len(trace["x"]))), "colorscale": EARLY_TO_LATE}
        if np.size(mark.low) and np.isfinite([mark.low, mark.high]).all():
            middle = np.asarray(mark.y if mark.whiskers == "y" else mark.x)
            ends = {"array": numbers(mark.high - middle), "arrayminus": numbers(middle - mark.low)}
            bars = {"type": "data", "symmetric": False, "thickness": 1.5, "width": 4, "color": look.color}
            trace[f"error_{mark.whiskers}"] = bars | ends
        return [trace | {"mode": "markers"}]
    trace["line"] = {"color": look.color, "dash": look.dash, "width": look.width}
    few = look.marker and len(trace["x"]) <= FEW_POINTS
    return [trace | {"mode": "markers" if len(trace["x"]) == 1 else "lines+markers" if few else "lines"}]


def _layout(chart: Chart) -> Json:
    """Panels one below the other, which share their x axis."""
    count = len(chart.panels)
    height = chart.height or (PANEL_HEIGHT * count + AROUND if count > 1 else SINGLE_HEIGHT)
    gap = GAP / (height - AROUND)
    part = (1 - gap * (count - 1)) / count
    layout: Json = {"height": height, "annotations": [], "barmode": "stack", "bargap": 0}
    layout["hovermode"] = "x unified" if chart.together else "closest"
    for place, panel in enumerate(chart.panels):
        top = 1 - place * (part + gap)
        domain = {"domain": [round(max(0.0, top - part), 4), round(top, 4)]}
        values = np.concatenate([np.zeros(0), *(np.ravel(mark.y) for mark in panel.marks)])
        layout["yaxis" + ("" if place == 0 else str(place + 1))] = domain | _axis(panel.y, values)
        words = " · ".join(filter(None, [panel.title or panel.y.title, panel.said]))
        if words:
            layout["annotations"].append(_corner(words, top))
    x = chart.panels[-1].x
    values = np.concatenate([np.ravel(mark.x) for panel in chart.panels for mark in panel.marks])
    layout["xaxis"] = _axis(x, values) | {"anchor": _axis_name(count - 1), "title": {"text": x.title}}
    if chart.together:
        layout["xaxis"]["hoverformat"] = ",d"
    return layout


def _axis(axis: Axis, values: np.ndarray) -> Json:
    found: Json = {} if axis.whole else {"tickformat": ".4~g"}
    values = values[~np.isnan(values)]
    logarithmic = axis.log and len(values) > 0 and values.min() > 0
    if axis.share:
        found |= {"tickformat": ".3~%", "rangemode": "nonnegative"}
    if logarithmic:
        found |= {"type": "log", "tickformat": "~g", "dtick": 1 if values.max() > FEW_DECADES * values.min() else "D2"}
    if axis.ticks:
        found |= {"tickvals": list(axis.ticks), "ticktext": list(axis.ticks.values())}
    if axis.zero:
        found |= {"zeroline": True, "zerolinecolor": FAINT, "zerolinewidth": 1, "nticks": 6, "exponentformat": "power"}
    if axis.ends:
        found["range"] = numbers(np.log10(axis.ends) if logarithmic else axis.ends)
    return found


def _corner(text: str, top: float) -> Json:
    """Words above the left end of a panel, ``top`` being its upper end in parts of the plot."""
    place = {"xref": "paper", "yref": "paper", "x": 0, "y": round(top, 4), "xanchor": "left", "yanchor": "bottom"}
    return place | {"text": plain(text), "showarrow": False, "font": {"size": 13, "color": FAINT}}
