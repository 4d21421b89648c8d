"""The live dashboard: reads in a thread, draws what changed."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Grid, VerticalScroll
from textual.message import Message
from textual.widgets import Footer, Static

from openrlhf_cov.analysis.dashboard.layout import Layout, layout
from openrlhf_cov.analysis.dashboard.panels import compact, headline, panels
from openrlhf_cov.analysis.dashboard.state import CURVES, RunState
from openrlhf_cov.analysis.dashboard.watched import WatchedRun
from openrlhf_cov.analysis.dashboard.widgets import CurveChart, Drawn, RunTable, TextScreen, View

TABLE_ROWS = 8
"""Of the table of runs, its head included; more runs scroll."""
ALERTS_SMALL, ALERTS_SIDE = 3, 6
"""Alerts that are shown above the curves; the others wait behind a key."""
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
length (tokens) are those of a step's rollouts. A ceiling with ?
is that of a law that does not apply to the run. docs/watch.md
says what is shown and when there is an alert."""


class Watch(App[None]):
    """Runs, one of them selected. ``interval`` is in seconds; ``clock`` gives Unix time."""

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
            self.number, self.state = number, state

    class ReadAll(Message):
        """All sources have been asked; ``trouble`` is what went wrong, or empty."""

        def __init__(self, trouble: str) -> None:
            super().__init__()
            self.trouble = trouble

    def __init__(self, sources: Sequence[WatchedRun], interval: float, clock: Callable[[], float] = time.time) -> None:
        super().__init__()
        self.sources, self.interval, self.clock = list(sources), interval, clock
        self.states: list[RunState | None] = [None] * len(self.sources)
        self.selected, self.overlay, self.view, self.trouble = 0, len(self.sources) > 1, View(), ""
        self.first_curve = 0
        self._reading = False

    @property
    def state(self) -> RunState | None:
        """Of the selected run; None before it has been read."""
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
        self.set_interval(1.0, self._show_words)
        self._read()

    # --- reading

    def _read(self) -> None:
        if not self._reading:
            self._reading = True
            self._read_all()

    @work(thread=True)
    def _read_all(self) -> None:
        trouble = []
        for number, source in enumerate(self.sources):
            try:
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
        if not self.query("#side"):  # before and after it is on the screen
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
    def place(self) -> Layout:
        """The layout for the size of the terminal, with what stands above the curves now."""
        table = 1 + len(self.sources) if len(self.sources) > 1 else 0
        alerts = min(len(self.state.alerts), ALERTS_SMALL) if self.state else 0
        return layout(self.size.width, self.size.height, 2 + min(table, TABLE_ROWS) + alerts)

    def _show_curves(self) -> None:
        order = [self.selected, *(n for n in range(len(self.states)) if self.overlay and n != self.selected)]
        shown = [(n, state) for n in order if (state := self.states[n]) and state.curves]
        for number, chart in enumerate(self.query(CurveChart)):
            curve = (number + self.first_curve) % len(CURVES)
            chart.show([Drawn(n, state.curves[curve]) for n, state in shown], self.view, len(self.states) > 1)

    def _show_words(self) -> None:
        if not self.query("#side"):
            return
        now, place = self.clock(), self.place
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
        """Keys of several runs do nothing for one, and none of the application's does while a text is open."""
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
    """One line for each alert, with what to do where there is room for it."""
    most = ALERTS_SIDE if place.side else ALERTS_SMALL
    lines = [f"! {alert.line if place.side else alert.short}" for alert in state.alerts[:most]]
    more = len(state.alerts) - len(lines)
    lines += [f"! {more} more: press d"] if more else []
    return Text("\n".join(lines), no_wrap=not place.side, overflow="fold" if place.side else "ellipsis")


def details(state: RunState, now: float) -> Text:
    """The alerts with what to do, then the panels."""
    alerts = [Text("alerts", "bold underline"), *(Text(alert.line) for alert in state.alerts or ())]
    return Text("\n").join([*alerts, *([] if state.alerts else [Text("none")]), Text(), blocks(state, now)])


def blocks(state: RunState, now: float) -> Text:
    """The panels, one below the other."""
    found = panels(state, now)
    return Text("\n\n").join(
        Text.assemble((each.title, "bold underline"), "\n", "\n".join(each.lines)) for each in found
    )
