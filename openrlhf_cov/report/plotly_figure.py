"""What all charts of the page share: colours, line patterns, numbers and words as Plotly takes them (pure)."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from openrlhf_cov.report.series import Series

INK, FAINT, GROUND = "var(--ink)", "var(--faint)", "var(--ground)"
"""Colours of the page, which the script puts in for the light or the dark one."""
COLORS = ("#0072b2", "#d55e00", "#009e73", INK, "#cc79a7", "#e69f00", "#56b4e9")
"""Okabe and Ito's in the order of ``style.LINE_STYLES``, without the yellow that white swallows."""
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
"""Five against seven colours: 35 runs before a pair repeats."""
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x")
PATTERNS = ("", "/", ".", "\\", "x")
"""Of bars, for readers without colour."""

DIGITS = 5
LONGEST_NAME = 32
PANEL_HEIGHT = 190
"""Pixels of one of several panels."""
AROUND = 70
"""Pixels above and below all panels."""
FAINT_LINE = 0.3

Json = dict[str, Any]


@dataclass(frozen=True)
class Chart:
    """A Plotly figure. ``name`` is unique in a page and part of an HTML id, ``description`` says it in words.

    ``linked`` charts have steps as x axis and zoom together. ``note`` is the line below it.
    """

    name: str
    title: str
    description: str
    traces: list[Json]
    layout: Json
    note: str = ""
    linked: bool = False
    wide: bool = field(default=False)

    def figure(self) -> Json:
        return {"traces": self.traces, "layout": self.layout, "linked": self.linked}


def color_of(place: int) -> str:
    return COLORS[place % len(COLORS)]


def line_of(place: int, width: float = 2) -> Json:
    """Line of the run or curve at this place: colour and pattern, so that it can be told without colour."""
    return {"color": color_of(place), "dash": DASHES[place % len(DASHES)], "width": width}


def marker_of(place: int, size: float = 7) -> Json:
    return {"color": color_of(place), "symbol": SYMBOLS[place % len(SYMBOLS)], "size": size}


def numbers(values: ArrayLike, digits: int = DIGITS) -> list[float | None]:
    """Values with this many significant digits, None for what is no finite number."""
    flat = np.asarray(values, dtype=np.float64).tolist()
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in flat]


def step_numbers(steps: ArrayLike) -> list[float | None]:
    """Steps in full; whole ones as whole numbers."""
    found = numbers(steps, 15)
    return [int(step) if step is not None and step == int(step) else step for step in found]


def plain(text: str) -> str:
    """Text that Plotly shows as it is: it takes ``<b>`` and ``&amp;`` as HTML would."""
    return escape(text, quote=False)


def short_names(names: Sequence[str]) -> list[str]:
    """Names of at most ``LONGEST_NAME`` characters, without their middle; different ones stay different."""
    found: list[str] = []
    for place, name in enumerate(names):
        short = _shortened(name, LONGEST_NAME)
        if names.index(name) == place and short in found:
            number = f" ({place + 1})"
            short = _shortened(name, LONGEST_NAME - len(number)) + number
        found.append(short)
    return found


def _shortened(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    tail = (longest - 1) // 2
    return f"{text[: longest - 1 - tail]}…{text[len(text) - tail :]}"


def curve(
    series: Series,
    name: str,
    group: str,
    line: Json,
    axis: str = "y",
    *,
    raw: bool = True,
    hover: str = "step %{x}: %{y:.4~g}",
) -> list[Json]:
    """Traces of a curve: the values, faint, and the running mean; the values alone where that is the same.

    ``raw`` False leaves the values out beside a mean. A curve of one point is a dot.
    """
    steps = step_numbers(series.steps)
    shared = {"type": "scatter", "legendgroup": group, "yaxis": axis}
    mode = "lines" if len(series) > 1 else "markers"
    traces = []
    if raw and series.window > 1:
        faint = {"color": line["color"], "width": 1}
        values = {"x": steps, "y": numbers(series.values), "mode": mode, "line": faint, "opacity": FAINT_LINE}
        traces.append(shared | values | {"name": plain(name), "showlegend": False, "hoverinfo": "skip"})
    mean = {"x": steps, "y": numbers(series.mean), "mode": mode, "line": line, "marker": {"color": line["color"]}}
    return [*traces, shared | mean | {"name": plain(name), "hovertemplate": hover}]


def running_means(series: Iterable[Series], raw: bool) -> str:
    """What the lines of these curves are, in words; empty where all are the values themselves."""
    window = max((each.window for each in series), default=1)
    if window == 1:
        return ""
    return f"Lines are running means of up to {window} logged steps" + (", with the values behind." if raw else ".")


def band(xs: ArrayLike, low: ArrayLike, high: ArrayLike, color: str, style: Json, opacity: float = 0.2) -> list[Json]:
    """A filled band in a chart, as one trace; none where it has an infinite end."""
    xs, low, high = (np.asarray(each, dtype=np.float64) for each in (xs, low, high))
    if not len(xs) or not (np.isfinite(low).all() and np.isfinite(high).all()):
        return []
    outline = {"x": numbers([*xs, *xs[::-1]]), "y": numbers([*high, *low[::-1]]), "mode": "lines", "hoverinfo": "skip"}
    fill = {"fill": "toself", "fillcolor": rgba(color, opacity), "line": {"width": 0, "color": color}}
    return [{"type": "scatter"} | style | outline | fill]


def rgba(color: str, opacity: float) -> str:
    """#rrggbb with an opacity."""
    red, green, blue = (int(color[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:g})"


def panels(titles: Sequence[str], shares: Sequence[bool], x_title: str = "global step") -> Json:
    """Layout of panels one below the other, which share their x axis; a share has an axis in percent."""
    count = len(titles)
    height = PANEL_HEIGHT * count + AROUND if count > 1 else 320
    gap = 36 / (height - AROUND)
    part = (1 - gap * (count - 1)) / count
    layout: Json = {"height": height, "annotations": []}
    for place, (title, share) in enumerate(zip(titles, shares, strict=True)):
        top = 1 - place * (part + gap)
        axis = {"domain": [round(max(0.0, top - part), 4), round(top, 4)], "tickformat": ".4~g"}
        if share:
            axis |= {"tickformat": ".3~%", "rangemode": "nonnegative"}
        layout["yaxis" + ("" if place == 0 else str(place + 1))] = axis
        if title:
            layout["annotations"].append(corner_words(title, top))
    layout["xaxis"] = {"title": {"text": x_title}, "anchor": "y" if count == 1 else f"y{count}"}
    return layout


def corner_words(text: str, top: float = 1.0) -> Json:
    """Words above the left end of a panel, ``top`` being its upper end in parts of the plot."""
    place = {"xref": "paper", "yref": "paper", "x": 0, "y": round(top, 4), "xanchor": "left", "yanchor": "bottom"}
    return place | {"text": plain(text), "showarrow": False, "font": {"size": 13, "color": FAINT}}


def axis_name(place: int) -> str:
    """Name of the y axis of the panel at this place."""
    return "y" if place == 0 else f"y{place + 1}"
