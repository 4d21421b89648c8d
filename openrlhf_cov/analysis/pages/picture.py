"""A chart as matplotlib draws it, in files of SVG and PNG."""

from collections.abc import Iterable, Sequence
from math import ceil
from pathlib import Path
from typing import Any, Literal
from warnings import catch_warnings, filterwarnings

import numpy as np
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from openrlhf_cov.analysis.pages.chart import FAINT, FEW_POINTS, GROUND, INK, Axis, Chart, Look, Mark, Panel
from openrlhf_cov.utils.json_lines import replacing

# Inches of a panel, and of the title above all of them.
PANEL_WIDTH = 4.2
AROUND = 0.5
DOTS_PER_INCH = 130
POINTS_PER_INCH = 72
# Names in a legend; the others are counted.
MAX_NAMED = 12
# Markers of a long line.
MARKERS = 8
# Sizes of a legend in inches: the height of a row, the width of a line with its space, the width of a letter.
LEGEND_ROW = 0.19
LEGEND_LINE = 0.6
LETTER = 0.068
# Nearer to 0 a logarithmic axis with values that are not above 0 is linear.
LINEAR_BELOW = 0.1

PAPER = {INK: "#000000", FAINT: "#777777", GROUND: "#ffffff"}
DASHES = {
    "solid": "-",
    "dash": (0, (5, 1.5)),
    "dot": (0, (1.2, 1.2)),
    "dashdot": (0, (6, 1.5, 1.2, 1.5)),
    "longdash": (0, (9, 2)),
}
SYMBOLS = {"": "", "circle": "o", "square": "s", "triangle-up": "^", "diamond": "D", "x": "X", "star": "*"}
HATCHES = {"": "", "/": "//", ".": "..", "\\": "\\\\", "x": "xx"}
EARLY_TO_LATE = LinearSegmentedColormap.from_list("time", ["#9ecae1", "#08306b"])
SETTINGS: dict[Any, Any] = {
    # Without a salt the ids in an SVG are random, and the same chart would give another file.
    "svg.hashsalt": "openrlhf_cov",
    "text.parse_math": False,  # a run may be called $x$
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "axes.formatter.limits": (-3, 4),
    # Points within half a pixel of a line are left out, which makes the files of long runs smaller.
    "path.simplify_threshold": 0.5,
}


def write_pictures(charts: Iterable[Chart], folder: Path, formats: Sequence[str]) -> tuple[Path, ...]:
    """Write ``folder/NAME.FORMAT`` of each chart and return their paths, in order; the same chart gives the same SVG.

    Args:
        charts: The charts.
        folder: Folder of the files; it is created.
        formats: ``svg``, ``png`` or both.

    Raises:
        OSError: A file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with rc_context(SETTINGS), catch_warnings():
        filterwarnings("ignore", "Glyph .* missing from font")  # drawn as a box
        return tuple(path for chart in charts for path in save(draw(chart), folder / chart.name, formats))


def draw(chart: Chart) -> Figure:
    """Return the figure of a chart: its panels row by row, and the legend below them."""
    count = len(chart.panels)
    columns = min(len(chart.panels), chart.columns)
    rows = ceil(count / columns)
    size = max(columns * PANEL_WIDTH, 5.5), rows * chart.row + AROUND
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex="x" in chart.shared, sharey="y" in chart.shared)
    for unused in grid.flat[count:]:
        unused.remove()
    for place, (axes, panel) in enumerate(zip(grid.flat, chart.panels, strict=False)):
        # With shared axes, matplotlib would label the outer panels only. Rows with names are named once if the panel
        # on the left has the same ones.
        named_on_the_left = (
            bool(panel.y.ticks) and place % columns and panel.y.ticks == chart.panels[place - 1].y.ticks
        )
        axes.tick_params(labelbottom=True, labelleft=not named_on_the_left)
        _draw_panel(axes, panel)
    figure.suptitle(chart.title, fontsize=11)
    _legend_below(figure, chart.panels)
    return figure


def save(figure: Figure, path: Path, formats: Sequence[str]) -> list[Path]:
    """Write a figure in every format and return the paths.

    ``Figure.savefig`` would lay out and draw the figure twice for each format.

    Args:
        figure: The figure. Its layout is fixed afterwards.
        path: Path of the files without their ending.
        formats: ``svg``, ``png`` or both.
    """
    figure.set_dpi(POINTS_PER_INCH)  # where hinted text is widest
    if engine := figure.get_layout_engine():
        engine.execute(figure)
    # The layout stays for all formats.
    figure.set_layout_engine("none")
    paths = [path.with_name(f"{path.name}.{each}") for each in formats]
    for path in paths:
        with replacing(path) as file:
            if path.suffix == ".svg":
                # A date would make each file a different one.
                FigureCanvasSVG(figure).print_svg(file, metadata={"Date": None})
            else:
                figure.set_dpi(DOTS_PER_INCH)
                FigureCanvasAgg(figure).print_png(file)
    return paths


def _draw_panel(axes: Axes, panel: Panel) -> None:
    axes.set_title("\n".join(filter(None, [panel.title, panel.said])))
    if not panel.marks:
        axes.set_axis_off()
        return
    # Stacks stand on each other; the height so far is the floor of the next one.
    floor = np.zeros(np.size(panel.marks[0].x))
    for order, mark in enumerate(panel.marks):
        if mark.kind == "stack":
            floor = _draw_stack(axes, mark, floor)
        else:
            # Later marks cover earlier ones whatever their kind; matplotlib would draw all areas first.
            DRAWN[mark.kind](axes, mark, zorder=2 + order / len(panel.marks))
    if floor.any():
        axes.margins(x=0)
    _dress(axes, "x", panel.x, panel.values("x"))
    _dress(axes, "y", panel.y, panel.values("y"))


def _draw_line(axes: Axes, mark: Mark, zorder: float) -> None:
    every = 1 if np.size(mark.x) <= FEW_POINTS else np.size(mark.x) // MARKERS
    axes.plot(mark.x, mark.y, markevery=every, zorder=zorder, **_line_style(mark.look))


def _draw_dots(axes: Axes, mark: Mark, zorder: float) -> None:
    look = mark.look
    color = _color(mark.look)
    if np.size(mark.low):
        columns = (mark.values("x"), mark.values("y"), mark.values("low"), mark.values("high"))
        for x, y, low, high in zip(*columns, strict=True):
            ends = ([x, x], [low, high]) if mark.whiskers == "y" else ([low, high], [y, y])
            axes.plot(*ends, color=color, linewidth=1.2, zorder=zorder)
    # A size is a diameter in pixels of a page; ``scatter`` takes an area in square points.
    area = look.size**2 * 0.6
    symbol = SYMBOLS[look.marker or "circle"]
    shared = {"s": area, "marker": symbol, "alpha": look.opacity, "zorder": zorder + 0.01}
    if mark.by_time:
        axes.scatter(mark.x, mark.y, c=np.arange(np.size(mark.x)), cmap=EARLY_TO_LATE, linewidths=0, **shared)
    else:
        face = PAPER[GROUND] if look.hollow else color
        axes.scatter(mark.x, mark.y, facecolor=face, edgecolor=color, linewidths=1.0 if look.hollow else 0, **shared)


def _draw_band(axes: Axes, mark: Mark, zorder: float) -> None:
    area = {"color": _color(mark.look), "alpha": mark.look.opacity, "linewidth": 0, "zorder": zorder}
    axes.fill_between(mark.x, mark.low, mark.high, **area)


DRAWN = {"line": _draw_line, "dots": _draw_dots, "band": _draw_band}


def _draw_stack(axes: Axes, mark: Mark, floor: np.ndarray) -> np.ndarray:
    """Draw the area on top of ``floor``, and return its upper edge as the floor of the next one."""
    area = {"facecolor": _color(mark.look), "hatch": HATCHES[mark.look.hatch], "edgecolor": "white", "linewidth": 0.3}
    axes.fill_between(mark.x, floor, floor + mark.y, **area)
    return floor + mark.y


def _dress(axes: Axes, name: Literal["x", "y"], axis: Axis, values: np.ndarray) -> None:
    """Set scale, ticks and ends of the x or the y axis."""
    side = axes.xaxis if name == "x" else axes.yaxis
    side.set_label_text(axis.title)
    if axis.log:
        above = len(values) > 0 and values.min() > 0
        scale = {"value": "log"} if above else {"value": "symlog", "linthresh": LINEAR_BELOW}
        getattr(axes, f"set_{name}scale")(**scale)
        side.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    if axis.ticks:
        side.set_ticks(list(axis.ticks), list(axis.ticks.values()))
        axes.minorticks_off()
    elif not axis.log:
        side.set_major_locator(MaxNLocator(5, integer=axis.whole))
    if axis.share:
        side.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g} %"))
    if axis.zero:
        (axes.axvline if name == "x" else axes.axhline)(0.0, color="black", linewidth=0.7)
    if ends := axis.shown(values):
        getattr(axes, f"set_{name}lim")(*ends)


def _legend_below(figure: Figure, panels: Sequence[Panel]) -> None:
    """Add a legend under the panels, which makes the figure higher; no legend for a single name."""
    marks = {mark.name: mark for panel in panels for mark in panel.marks if mark.name}
    if len(marks) < 2:
        return
    handles = [_handle(mark) for mark in list(marks.values())[:MAX_NAMED]]
    if len(marks) > MAX_NAMED:
        # An invisible line, so that the count stands in the legend like a name.
        handles.append(Line2D([], [], alpha=0, label=f"{len(marks) - MAX_NAMED} more"))
    # The width of a legend is not known before it is drawn, so it is estimated from the longest name.
    letters = max(len(str(handle.get_label())) for handle in handles)
    room = max(1, int(figure.get_figwidth() / (LEGEND_LINE + LETTER * letters)))
    columns = min(len(handles), room)
    figure.set_figheight(figure.get_figheight() + LEGEND_ROW * ceil(len(handles) / columns))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, handlelength=3.2)


def _handle(mark: Mark) -> Artist:
    look = mark.look
    if mark.kind == "stack":
        return Patch(facecolor=_color(look), hatch=HATCHES[look.hatch], edgecolor="white", label=mark.name)
    if mark.kind == "band":
        return Patch(color=_color(look), alpha=look.opacity, label=mark.name)
    style = _line_style(look)
    if mark.kind == "dots":
        style |= {"linestyle": "none", "marker": SYMBOLS[look.marker or "circle"], "markersize": 5}
        style |= {"color": EARLY_TO_LATE(1.0)} if mark.by_time else {}
    return Line2D([], [], label=mark.name, **style)


def _line_style(look: Look) -> dict:
    style = {"color": _color(look), "linestyle": DASHES[look.dash], "linewidth": 0.8 * look.width}
    return style | {"alpha": look.opacity, "marker": SYMBOLS[look.marker], "markersize": 3.5}


def _color(look: Look) -> str:
    return PAPER.get(look.color, look.color)
