"""Parts of the dashboard that Textual draws."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult, RenderResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.coordinate import Coordinate
from textual.screen import ModalScreen
from textual.widgets import DataTable, Static
from textual_plotext import PlotextPlot

from openrlhf_cov.analysis.dashboard.drawing import labels, log_ticks, smoothed, thinned_for, ticks
from openrlhf_cov.analysis.dashboard.panels import TABLE_COLUMNS, chart_title, shortened, table_cells
from openrlhf_cov.analysis.dashboard.state import RunCurve, RunState
from openrlhf_cov.analysis.regression import Floats
from openrlhf_cov.utils.metric_table import title_and_unit

COLORS = ((86, 180, 233), (230, 159, 0), (0, 158, 115), (204, 121, 167), (240, 228, 66), (213, 94, 0))
"""Okabe and Ito's, for eyes that do not tell all colors apart; a curve also ends in the number of its run."""
ROWS_PER_TICK, COLUMNS_PER_TICK = 2, 9
NARROW_TABLE = ("step", "reward", "entropy", "s/step", "alerts", "state")
WIDE_TABLE = 115
"""Columns of the terminal from which the table has all of ``TABLE_COLUMNS``."""
CELLS_WIDTH, CELLS_WIDTH_WIDE = 58, 92
"""What all cells but the name take; the name gets the rest, within ``NAME_WIDTHS``."""
NAME_WIDTHS = (10, 60)
LABEL_WIDTH = 5
"""So that the axes of charts below each other line up."""
MARGIN = 0.03
"""Of the height of a curve, above and below it."""


def color_of(number: int) -> tuple[int, int, int]:
    """Color of run ``number``, from 0."""
    return COLORS[number % len(COLORS)]


@dataclass(frozen=True, eq=False)
class Drawn:
    """A curve of run ``number`` (from 0) in a chart."""

    number: int
    curve: RunCurve


@dataclass(frozen=True)
class View:
    """How the curves are drawn."""

    log: bool = False
    smooth: bool = False


class CurveChart(PlotextPlot):
    """A metric by step; of several runs, the first of them in the title."""

    def __init__(self, metric: str) -> None:
        super().__init__(classes="chart")
        self.border_title = title_and_unit(metric)
        self.theme = "clear"
        self.drawn: list[Drawn] = []
        self._view, self._numbered = View(), False

    def show(self, drawn: list[Drawn], view: View, numbered: bool) -> None:
        """Draw these curves, the selected run's first; ``numbered``: a curve ends in the number of its run."""
        self.drawn, self._view, self._numbered = drawn, view, numbered
        is_log = view.log and _positive(drawn)
        notes = [" (log)"] * is_log + [" (not above 0: no log)"] * (view.log and not is_log)
        notes += [" (smoothed)"] * view.smooth
        if drawn:
            self.border_title = chart_title(drawn[0].curve, "".join(notes))
        self.refresh()

    def render(self) -> RenderResult:
        self.plt.clear_figure()
        width, height = self.size.width, self.size.height
        lines = [(each.number, *self._points(each.curve, width)) for each in self.drawn if len(each.curve.values)]
        if not lines or width < 12 or height < 3:
            return Text("")
        is_log = self._view.log and _positive(self.drawn)
        for number, x, y in reversed(lines):  # the selected run on top
            y = np.log10(y) if is_log else y
            self.plt.plot(x.tolist(), y.tolist(), marker="braille", color=color_of(number))
            if self._numbered or len(x) == 1:
                mark = str(number + 1) if self._numbered and number < 9 else "•"
                self.plt.scatter([x[-1]], [y[-1]], marker=mark, color=color_of(number))
        self._axes(lines, is_log, width, height)
        return super().render()

    def _points(self, curve: RunCurve, width: int) -> tuple[Floats, Floats]:
        values = smoothed(curve.values) if self._view.smooth else curve.values
        return thinned_for(curve.steps, values, 2 * width)

    def _axes(self, lines: list[tuple[int, Floats, Floats]], is_log: bool, width: int, height: int) -> None:
        xs, ys = (np.concatenate([line[place] for line in lines]) for place in (1, 2))
        low, high = ys.min(), ys.max()
        count = max(2, (height - 2) // ROWS_PER_TICK)
        marks = log_ticks(low, high, count) if is_log else ticks(low, high, count)
        low, high, at = (np.log10(low), np.log10(high), np.log10(marks)) if is_log else (low, high, np.array(marks))
        margin = MARGIN * (high - low) or abs(low) * 0.1 or 1.0
        self.plt.ylim(low - margin, high + margin)
        self.plt.yticks(at.tolist(), [text.rjust(LABEL_WIDTH) for text in labels(marks)])
        first, last = int(xs.min()), int(xs.max())
        steps = ticks(first, last, max(2, width // COLUMNS_PER_TICK), whole=True)
        self.plt.xlim(first, last if last > first else first + 1)
        names = [f"{step:,.0f}" for step in steps]
        self.plt.xticks(steps, [f"step {names[0]}", *names[1:]])
        self.plt.xaxes(True, False)
        self.plt.yaxes(True, False)


class RunTable(DataTable):
    """A line for each run; the one under the cursor is selected."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(id="runs", cursor_type="row")
        self._names, self._headings = names, ()

    def show(self, states: Sequence[RunState | None], now: float, width: int) -> None:
        """Bring the cells up to date, with the columns that fit into ``width``."""
        rows = [{} if state is None else table_cells(state, now) for state in states]
        wide = width >= WIDE_TABLE
        shortest, longest = NAME_WIDTHS
        name_width = min(longest, max(shortest, width - (CELLS_WIDTH_WIDE if wide else CELLS_WIDTH)))
        headings = ("run", *(name for name in TABLE_COLUMNS if wide or name in NARROW_TABLE))
        if headings != self._headings:
            selected = self.cursor_row
            self.clear(columns=True)
            self.add_columns(*headings)
            for _ in rows:
                self.add_row(*[""] * len(headings))
            self._headings = headings
            self.move_cursor(row=selected)
        for number, cells in enumerate(rows):
            name = f"{number + 1} {shortened(self._names[number], name_width)}"
            new = [Text(name, Style(color="rgb({},{},{})".format(*color_of(number))))]
            new += [Text(cells.get(heading, "reading" if heading == "state" else "")) for heading in headings[1:]]
            for place, cell in enumerate(new):
                if self.get_cell_at(Coordinate(number, place)) != cell:
                    self.update_cell_at(Coordinate(number, place), cell, update_width=True)


class TextScreen(ModalScreen[None]):
    """A text over the dashboard; any of its keys closes it."""

    BINDINGS = (Binding("escape,q,question_mark,d,enter,space", "dismiss", "Close"),)

    def __init__(self, title: str, text: str | Text) -> None:
        super().__init__()
        self._title, self._text = title, text

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="text") as box:
            box.border_title = self._title
            box.border_subtitle = "Esc closes"
            yield Static(self._text, markup=False)


def _positive(drawn: list[Drawn]) -> bool:
    return all((each.curve.values > 0).all() for each in drawn)
