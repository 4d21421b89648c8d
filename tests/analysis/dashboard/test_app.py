"""The application, driven by Textual's pilot; its clock stands at ``NOW``."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest
from texts import missing
from textual.pilot import Pilot
from textual.widgets import Static

from openrlhf_cov.analysis.dashboard.app import CurveChart, RunTable, TextScreen, Watch
from openrlhf_cov.analysis.dashboard.state import open_sources

NOW = 1_700_000_032.0  # 2 s after step 3 of the folders


def drive(paths, size, steps: Callable[[Watch, Pilot], Coroutine]) -> None:
    """Run ``steps`` on a dashboard of these runs, once it has read them."""

    async def whole() -> None:
        app = Watch(open_sources(list(map(Path, paths))), interval=0.05, clock=lambda: NOW)
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: all(state is not None for state in app.states))
            await steps(app, pilot)

    asyncio.run(whole())


async def until(pilot: Pilot, holds: Callable[[], bool]) -> None:
    for _ in range(400):
        await pilot.pause(0.05)
        if holds():
            return
    raise AssertionError("it did not come to be within 20 s")


def text(app: Watch, name: str) -> str:
    return str(app.query_one(f"#{name}", Static).content)


def screen(app: Watch) -> str:
    """What is on the screen."""
    return "\n".join("".join(part.text for part in strip) for strip in app.screen._compositor.render_strips())


def titles(app: Watch) -> list[str]:
    return [str(chart.border_title) for chart in app.query(CurveChart) if chart.display]


@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
def test_what_is_on_the_screen(folder, size):
    async def steps(app, pilot):
        shown = screen(app)
        assert "demo | step 3 of 40 | ETA 6 min 8 s | last step 2.0 s ago" in shown
        for title in ("reward: 0.03", "entropy (nats): 0.861", "response length (tokens): 53"):
            assert title in shown
        assert "covariance, all tokens (nats): 0.01" in shown
        assert "tokens/s: 1,600" in shown
        assert "3 points, fewer than 10" in shown
        assert "generation" in shown
        await until(pilot, lambda: "Quit" in screen(app))
        assert "alerts" not in shown
        assert not app.query_one("#alerts").display
        for chart in app.query(CurveChart):  # drawn, with a step on its axis
            assert "step 1" in str(chart.render())

    drive([folder().add(1, 2, 3).path], size, steps)


@pytest.mark.slow
def test_a_run_that_grows(folder):
    run = folder()

    async def steps(app, pilot):
        assert text(app, "status") == "demo | waiting for the first step"
        assert "waiting for the first step in" in text(app, "panels")
        run.add(1, 2)
        await until(pilot, lambda: "step 2 of 40" in text(app, "status"))
        assert titles(app)[0] == "reward: 0.02"
        run.add(3, reward__error_frac=0.5)
        await until(pilot, lambda: "step 3 of 40" in text(app, "status"))
        assert titles(app)[0] == "reward: 0.03"
        assert "error 50 %" in text(app, "panels")
        assert missing(text(app, "alerts"), "! rewards fail", "17 %", "3 steps", "since step 3") == []
        assert app.query_one("#alerts").display
        metrics = run.path / "metrics.jsonl"  # resumed from step 1
        (run.path / "kept").write_text(metrics.read_text().split("\n")[0] + "\n")
        os.replace(run.path / "kept", metrics)
        await until(pilot, lambda: "step 1 of 40" in text(app, "status"))
        assert not app.query_one("#alerts").display

    drive([run.path], (80, 24), steps)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["status", "alerts", "body", "curves", "side", "panels"])
def test_a_screen_that_is_taken_down_is_not_written_to(folder, name):
    run = folder().add(1, 2)

    async def steps(app, pilot):
        await app.query_one(f"#{name}").remove()
        before = app.states[0]
        run.add(3)
        await until(pilot, lambda: app.states[0] is not before)  # the news has come
        await pilot.resize_terminal(90, 24)
        await pilot.pause()

    drive([run.path], (80, 24), steps)


@pytest.mark.slow
def test_more_alerts_than_have_room_are_counted(folder):
    bad = folder().add(1, 2, reward__error_frac=0.5, ppo__ratio_p99=3.0, ppo__skipped_updates=1.0)
    bad.add(3, reward__timeout_frac=0.5)

    async def steps(app, pilot):
        assert text(app, "alerts").splitlines()[-1] == "! 1 more: press d"
        await pilot.press("d")
        await until(pilot, lambda: isinstance(app.screen, TextScreen))
        await until(pilot, lambda: "--reward_timeout" in screen(app))
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, TextScreen))

    drive([bad.path], (100, 30), steps)


@pytest.mark.slow
def test_several_runs(folder):
    runs = [folder(name).add(*range(1, n + 1)).path for n, name in enumerate(("one", "two", "three"), start=1)]

    async def steps(app, pilot):
        async def pressed(key):
            await pilot.press(key)
            await pilot.pause()
            return app.selected, text(app, "status").split(" | ")[1], titles(app)[0].split()[-1]

        assert app.query_one(RunTable).row_count == 3
        assert await pressed("tab") == (1, "step 2 of 40", "0.02")
        assert await pressed("right") == (2, "step 3 of 40", "0.03")
        assert await pressed("tab") == (0, "step 1 of 40", "0.01")
        assert await pressed("shift+tab") == (2, "step 3 of 40", "0.03")
        assert await pressed("left") == (1, "step 2 of 40", "0.02")
        assert await pressed("3") == (2, "step 3 of 40", "0.03")
        assert await pressed("9") == (2, "step 3 of 40", "0.03")
        assert await pressed("up") == (1, "step 2 of 40", "0.02")
        assert app.query_one(RunTable).cursor_row == 1
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(app.screen, TextScreen))
        assert (await pressed("tab"))[0] == 1  # the text is in front

    drive(runs, (80, 24), steps)


@pytest.mark.slow
def test_the_selected_run_stays_when_the_table_is_built_anew(folder):
    runs = [folder(name).add(1).path for name in ("one", "two", "three")]

    async def steps(app, pilot):
        for size in ((160, 40), (80, 24), (160, 40)):
            await pilot.press("tab")
            expected = app.selected
            await pilot.resize_terminal(*size)
            for _ in range(10):
                await pilot.pause(0.02)
                assert (app.selected, app.query_one(RunTable).cursor_row) == (expected, expected)

    drive(runs, (80, 24), steps)


@pytest.mark.slow
def test_curves_of_one_run_or_of_all(folder):
    runs = [folder("one").add(1, 2, 3).path, folder("two").add(*range(1, 6)).path]

    async def steps(app, pilot):
        chart = app.query_one(CurveChart)
        assert [mark.name for mark in chart.panel.marks] == ["2", "1"]  # the selected run over the other one
        assert str(chart.render()).count("2") > 0  # the second run's curve ends in its number
        await pilot.press("o", "2")
        await pilot.pause()
        assert [mark.name for mark in chart.panel.marks] == ["2"]

    drive(runs, (120, 40), steps)


@pytest.mark.slow
def test_help_and_quit(folder):
    run = folder().add(1)

    async def steps(app, pilot):
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(app.screen, TextScreen))
        await until(pilot, lambda: "logarithmic axes" in screen(app))
        run.add(2)
        await until(pilot, lambda: "step 2 of 40" in text(app, "status"))  # behind it
        await pilot.press("tab", "pagedown", "q")
        await until(pilot, lambda: not isinstance(app.screen, TextScreen))
        await pilot.press("q")
        await until(pilot, lambda: not app.is_running)

    drive([run.path], (80, 24), steps)


@pytest.mark.slow
def test_sizes(folder):
    runs = [folder("one").add(*range(1, 30)).path, folder("two").add(1).path, folder("three").path]

    async def steps(app, pilot):
        for size in ((200, 60), (80, 24), (30, 8), (10, 3), (1, 1), (300, 20), (20, 100), (120, 40)):
            await pilot.resize_terminal(*size)
            await pilot.press("l", "tab")
            await until(pilot, lambda size=size: app.size == size)
        await until(pilot, lambda: "one" in screen(app))  # in the table of runs, once it is laid out again

    drive(runs, (80, 24), steps)


@pytest.mark.slow
def test_a_file_that_cannot_be_read_is_named(folder, monkeypatch):
    run = folder().add(1, 2)

    async def steps(app, pilot):
        metrics = run.path / "metrics.jsonl"
        metrics.unlink()
        metrics.mkdir()
        await until(pilot, lambda: text(app, "status") == "demo cannot be read: Is a directory")
        metrics.rmdir()
        await until(pilot, lambda: "step 2 of 40" in text(app, "status"))

    drive([run.path], (80, 24), steps)
