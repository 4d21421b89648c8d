"""A chart as data, described once (pure).

``plot.py`` draws it in a page, ``picture.py`` as SVG and PNG, and ``terminal_plot.py`` in a terminal.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openrlhf_cov.utils.estimates import Interval

# Colors of the page, which differ in dark mode; a picture has black, grey and white.
INK = "var(--ink)"
FAINT = "var(--faint)"
GROUND = "var(--ground)"
# The palette of Okabe and Ito for color-blind readers, without yellow, which is hard to see on white.
COLORS = ("#0072b2", "#d55e00", "#009e73", INK, "#cc79a7", "#e69f00", "#56b4e9")
# Five dashes and seven colors: a pair repeats only after 35 lines.
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
MARKERS = ("circle", "square", "triangle-up", "diamond", "x")
# Patterns of areas, for readers who see no color.
HATCHES = ("", "/", ".", "\\", "x")
# A line with at most this many points has a marker at each of them.
FEW_POINTS = 40
LONGEST_NAME = 32
# Space between the values and the end of an axis, as a share of the span of the values.
MARGIN = 0.05
UNBOUNDED = (-math.inf, math.inf)


@dataclass(frozen=True)
class Look:
    """The style of a mark in Plotly's terms; ``marker`` "" draws none, ``hollow`` draws an outline."""

    color: str
    dash: str = "solid"
    marker: str = ""
    hatch: str = ""
    width: float = 2.0
    size: float = 5.0
    opacity: float = 1.0
    hollow: bool = False


@dataclass(frozen=True, eq=False)
class Mark:
    """Values of one name in a panel; all arrays have the shape (n,), and NaN interrupts a line.

    A ``line`` and ``dots`` have ``y``; dots may have whiskers from ``low`` to ``high`` along the axis ``whiskers``. A
    ``band`` fills the area between ``low`` and ``high``. A ``stack`` stands on the stacks before it.

    ``name`` is the name in the legend; a mark without a name has no entry. A legend shows and hides all marks of a
    ``group`` together. With ``by_time``, dots go from light to dark. ``hover`` is the label of a point in a page, a
    Plotly template that may use the entries of ``texts``; without it a point has no label.
    """

    kind: Literal["line", "dots", "band", "stack"]
    look: Look
    x: ArrayLike
    y: ArrayLike = ()
    low: ArrayLike = ()
    high: ArrayLike = ()
    name: str = ""
    group: str = ""
    whiskers: Literal["x", "y"] = "y"
    by_time: bool = False
    hover: str | None = None
    texts: Sequence[str | float | None] = ()

    def values(self, name: Literal["x", "y", "low", "high"]) -> NDArray[np.float64]:
        """Return one of the arrays as floats."""
        return np.asarray(getattr(self, name), dtype=np.float64).ravel()


@dataclass(frozen=True)
class Axis:
    """An axis of a panel.

    ``share`` shows fractions in percent, and the axis stays within 0 and 100 %. ``possible`` is the range of values
    that can occur: the axis does not reach beyond it. ``ends`` fixes the range that is shown at first. ``ticks`` maps
    places to their labels. ``zero`` draws a line at 0. A ``log`` axis with values that are not all positive is linear
    in a page and in a terminal, and linear near 0 in a picture.
    """

    title: str = ""
    share: bool = False
    log: bool = False
    whole: bool = False
    zero: bool = False
    ticks: Mapping[float, str] = field(default_factory=dict)
    ends: tuple[float, float] | None = None
    possible: tuple[float, float] = UNBOUNDED

    def is_logarithmic(self, values: NDArray[np.float64]) -> bool:
        """Return True if the axis is logarithmic for these values (n,), all of which must then be positive."""
        return self.log and len(values) > 0 and float(values.min()) > 0

    def shown(self, values: NDArray[np.float64]) -> tuple[float, float] | None:
        """Return the ends of the axis for these values (n,); None leaves them to the renderer."""
        least, most = (0.0, 1.0) if self.share else self.possible
        if self.ends or self.log or not len(values) or (least, most) == UNBOUNDED:
            return self.ends
        low = float(values.min())
        high = float(values.max())
        # A constant curve gets a range around its value.
        margin = MARGIN * (high - low) or 0.1 * abs(high) or 0.1
        return max(low - margin, min(least, low)), min(high + margin, max(most, high))


STEPS = Axis("global step", whole=True)


@dataclass(frozen=True)
class Panel:
    """One plot. ``said`` is one line about the content; a panel without marks shows only this line."""

    marks: tuple[Mark, ...]
    x: Axis = STEPS
    y: Axis = Axis()
    title: str = ""
    said: str = ""

    def values(self, side: Literal["x", "y"]) -> NDArray[np.float64]:
        """Return all finite values along an axis, with the ends of whiskers and bands."""
        found = [mark.values(side) for mark in self.marks]
        # Whiskers along the other axis say nothing about this one.
        found += [mark.values(end) for mark in self.marks if mark.whiskers == side for end in ("low", "high")]
        values = np.concatenate([np.zeros(0), *found])
        return values[np.isfinite(values)]


@dataclass(frozen=True)
class Chart:
    """Panels with one legend.

    ``name`` is unique in a page and the name of a picture's file. ``description`` describes the chart for readers who
    cannot see it; a page shows ``note`` below the chart. In a page, ``linked`` charts zoom together (their x axis is
    the global step), ``together`` shows the values of all lines at a step in one label, and ``height`` is the height
    of a panel in pixels. In a picture, a row has ``columns`` panels and is ``row`` inches high, and ``shared`` names
    the axes that all panels have in common ("x", "y" or "xy").
    """

    name: str
    title: str
    panels: tuple[Panel, ...]
    description: str = ""
    note: str = ""
    linked: bool = False
    together: bool = False
    columns: int = 3
    shared: str = ""
    row: float = 3.0
    height: int | None = None

    @property
    def is_full(self) -> bool:
        """True for a chart that takes the width of the page."""
        return len(self.panels) > 1 or self.height is not None


def color_of(place: int) -> str:
    """Return the color of the run or curve at this place."""
    return COLORS[place % len(COLORS)]


def look_of(place: int, **fields: Any) -> Look:
    """Return a look that distinguishes the run or curve at this place without color; ``fields`` change it."""
    look = Look(color_of(place), dash=DASHES[place % len(DASHES)], marker=MARKERS[place % len(MARKERS)])
    return replace(look, **fields)


def bands(x: ArrayLike, low: ArrayLike, high: ArrayLike, look: Look, *, name: str = "", group: str = "") -> list[Mark]:
    """Return a band in a list; an empty list if it has no points or one of its ends is not finite.

    Args:
        x: Places (n,) on the x axis.
        low: Lower end (n,) of the band.
        high: Upper end (n,) of the band.
        look: Color and opacity of the area.
        name: Name in the legend; "" for no entry.
        group: Marks of one group are shown and hidden together.
    """
    if not np.size(x) or not (np.isfinite(np.asarray(low)).all() and np.isfinite(np.asarray(high)).all()):
        return []
    return [Mark("band", look, x, low=low, high=high, name=name, group=group)]


def whisker(look: Look, x: Sequence[float], interval: Interval, said: str) -> Mark:
    """Return a dot with the whiskers of an interval along y.

    Args:
        look: Color and marker of the dot.
        x: The place on the x axis, (1,).
        interval: The value and its interval.
        said: Text in front of the value in the label of the dot.
    """
    hover = "%{customdata}: %{y:.4~g}"
    return Mark("dots", look, x, [interval.estimate], [interval.low], [interval.high], hover=hover, texts=[said])


def short_names(names: Sequence[str]) -> list[str]:
    """Return names of at most ``LONGEST_NAME`` characters without their middle; different names stay different."""
    found: list[str] = []
    for place, name in enumerate(names):
        short = shortened(name)
        # Equal names stay equal. Only another name that shortens to the same text gets a number.
        if names.index(name) == place and short in found:
            number = f" ({place + 1})"
            short = shortened(name, LONGEST_NAME - len(number)) + number
        found.append(short)
    return found


def shortened(text: str, longest: int = LONGEST_NAME) -> str:
    """Return the text without its middle, if it is too long.

    Args:
        text: The text, such as the name of a run.
        longest: Most characters of the result, the ellipsis included.
    """
    if len(text) <= longest:
        return text
    tail = (longest - 1) // 2
    return f"{text[: longest - 1 - tail]}…{text[len(text) - tail :]}"
