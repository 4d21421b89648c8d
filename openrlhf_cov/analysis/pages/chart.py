"""A chart as data, described once: ``pages.picture`` draws it as SVG and PNG, ``pages.plot`` in a page (pure)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

INK, FAINT, GROUND = "var(--ink)", "var(--faint)", "var(--ground)"
"""Colors of the page, which are others in the dark; a picture has black, grey and white."""
COLORS = ("#0072b2", "#d55e00", "#009e73", INK, "#cc79a7", "#e69f00", "#56b4e9")
"""Okabe and Ito's, which color-blind readers tell apart, without the yellow that white swallows."""
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
"""Five against seven colors: 35 lines before a pair repeats."""
MARKERS = ("circle", "square", "triangle-up", "diamond", "x")
HATCHES = ("", "/", ".", "\\", "x")
"""Of areas, for readers without color."""
FEW_POINTS = 60
"""A line of no more points has its marker at each."""
LONGEST_NAME = 32


@dataclass(frozen=True)
class Look:
    """How a mark looks, in words that Plotly understands; ``marker`` "" is none, a ``hollow`` one an outline."""

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
    """Values of one name in a panel; all arrays are (n,), NaN interrupts a line.

    A ``line`` and ``dots`` have ``y``, dots with ``low`` and ``high`` whiskers along ``whiskers``; a ``band`` fills
    what is between ``low`` and ``high``; a ``stack`` stands on those before it. ``name`` is that in the legend, ""
    for none; marks of one ``group`` are shown and hidden together. With ``by_time`` dots go from light to dark.
    ``hover`` is what a page says of a point, as Plotly's template, ``texts`` a word for each; None says nothing.
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


@dataclass(frozen=True)
class Axis:
    """``share`` are fractions, in percent; ``ticks`` their names by place; ``zero`` asks for a line at 0.

    ``ends`` is what is shown at first, None everything. A ``log`` axis of values that are not all above 0 is linear,
    in a picture near 0 only.
    """

    title: str = ""
    share: bool = False
    log: bool = False
    whole: bool = False
    zero: bool = False
    ticks: Mapping[float, str] = field(default_factory=dict)
    ends: tuple[float, float] | None = None


STEPS = Axis("global step", whole=True)


@dataclass(frozen=True)
class Panel:
    """One plot. ``said`` is a line on what it shows; without marks it is all that there is."""

    marks: tuple[Mark, ...]
    x: Axis = STEPS
    y: Axis = Axis()
    title: str = ""
    said: str = ""


@dataclass(frozen=True)
class Chart:
    """Panels: one below the other over one x axis in a page, in rows of ``columns`` in a picture.

    ``name`` is unique in a page and the name of a picture's file. ``description`` says the chart in words, ``note``
    stands below it in a page. ``linked`` charts have steps as x axis and zoom together. ``together`` gives one label
    with the values of all marks. ``wide`` takes the width of the page; ``shared`` names axes that the panels of a
    picture have in common, ``row`` is its height in inches.
    """

    name: str
    title: str
    panels: tuple[Panel, ...]
    description: str = ""
    note: str = ""
    linked: bool = False
    together: bool = False
    wide: bool = False
    columns: int = 3
    shared: str = ""
    row: float = 3.0
    height: int | None = None


def color_of(place: int) -> str:
    return COLORS[place % len(COLORS)]


def look_of(place: int, **fields: float | str | bool) -> Look:
    """The look of the run or curve at this place, to be told from others without color."""
    style = {"dash": DASHES[place % len(DASHES)], "marker": MARKERS[place % len(MARKERS)]}
    return Look(**{"color": color_of(place)} | style | fields)


def bands(x: ArrayLike, low: ArrayLike, high: ArrayLike, look: Look, **fields: str) -> list[Mark]:
    """A band as one mark; none where it has an end that is not finite."""
    if not np.size(x) or not np.isfinite([low, high]).all():
        return []
    return [Mark("band", look, x, low=low, high=high, **fields)]


def short_names(names: Sequence[str]) -> list[str]:
    """Names of at most ``LONGEST_NAME`` characters, without their middle; different ones stay different."""
    found: list[str] = []
    for place, name in enumerate(names):
        short = shortened(name)
        if names.index(name) == place and short in found:
            number = f" ({place + 1})"
            short = shortened(name, LONGEST_NAME - len(number)) + number
        found.append(short)
    return found


def shortened(text: str, longest: int = LONGEST_NAME) -> str:
    """The text without its middle where it is too long."""
    if len(text) <= longest:
        return text
    tail = (longest - 1) // 2
    return f"{text[: longest - 1 - tail]}…{text[len(text) - tail :]}"
