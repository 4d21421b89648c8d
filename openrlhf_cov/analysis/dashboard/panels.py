"""The words and numbers of the dashboard as plain text; the application adds places and colors (pure)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from openrlhf_cov.analysis.dashboard.state import RunState
from openrlhf_cov.analysis.pages.ticks import label
from openrlhf_cov.analysis.regression import Floats
from openrlhf_cov.analysis.runs import KEPT_ONLY
from openrlhf_cov.utils.metric_table import ENTROPY, title_and_unit
from openrlhf_cov.utils.text_table import duration

BAR_WIDTH = 10
SPARK_WIDTH = 40
SHORTEST_NAME = 12
TABLE_COLUMNS = ("step", "reward", "entropy", "cov", "length", "s/step", "tok/s", "ceiling", "alerts", "state")
ABOUT = "about the file"


@dataclass(frozen=True)
class TextPanel:
    """A titled block of lines."""

    title: str
    lines: tuple[str, ...]


def headline(state: RunState, now: float, width: int | None = None) -> str:
    """Return one line about a run: its name, its step, its ETA if it moves, and its activity.

    Args:
        state: The run.
        now: Unix time in seconds.
        width: Characters into which the line has to fit, for which the name is shortened; None keeps the whole name.
    """
    activity = state.activity(now)
    parts = [activity.text]
    if state.curves:
        parts = [step_of(state), *([f"ETA {eta(state, now)}"] if activity.state == "running" else []), *parts]
    rest = " | ".join(["", *parts])
    name = state.name if width is None else shortened(state.name, max(SHORTEST_NAME, width - len(rest)))
    return name + rest


def step_of(state: RunState) -> str:
    """Return ``step 12 of 40``, or ``step 12`` where the total is not known."""
    return f"step {state.done:,}" + (f" of {state.total.steps:,}" if state.total else "")


def eta(state: RunState, now: float) -> str:
    """Return the time to the end of a run as text, or "unknown".

    Args:
        state: The run.
        now: Unix time in seconds.
    """
    seconds = state.remaining(now)
    about = "" if state.total is None or state.total.exact or not math.isfinite(seconds) else "about "
    return about + duration(seconds)


def panels(state: RunState, now: float) -> list[TextPanel]:
    """Return the texts beside the curves; panels without a line are left out.

    Args:
        state: The run.
        now: Unix time in seconds.
    """
    if not state.curves:
        found = [TextPanel("run", (state.activity(now).text, f"in {state.path}")), TextPanel(ABOUT, state.warnings)]
        return [panel for panel in found if panel.lines]
    against = _against(state)
    law = ["does not apply:", *(f"- {reason}" for reason in against)] if against else _fit(state)
    found = [
        TextPanel("progress", tuple(_progress(state, now))),
        TextPanel("time of a step", tuple(_times(state))),
        TextPanel("rollouts, newest step", tuple(_rollouts(state))),
        TextPanel("entropy law R = -a exp(H) + b", tuple(law)),
        TextPanel(ABOUT, state.warnings),
    ]
    return [panel for panel in found if panel.lines]


def compact(state: RunState, now: float) -> list[str]:
    """Return the content of ``panels`` for small screens and logs: about one line for each panel.

    Args:
        state: The run.
        now: Unix time in seconds.
    """
    warnings = [f"file: {warning}" for warning in state.warnings]
    if not state.curves:
        return [f"{state.activity(now).text} in {state.path}", *warnings]
    total = f" of {state.total.steps:,} ({state.total.how})" if state.total else ", total unknown"
    shares = ", ".join(f"{phase.name} {phase.share:.0%}" for phase in state.phases)
    lines = [f"pace: {_pace(state)}, step {state.done:,}{total}"]
    lines += [f"time: {shares}"] if shares else []
    lines += _rollouts(state)
    against = _against(state)
    further = len(against) - 1
    more = f" (and {further} more reason{'s' if further > 1 else ''})" if further > 0 else ""
    law = f"does not apply: {against[0]}{more}" if against else "; ".join(_fit(state))
    return [*lines, f"entropy law: {law}", *warnings]


def shortened(name: str, width: int) -> str:
    """Return the end of a long name, which distinguishes runs more often than its start.

    Args:
        name: The name of a run.
        width: Most characters of the result, at least 2.
    """
    return name if len(name) <= width else "…" + name[1 - width :]


def table_cells(state: RunState, now: float) -> dict[str, str]:
    """Return the row of a run in the table of runs: heading -> cell, "-" for what the log does not have.

    Args:
        state: The run.
        now: Unix time in seconds.
    """
    law = state.law
    ceiling = label(law.fit.ceiling.estimate) if law and law.fit and law.verdict.applies else "-"
    values = {curve.metric: label(curve.last) for curve in state.curves}
    return {
        "step": f"{state.done}" + (f"/{state.total.steps}" if state.total else ""),
        "reward": values.get("reward", "-"),
        "entropy": values.get(ENTROPY, "-"),
        "cov": values.get("cov/mean", "-"),
        "length": values.get("response_length", "-"),
        "s/step": label(round(state.pace.mean, 2)) if math.isfinite(state.pace.mean) else "-",
        "tok/s": _whole(state.tokens_per_second[1]),
        "ceiling": ceiling,
        "alerts": str(len(state.alerts)),
        "state": state.activity(now).state,
    }


def snapshot(states: Sequence[RunState], now: float) -> str:
    """Return all runs as plain text, for logs and scripts.

    Args:
        states: The runs, in the order of the text.
        now: Unix time in seconds.
    """
    return "\n\n".join("\n".join(_block(state, now)) for state in states) + "\n"


def _block(state: RunState, now: float) -> list[str]:
    lines = [headline(state, now)]
    width = max((len(title_and_unit(curve.metric)) for curve in state.curves), default=0)
    for curve in state.curves:
        name = title_and_unit(curve.metric)
        if len(curve.values):
            ends = f"{label(float(curve.values[0])):>9} to {label(curve.last):<9}"
            lines.append(f"  {name:<{width}}  {ends} {sparkline(curve.values, SPARK_WIDTH)}")
    lines += [f"  {line}" for line in compact(state, now)]
    return [*lines, *(f"  ALERT {alert.line}" for alert in state.alerts)]


def _progress(state: RunState, now: float) -> list[str]:
    lines = [step_of(state), *([f"  from {state.total.how}"] if state.total else ["  total unknown"])]
    lines.append(_pace(state))
    if state.activity(now).state == "running":
        known = state.total is not None
        lines.append(f"ETA {eta(state, now) if known else 'unknown: give the number of steps by --steps N'}")
    return [*lines, state.activity(now).text]


def _pace(state: RunState) -> str:
    return f"{duration(state.pace.mean)} per step" if math.isfinite(state.pace.mean) else "pace unknown"


def _times(state: RunState) -> list[str]:
    """Return a line per phase: its seconds in the newest step, and its share of the last steps as number and bar."""
    if not state.phases:
        return []
    width = max(len(phase.name) for phase in state.phases)
    lines = [
        f"{phase.name:<{width}} {_seconds(phase.seconds)} {phase.share:4.0%} {_bar(phase.share)}".rstrip()
        for phase in state.phases
    ]
    return [*lines, f"{'newest step':<{width}} {_seconds(state.step_seconds)}"]


def _rollouts(state: RunState) -> list[str]:
    """Return tokens per second, sampling and statuses of the grader. What the log does not have is left out."""
    generating, overall = state.tokens_per_second
    lines = []
    if math.isfinite(overall):
        speed = f"tokens/s: {_whole(generating)} in generation, {_whole(overall)}"
        selected = f"; {_percent(state.selected_frac)} selected" if state.selected_frac > 0 else ""
        lines.append(f"{speed} over the whole step{selected}")
    if state.sampling:
        # All of these numbers are shares, except for the number of rounds.
        entries = state.sampling.items()
        shown = [f"{name} {label(value) if name == 'rounds' else _percent(value)}" for name, value in entries]
        lines.append("sampling: " + ", ".join(shown))
    for name, numbers in (("gradient", state.gradient), ("method", state.own)):
        if numbers:
            lines.append(f"{name}: " + ", ".join(f"{title}: {label(value)}" for title, value in numbers.items()))
    if state.grader:
        lines.append("responses: " + ", ".join(f"{name} {_percent(value)}" for name, value in state.grader.items()))
    return lines


def _fit(state: RunState) -> list[str]:
    result = state.law
    if result is None or result.fit is None:
        return ["no fit yet"]
    fit = result.fit
    ceiling = result.fit.ceiling
    return [
        f"a {label(fit.a.estimate)}, b {label(fit.b.estimate)}, R² {label(round(fit.r2, 2))}, {fit.points:,} points",
        f"ceiling R(H=0) {label(ceiling.estimate)} ({label(ceiling.low)} to {label(ceiling.high)})",
        *([f"note: {KEPT_ONLY}"] if state.keeps_groups else []),
    ]


def _against(state: RunState) -> list[str]:
    return [reason.text for reason in state.law.verdict.reasons] if state.law else []


def _percent(share: float) -> str:
    if not math.isfinite(share):
        return "-"
    # One decimal below 10 %; from 9.95 % on it would read 10.0 %.
    return f"{100 * share:.{0 if share in (0, 1) or share >= 0.0995 else 1}f} %"


def _whole(value: float) -> str:
    return f"{value:,.0f}" if math.isfinite(value) else "-"


def _seconds(value: float) -> str:
    if not math.isfinite(value):
        return f"{'-':>6}  "
    return f"{value:6.2f} s" if value < 1000 else f"{value:6.0f} s"


def _bar(share: float) -> str:
    # Unicode has blocks of 1 to 7 eighths of a character.
    eighths = round(share * BAR_WIDTH * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def sparkline(values: Floats, width: int) -> str:
    """Return a series as a line of bars, from its lowest (▁) to its highest value (█); "" for an empty series.

    Args:
        values: The series (n,), finite.
        width: Most characters. A longer series is averaged: each character is the mean of its values.
    """
    if not len(values):
        return ""
    # Where each character begins in the series. A character is the mean of its values, so no value is left out.
    first = np.unique(np.linspace(0, len(values), min(width, len(values)), endpoint=False).astype(np.intp))
    means = np.add.reduceat(values, first) / np.diff([*first, len(values)])
    low = means.min()
    span = np.ptp(means)
    bars = "▁▂▃▄▅▆▇█"
    places = np.zeros(len(means)) if not span else (means - low) / span * (len(bars) - 1)
    return "".join(bars[int(place + 0.5)] for place in places)
