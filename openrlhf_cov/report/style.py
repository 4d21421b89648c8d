"""How pictures look: colors that color-blind readers tell apart, line styles that grey prints do."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from warnings import catch_warnings, filterwarnings

from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

PANEL_WIDTH, PANEL_HEIGHT = 4.2, 3.0
"""Of a panel, in inches."""
DOTS_PER_INCH, POINTS_PER_INCH = 130, 72
MOST_COLUMNS = 3
MOST_PANELS = 9
"""Runs that have a panel of their own."""
MOST_NAMED = 7
"""Runs that have a color of their own; the others are thin and grey."""
LONGEST_NAME = 34
LEGEND_ROW, LEGEND_LINE, LETTER = 0.19, 0.6, 0.068
"""Of a legend, in inches: the height of a row, what a line and the space around it take, a letter."""
GREY, PALE = "#777777", "#bbbbbb"

SETTINGS = {
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
    "lines.linewidth": 1.6,
    "axes.formatter.limits": (-3, 4),
    "path.simplify_threshold": 0.5,
}


@dataclass(frozen=True)
class LineStyle:
    """Color (Okabe & Ito 2008), dashes and marker of a curve."""

    color: str
    dashes: str | tuple[int, tuple[float, ...]]
    marker: str


LINE_STYLES = (
    LineStyle("#0072B2", "-", "o"),
    LineStyle("#D55E00", (0, (5, 1.5)), "s"),
    LineStyle("#009E73", (0, (1.2, 1.2)), "^"),
    LineStyle("#000000", (0, (6, 1.5, 1.2, 1.5)), "D"),
    LineStyle("#CC79A7", (0, (9, 2)), "v"),
    LineStyle("#E69F00", (0, (4, 1, 1, 1, 1, 1)), "P"),
    LineStyle("#56B4E9", (0, (2.5, 1)), "X"),
)
DARK_TO_LIGHT = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
"""Okabe and Ito's colors but the palest, for what has an order."""


def run_style(place: int) -> LineStyle:
    """The style of the run at this place of the report."""
    return LINE_STYLES[place] if place < MOST_NAMED else LineStyle(PALE, "-", "")


@contextmanager
def house_style() -> Iterator[None]:
    """Our settings of matplotlib, for as long as it lasts."""
    with rc_context(SETTINGS):
        yield


def new_panels(
    count: int, *, columns: int = MOST_COLUMNS, title: str = "", share_x: bool = False, share_y: bool = False
) -> tuple[Figure, list[Axes]]:
    """A figure of ``count`` panels, row by row."""
    columns = min(count, columns)
    rows = ceil(count / columns)
    width = max(columns * PANEL_WIDTH, 5.5)
    figure = Figure(figsize=(width, rows * PANEL_HEIGHT + 0.5), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=share_x, sharey=share_y)
    panels = list(grid.flat)
    for unused in panels[count:]:
        unused.remove()
    for panel in panels[:count]:  # a panel above an empty place shows its own ticks
        panel.tick_params(labelbottom=True, labelleft=True)
    figure.suptitle(title, fontsize=11)
    return figure, panels[:count]


def part_of(title: str, shown: int, runs: int) -> str:
    """The title of a figure that shows the first of the runs alone says so."""
    return title if shown == runs else f"{title} ({shown} of {runs} runs)"


def short(name: str, longest: int = LONGEST_NAME) -> str:
    """A name with its middle left out where it is long."""
    if len(name) <= longest:
        return name
    half = (longest - 1) // 2
    return f"{name[: longest - 1 - half]}…{name[-half:]}"


def steps_axis(panel: Axes) -> None:
    """Whole steps on the x axis."""
    panel.set_xlabel("step")
    panel.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def percent_axis(panel: Axes) -> None:
    """Fractions as percent on the y axis."""
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g} %"))


def run_legend(figure: Figure, names: Sequence[str]) -> None:
    """The runs under the panels; none for a single run."""
    if len(names) < 2:
        return
    handles = []
    for place, name in enumerate(names[:MOST_NAMED]):
        style = run_style(place)
        line = Line2D([], [], color=style.color, linestyle=style.dashes, marker=style.marker, markersize=5)
        line.set_label(short(name))
        handles.append(line)
    if len(names) > MOST_NAMED:
        handles.append(Line2D([], [], color=PALE, label=f"{len(names) - MOST_NAMED} more runs"))
    legend_below(figure, handles)


def legend_below(figure: Figure, handles: Sequence[Artist]) -> None:
    """A legend under the panels, as wide as the figure allows, which grows by its height."""
    letters = max(len(handle.get_label()) for handle in handles)
    room = max(1, int(figure.get_figwidth() / (LEGEND_LINE + LETTER * letters)))
    columns = min(len(handles), room)
    figure.set_figheight(figure.get_figheight() + LEGEND_ROW * ceil(len(handles) / columns))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, handlelength=3.2)


def save(figure: Figure, folder: Path, name: str, formats: Sequence[str]) -> list[Path]:
    """Write the figure in every format; the same figure gives the same SVG.

    ``Figure.savefig`` would lay out and draw it twice for each. Characters that the font lacks are drawn as boxes.
    """
    with catch_warnings():
        filterwarnings("ignore", "Glyph .* missing from font")
        return _save(figure, folder, name, formats)


def _save(figure: Figure, folder: Path, name: str, formats: Sequence[str]) -> list[Path]:
    figure.set_dpi(POINTS_PER_INCH)  # where hinted text is widest
    figure.get_layout_engine().execute(figure)
    figure.set_layout_engine("none")
    paths = [folder / f"{name}.{each}" for each in formats]
    for path in paths:
        if path.suffix == ".svg":
            FigureCanvasSVG(figure).print_svg(path, metadata={"Date": None})
        else:
            figure.set_dpi(DOTS_PER_INCH)
            FigureCanvasAgg(figure).print_png(path)
    return paths
