"""The live dashboard: it reads the runs in a thread and draws what changed."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual import work
from textual.app import App, ComposeResult, RenderResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Grid, VerticalScroll
from textual.coordinate import Coordinate
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Static
from textual_plotext import PlotextPlot

from openrlhf_cov.analysis.dashboard.curve_panels import NumberedCurve, View, color_of, curve_panel
from openrlhf_cov.analysis.dashboard.panels import TABLE_COLUMNS, compact, headline, panels, shortened, table_cells
from openrlhf_cov.analysis.dashboard.state import CURVES, RunState, WatchedRun
from openrlhf_cov.analysis.pages.chart import Panel
from openrlhf_cov.analysis.pages.terminal_plot import draw_panel

# --- places

# Columns and rows from which the panels stand beside the curves, in full, instead of a few lines below them.
WIDE = 110
TALL = 32
SIDE_WIDTH = 46
SIDE_WIDTH_LARGE = 64
LARGE = 170
# Charts in a row -> columns that each of them needs.
CHART_WIDTHS = {4: 40, 2: 28, 1: 0}
# Columns that a chart needs for two in a row beside the panels; there, wide charts below each other read better.
BESIDE_PANELS = 50
CHART_HEIGHT = 5
# Lines below the curves, at most, and at most a third of the screen.
TEXT_LINES = 8
TEXT_SHARE = 3
CHARTS = 4


@dataclass(frozen=True)
class Layout:
    """The layout of a terminal: the place and width of the panels, the lines below them, and the number of charts."""

    side: bool
    side_width: int
    text_lines: int
    charts: int
    charts_in_a_row: int


def layout(width: int, height: int, taken: int = 2) -> Layout:
    """Return the layout of a terminal.

    Args:
        width: Columns of the terminal.
        height: Rows of the terminal.
        taken: Rows of the headline, the table of runs and the alerts.
    """
    side = width >= WIDE and height >= TALL
    side_width = 0
    text_lines = min(TEXT_LINES, height // TEXT_SHARE)
    if side:
        side_width = SIDE_WIDTH_LARGE if width >= LARGE else SIDE_WIDTH
        text_lines = 0
        in_a_row = 2 if width - side_width >= 2 * BESIDE_PANELS else 1
    else:
        # From the most charts in a row to one, which always fits.
        fitting = [count for count, needed in CHART_WIDTHS.items() if width >= count * needed]
        in_a_row = fitting[1] if fitting[0] == CHARTS and height >= TALL else fitting[0]
    rows = max(1, (height - taken - text_lines) // CHART_HEIGHT)
    return Layout(side, side_width, text_lines, min(CHARTS, in_a_row * rows), in_a_row)


# --- parts

NARROW_TABLE = ("step", "reward", "entropy", "s/step", "alerts", "state")
# Columns of the terminal from which the table has all of ``TABLE_COLUMNS``.
WIDE_TABLE = 115
# What all cells but the name take; the name gets the rest, within ``NAME_WIDTHS``.
CELLS_WIDTH = 58
CELLS_WIDTH_WIDE = 92
NAME_WIDTHS = (10, 60)


class CurveChart(PlotextPlot):
    """A chart of a metric by step, with a line for each run."""

    def __init__(self, metric: str) -> None:
        super().__init__(classes="chart")
        self.theme = "clear"
        self.panel = curve_panel(metric, (), View(), has_numbers=False)
        self.border_title = self.panel.title

    def show(self, panel: Panel) -> None:
        """Draw a panel in place of the one before."""
        self.panel = panel
        self.border_title = panel.title
        self.refresh()

    def render(self) -> RenderResult:
        is_drawn = draw_panel(self.plt, self.panel, self.size.width, self.size.height)
        return super().render() if is_drawn else Text("")


class RunTable(DataTable):
    """A line for each run; the one under the cursor is selected."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(id="runs", cursor_type="row")
        self._names = names
        self._headings = ()

    def show(self, states: Sequence[RunState | None], now: float, width: int) -> None:
        """Bring the cells up to date.

        Args:
            states: The state of each run; None before a run has been read.
            now: Unix time in seconds.
            width: Columns of the terminal. A narrow one gets ``NARROW_TABLE`` only.
        """
        rows = [{} if state is None else table_cells(state, now) for state in states]
        wide = width >= WIDE_TABLE
        shortest, longest = NAME_WIDTHS
        name_width = min(longest, max(shortest, width - (CELLS_WIDTH_WIDE if wide else CELLS_WIDTH)))
        headings = ("run", *(name for name in TABLE_COLUMNS if wide or name in NARROW_TABLE))
        if headings != self._headings:
            # Clearing the table moves the cursor to its first row.
            selected = self.cursor_row
            self.clear(columns=True)
            self.add_columns(*headings)
            for _ in rows:
                self.add_row(*[""] * len(headings))
            self._headings = headings
            self.move_cursor(row=selected)
        for number, cells in enumerate(rows):
            name = f"{number + 1} {shortened(self._names[number], name_width)}"
            new = [Text(name, Style(color=color_of(number)))]
            new += [Text(cells.get(heading, "reading" if heading == "state" else "")) for heading in headings[1:]]
            for place, cell in enumerate(new):
                # Most cells stay the same, and writing one draws the table again.
                if self.get_cell_at(Coordinate(number, place)) != cell:
                    self.update_cell_at(Coordinate(number, place), cell, update_width=True)


class TextScreen(ModalScreen[None]):
    """A text over the dashboard; any of its keys closes it."""

    BINDINGS = (Binding("escape,q,question_mark,d,enter,space", "dismiss", "Close"),)

    def __init__(self, title: str, text: str | Text) -> None:
        super().__init__()
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="text") as box:
            box.border_title = self._title
            box.border_subtitle = "Esc closes"
            yield Static(self._text, markup=False)


# --- the application

# Lines of the table of runs, its head included; more runs scroll.
TABLE_ROWS = 8
# Alerts that are shown above the curves; the others wait behind a key.
ALERTS_SMALL = 3
ALERTS_SIDE = 6
HELP = """\
Tab, Right        next run
Shift+Tab, Left   run before
1 to 9            that run
o                 curves of all runs, or of the selected one
c                 other curves first, where not all have room
l                 logarithmic axes
s                 smoothed curves
d                 everything in words, alerts with what to do
Page Up, Down     scroll the text beside the curves
?                 this text
q                 quit

Reward, entropy (nats), covariance Cov(log π, A) and response
length (tokens) are those of a step's rollouts. The ceiling is
that of the entropy law, if it applies to the run. docs/watch.md
describes what is shown and when there is an alert."""


class Watch(App[None]):
    """The application: the runs, one of which is selected. ``interval`` is in seconds; ``clock`` gives Unix time."""

    CSS_PATH = "watch.tcss"
    TITLE = "watch"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("tab,right", "move(1)", "Next run", priority=True, key_display="Tab"),
        Binding("shift+tab,left", "move(-1)", show=False, priority=True),
        Binding("o", "overlay", "One/all"),
        Binding("c", "curves", "Curves"),
        Binding("l", "log", "Log"),
        Binding("s", "smooth", "Smooth"),
        Binding("d", "details", "Details"),
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("pagedown", "scroll(1)", show=False, priority=True),
        Binding("pageup", "scroll(-1)", show=False, priority=True),
        *(Binding(str(number), f"select({number - 1})", show=False) for number in range(1, 10)),
    ]

    class State(Message):
        """Source ``number`` has a new state."""

        def __init__(self, number: int, state: RunState | None) -> None:
            super().__init__()
            self.number = number
            self.state = state

    class ReadAll(Message):
        """All sources have been read; ``trouble`` is what went wrong, or empty."""

        def __init__(self, trouble: str) -> None:
            super().__init__()
            self.trouble = trouble

    def __init__(self, sources: Sequence[WatchedRun], interval: float, clock: Callable[[], float] = time.time) -> None:
        super().__init__()
        self.sources = list(sources)
        self.interval = interval
        self.clock = clock
        self.states: list[RunState | None] = [None] * len(self.sources)
        self.selected = 0
        self.overlay = len(self.sources) > 1
        self.view = View()
        self.trouble = ""
        self.first_curve = 0
        self._reading = False

    @property
    def state(self) -> RunState | None:
        """The state of the selected run; None before it has been read."""
        return self.states[self.selected]

    def compose(self) -> ComposeResult:
        yield Static("reading", id="status", markup=False)
        if len(self.sources) > 1:
            yield RunTable([source.name for source in self.sources])
        yield Static(id="alerts", markup=False)
        with Container(id="body"):
            with Grid(id="curves"):
                for metric in CURVES:
                    yield CurveChart(metric)
            with VerticalScroll(id="side", can_focus=False):
                yield Static(id="panels", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        self._place()
        self.set_interval(self.interval, self._read)
        # Words such as "last step 12 s ago" change without news from the run.
        self.set_interval(1.0, self._show_words)
        self._read()

    # --- reading

    def _read(self) -> None:
        # Where reading takes longer than the interval, no second thread reads the same files.
        if not self._reading:
            self._reading = True
            self._read_all()

    @work(thread=True)
    def _read_all(self) -> None:
        trouble = []
        for number, source in enumerate(self.sources):
            try:
                # The thread only posts messages; widgets belong to the thread of the application.
                if source.update():
                    self.post_message(self.State(number, source.state))
            except OSError as error:
                trouble.append(f"{source.name} cannot be read: {error.strerror}")
        self.post_message(self.ReadAll("; ".join(trouble)))

    def on_watch_read_all(self, message: ReadAll) -> None:
        self._reading = False
        if message.trouble != self.trouble:
            self.trouble = message.trouble
            self._show_words()

    def on_watch_state(self, message: State) -> None:
        self.states[message.number] = message.state
        if message.number == self.selected or self.overlay:
            self._show_curves()
        self._place()

    # --- showing

    def on_resize(self) -> None:
        self._place()

    def _place(self) -> None:
        """Put the parts where the size of the terminal has room for them."""
        if not self._is_whole:
            return
        place = self.place
        self.query_one("#body").set_class(place.side, "side")
        self.query_one("#curves").styles.grid_size_columns = place.charts_in_a_row
        for number, chart in enumerate(self.query(CurveChart)):
            chart.display = number < place.charts
        side = self.query_one("#side")
        side.set_class(place.side, "side")
        side.styles.width = place.side_width or "1fr"
        side.styles.max_height = "100%" if place.side else place.text_lines
        self._show_words()

    @property
    def _is_whole(self) -> bool:
        """True while all widgets are there: not yet while they are mounted, no longer while they are removed."""
        return all(self.query(f"#{name}") for name in ("status", "alerts", "body", "curves", "side", "panels"))

    @property
    def place(self) -> Layout:
        """The layout for the size of the terminal, with the lines that are above the curves now."""
        table = 1 + len(self.sources) if len(self.sources) > 1 else 0
        alerts = min(len(self.state.alerts), ALERTS_SMALL) if self.state else 0
        return layout(self.size.width, self.size.height, 2 + min(table, TABLE_ROWS) + alerts)

    def _show_curves(self) -> None:
        order = [self.selected, *(n for n in range(len(self.states)) if self.overlay and n != self.selected)]
        shown = [(n, state) for n in order if (state := self.states[n]) and state.curves]
        for number, chart in enumerate(self.query(CurveChart)):
            place = (number + self.first_curve) % len(CURVES)
            curves = [NumberedCurve(n, state.curves[place]) for n, state in shown]
            chart.show(curve_panel(CURVES[place], curves, self.view, has_numbers=len(self.states) > 1))

    def _show_words(self) -> None:
        if not self._is_whole:
            return
        now = self.clock()
        place = self.place
        for table in self.query(RunTable):
            table.show(self.states, now, self.size.width)
        if self.state is None:
            return
        status = self.query_one("#status", Static)
        status.update(self.trouble or headline(self.state, now, self.size.width - 2))
        status.set_classes(self.state.activity(now).state)
        alerts = self.query_one("#alerts", Static)
        alerts.set_class(place.side, "side")
        alerts.display = bool(self.state.alerts)
        alerts.update(alert_text(self.state, place))
        few = Text("\n".join(compact(self.state, now)), no_wrap=True, overflow="ellipsis")
        self.query_one("#panels", Static).update(blocks(self.state, now) if place.side else few)

    # --- keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Return False for a key that does nothing now, as textual's ``App.check_action``.

        Keys for several runs need more than one run. The keys of the application do nothing while a text is open.
        """
        if len(self.screen_stack) > 1 and action in ("move", "scroll"):
            return False
        return len(self.sources) > 1 or action not in ("move", "overlay", "select")

    def action_move(self, by: int) -> None:
        self._select((self.selected + by) % len(self.sources))

    def action_select(self, number: int) -> None:
        if number < len(self.sources):
            self._select(number)

    def on_data_table_row_highlighted(self, event: RunTable.RowHighlighted) -> None:
        """Select what the cursor stands on; messages from where it has left since would move it back."""
        if event.cursor_row == event.data_table.cursor_row:
            self._select(event.cursor_row)

    def _select(self, number: int) -> None:
        if number == self.selected:
            return
        self.selected = number
        for table in self.query(RunTable):
            table.move_cursor(row=number)
        self._show_curves()
        self._place()

    def action_overlay(self) -> None:
        self.overlay = not self.overlay
        self._show_curves()

    def action_curves(self) -> None:
        self.first_curve = (self.first_curve + self.place.charts) % len(CURVES)
        self._show_curves()

    def action_log(self) -> None:
        self.view = replace(self.view, log=not self.view.log)
        self._show_curves()

    def action_smooth(self) -> None:
        self.view = replace(self.view, smooth=not self.view.smooth)
        self._show_curves()

    def action_scroll(self, pages: int) -> None:
        side = self.query_one("#side")
        side.scroll_relative(y=pages * max(1, side.size.height - 1), animate=False)

    def action_details(self) -> None:
        if self.state is not None:
            self.push_screen(TextScreen(self.state.name, details(self.state, self.clock())))

    def action_help(self) -> None:
        self.push_screen(TextScreen("keys", HELP))


def alert_text(state: RunState, place: Layout) -> Text:
    """Return one line for each alert, with what to do where there is room for it.

    Args:
        state: The run.
        place: The layout of the screen, which decides how many alerts are shown, and how long their lines are.
    """
    most = ALERTS_SIDE if place.side else ALERTS_SMALL
    lines = [f"! {alert.line if place.side else alert.short}" for alert in state.alerts[:most]]
    more = len(state.alerts) - len(lines)
    lines += [f"! {more} more: press d"] if more else []
    return Text("\n".join(lines), no_wrap=not place.side, overflow="fold" if place.side else "ellipsis")


def details(state: RunState, now: float) -> Text:
    """Return the alerts with what to do, then the panels.

    Args:
        state: The run.
        now: Unix time in seconds.
    """
    alerts = [Text("alerts", "bold underline"), *(Text(alert.line) for alert in state.alerts or ())]
    return Text("\n").join([*alerts, *([] if state.alerts else [Text("none")]), Text(), blocks(state, now)])


def blocks(state: RunState, now: float) -> Text:
    """Return the panels, one below the other.

    Args:
        state: The run.
        now: Unix time in seconds.
    """
    found = panels(state, now)
    return Text("\n\n").join(
        Text.assemble((each.title, "bold underline"), "\n", "\n".join(each.lines)) for each in found
    )
