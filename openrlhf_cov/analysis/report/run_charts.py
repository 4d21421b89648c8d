"""The panels of one run: the law, the theory, its curves by step, for the page and for pictures (pure)."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from openrlhf_cov.analysis.pages.chart import (
    FAINT,
    HATCHES,
    INK,
    STEPS,
    Axis,
    Chart,
    Look,
    Mark,
    Panel,
    bands,
    color_of,
    look_of,
    shortened,
)
from openrlhf_cov.analysis.regression import Floats
from openrlhf_cov.analysis.report.contents import Options, RunReport, TheorySection
from openrlhf_cov.analysis.report.curves import (
    ACCURACY_CURVES,
    BAND_CURVES,
    OTHER_PHASE,
    PHASES,
    Curve,
)
from openrlhf_cov.analysis.report.series import Series, spread_out
from openrlhf_cov.analysis.report.words import ends, number, share, with_interval
from openrlhf_cov.analysis.theory import GROUP_COVARIANCE
from openrlhf_cov.utils.estimates import LEVEL, Interval

FORECAST_PLACES = 100
"""Of the line of a forecast."""
MARGIN = 0.08
"""Around the rewards of the law, in parts of their span."""
SHOWN, REACH = (0.005, 0.995), 1.6
"""Quantiles between which most of a cloud lies; its axes reach no further than so many times as far."""
ABOVE, STALL = 1.05, 1.6
"""Height of stacks: above the highest, and at most so many times what 95 % of the steps stay below."""
COVARIANCES = {1: "Cov(log π, π A)", 2: "Cov(log π, A)"}
EXP_H = Axis("exp(H), H the mean token entropy in nats")
FALL_NOTE = (
    "−ΔH is what the updates of a step took; the covariance, over the responses of a prompt and then over all "
    "prompts, is that before them. Both are running means in parts of their largest. Theorem 1 is about one update "
    "per rollout: with several, what comes after the first is in −ΔH alone."
)
SOLID = {"dash": "solid", "marker": ""}

RUN_CHARTS = {
    "law": "R against exp(H)",
    "bands": "Covariance bands",
    "theorem1": "Theorem 1: ΔH against its prediction",
    "theorem2": "Theorem 2: ΔH against its prediction",
    "fall": "Fall of entropy and covariance",
    "accuracy": "Covariance by accuracy of the prompts",
    "phases": "Time by phase",
}
"""Names and titles of the charts of a run in the page, in their order."""


def curve(series: Series, name: str, group: str, look: Look, raw: bool = True, hover: str = "") -> list[Mark]:
    """The values, faint, and the running mean; the values alone where that is the same, or without ``raw``."""
    mean = Mark("line", look, series.steps, series.mean, name=name, group=group)
    mean = replace(mean, hover=hover or "step %{x}: %{y:.4~g}")
    if not raw or series.window == 1:
        return [mean]
    return [Mark("line", replace(look, width=1, opacity=0.3, **SOLID), series.steps, series.values, group=group), mean]


def running_means(panels: Sequence[Curve], runs: Sequence[RunReport], raw: bool) -> str:
    """What the lines of these columns are, in words; empty where all are the values themselves."""
    found = [run.series[each.column].window for each in panels for run in runs if each.column in run.series]
    if max(found, default=1) == 1:
        return ""
    return f"Lines are running means of up to {max(found)} logged steps" + (
        ", with the values behind." if raw else "."
    )


def whisker(look: Look, x: Sequence[float], interval: Interval, said: str) -> Mark:
    hover = "%{customdata}: %{y:.4~g}"
    y, low, high = (np.array([getattr(interval, each)]) for each in ("estimate", "low", "high"))
    return Mark("dots", look, x, y, low, high, hover=hover, texts=[said])


def run_charts(run: RunReport, options: Options) -> list[Chart]:
    """Those that the run has numbers for."""
    found: dict[str, tuple[list[Panel], str, str]] = {
        "law": (law_panels(run, options), f"{options.metric} against exp(H)", _law_note(run)),
        "bands": (bands_panels(run), "Covariance bands by step", running_means(BAND_CURVES, [run], raw=False)),
        "fall": (fall_panels(run), "Fall of entropy and covariance of paper eq. 8 by step", FALL_NOTE),
        "accuracy": (accuracy_panels(run), "Covariance for hard, medium and easy prompts", _accuracy_note(run)),
        "phases": (phase_panels(run), "Seconds per step by phase", _phase_note(run)),
    }
    for theory, panel in zip(run.theory, theory_panels(run), strict=False):
        words = f"Measured against predicted change of entropy by theorem {theory.theorem}"
        note = f"{theory.check.pairs:,} pairs of steps." if theory.check else ""
        found[f"theorem{theory.theorem}"] = ([replace(panel, title="")] if panel.marks else [], words, note)
    return [
        Chart(
            name,
            title,
            tuple(panels),
            f"{words}. {note}",
            note,
            linked=panels[0].x is STEPS,
            wide=name == "law",
            height=420 if name == "law" else None,
        )
        for name, title in RUN_CHARTS.items()
        for panels, words, note in [found.get(name, ([], "", ""))]
        if panels
    ]


def law_panels(run: RunReport, options: Options) -> list[Panel]:
    """Points, and where the law applies its line with both intervals, the ceiling and the forecast."""
    law, points = run.law, run.law.points
    if not len(points):
        return []
    applies, x = law.result.verdict.applies and law.line is not None, np.exp(points.entropy)
    hover, few = "step %{customdata}: exp(H) %{x:.4~g}, R %{y:.4~g}<extra></extra>", len(points) <= 200
    look = Look(INK, marker="circle", size=6 if few else 4, opacity=0.8 if few else 0.6)
    name = "steps, late ones strong"
    dots = Mark("dots", look, x, points.reward, name=name, by_time=True, hover=hover, texts=points.steps.tolist())
    marks = [*(_law_bands(run, options) if applies else []), dots]
    shown = points.reward
    if applies:
        marks += [*_law_line(run), *_forecast(run)]
        shown = np.concatenate([shown, law.line.reward])
    elif law.line is not None:
        # over the entropies of the run alone: no ceiling is read off it
        inside = (law.line.exp_entropy >= x.min()) & (law.line.exp_entropy <= x.max())
        name, line = "fit, not to be relied on", (law.line.exp_entropy[inside], law.line.reward[inside])
        marks.append(Mark("line", Look(FAINT, "dot"), *line, name=name, group="fit"))
    margin = MARGIN * (np.ptp(shown) or 1.0)
    reach = Axis(shortened(options.metric), ends=(float(shown.min() - margin), float(shown.max() + margin)))
    return [Panel(tuple(marks), EXP_H, reach, said=_law_words(run))]


def _law_words(run: RunReport) -> str:
    verdict, fit = run.law.result.verdict, run.law.result.fit
    if not verdict.applies:
        codes = dict.fromkeys(reason.code.replace("_", " ") for reason in verdict.reasons)
        return "the law does not apply: " + shortened(", ".join(codes), 40)
    return f"a {number(fit.a.estimate)}, b {number(fit.b.estimate)}, ceiling {with_interval(fit.ceiling)}"


def _law_note(run: RunReport) -> str:
    return f"{run.law.point_count:,} points; training goes from right to left." + (
        " At exp(H) = 1 no entropy is left: there the line is at its ceiling. The darker band is the interval of the "
        "line, the lighter one that of a further point."
        if run.law.result.verdict.applies
        else " The law does not apply here, for the reasons above; the dotted line is what a fit gives all the same."
    )


def _law_bands(run: RunReport, options: Options) -> list[Mark]:
    line, level = run.law.line, share(LEVEL)
    style, names = {"group": "fit"}, (f"{level} interval of a further point", f"{level} interval of the line")
    look = Look(color_of(0), opacity=0.1)
    return [
        *bands(line.exp_entropy, line.point_low, line.point_high, look, name=names[0], **style),
        *bands(line.exp_entropy, line.low, line.high, replace(look, opacity=0.25), name=names[1], **style),
    ]


def _law_line(run: RunReport) -> list[Mark]:
    line, ceiling, color = run.law.line, run.law.result.fit.ceiling, color_of(0)
    hover = "fit at exp(H) %{x:.4~g}: R %{y:.4~g}<extra></extra>"
    said = f"ceiling {number(ceiling.estimate)}, {ends(ceiling)}<extra></extra>"
    point = whisker(Look(color, marker="diamond", size=9, hollow=True), [1.0], ceiling, "")
    return [
        Mark(
            "line", Look(color, width=2.5), line.exp_entropy, line.reward, name="fitted line", group="fit", hover=hover
        ),
        replace(point, name="ceiling, R at H = 0", group="fit", hover=said, texts=()),
    ]


def _forecast(run: RunReport) -> list[Mark]:
    """The line of the first points over the entropies that came after, with its interval."""
    found = run.law.forecast
    if found is None or not len(found.later):
        return []
    order = np.argsort(found.later.entropy, kind="stable")
    order = order[spread_out(len(order), FORECAST_PLACES)]
    x, look = np.exp(found.later.entropy[order]), Look(color_of(1), "dash", width=2.5)
    name, hover = f"forecast of the first {found.fit.points:,} points", "forecast at exp(H) %{x:.4~g}: R %{y:.4~g}"
    area = bands(x, found.low[order], found.high[order], replace(look, opacity=0.12), group="forecast")
    hover += "<extra></extra>"
    return [*area, Mark("line", look, x, found.predicted[order], name=name, group="forecast", hover=hover)]


def bands_panels(run: RunReport) -> list[Panel]:
    """Mean covariance of the top tokens."""
    axis = Axis("mean covariance of the top tokens", log=True)
    return [Panel(marks, y=axis)] if (marks := _curves(run, BAND_CURVES)) else []


def _curves(run: RunReport, curves: Sequence[Curve]) -> tuple[Mark, ...]:
    shown = [(place, each) for place, each in enumerate(curves) if each.column in run.series]
    return tuple(
        mark
        for place, each in shown
        for mark in curve(run.series[each.column], each.label, each.label, look_of(place), raw=False)
    )


def accuracy_panels(run: RunReport) -> list[Panel]:
    """Covariance of hard, medium and easy prompts: of responses, first as in the paper, and of tokens."""
    found = {title: _curves(run, curves) for title, curves in ACCURACY_CURVES.items()}
    return [Panel(marks, y=Axis(title)) for title, marks in found.items() if marks]


def fall_panels(run: RunReport) -> list[Panel]:
    """-dH of a step's updates and eq. 8 before them, by step, each in parts of its largest (paper, Fig. 8)."""
    changes, covariance = run.series.get("entropy/delta"), run.series.get(GROUP_COVARIANCE)
    if changes is None or covariance is None:
        return []
    # the change that step t + 1 measures is that of the updates of step t
    falls = replace(changes, steps=changes.steps - 1, values=-changes.values, mean=-changes.mean)
    shown = {"−ΔH": falls, "Cov(log π, π A), paper eq. 8": covariance}
    marks = [
        mark
        for place, (name, series) in enumerate(shown.items())
        for mark in curve(_in_parts(series), name, name, look_of(place), raw=False)
    ]
    said = f"rank correlation {with_interval(run.group_correlation)}" if run.group_correlation else ""
    return [Panel(tuple(marks), y=Axis("parts of the largest", zero=True), said=said)]


def _in_parts(series: Series) -> Series:
    """The series over the largest of its running mean."""
    size = float(np.nanmax(np.abs(series.mean))) or 1.0
    return replace(series, values=series.values / size, mean=series.mean / size)


def _accuracy_note(run: RunReport) -> str:
    means = running_means([each for curves in ACCURACY_CURVES.values() for each in curves], [run], raw=False)
    note = f"{means} In the paper easy prompts have the higher covariance.".strip()
    for title, found in list(run.accuracy.items())[:1]:
        apart = found.easy_minus_hard
        note += f" Easy minus hard here, {title}: {number(apart.estimate)} ({ends(apart)})."
    return note


def theory_panels(run: RunReport) -> list[Panel]:
    """Measured change of entropy against the predicted one, a panel per theorem; empty where none can be checked."""
    return [_theory_panel(theory) for theory in run.theory] if any(theory.check for theory in run.theory) else []


def _theory_panel(theory: TheorySection) -> Panel:
    check, title = theory.check, f"theorem {theory.theorem}"
    if check is None:
        return Panel((), title=title, said=theory.reason)
    few, hover = check.pairs <= 200, "predicted %{x:.3~g}, measured %{y:.3~g}<extra></extra>"
    look = Look(color_of(0), size=6 if few else 4, opacity=0.65)
    marks = [Mark("dots", look, check.predicted, check.changes, name="steps", hover=hover)]
    if len(theory.group_predicted):
        look, name = Look(color_of(1), marker="square", width=2.5, size=7), "means of tenths of the steps"
        marks.append(
            Mark("line", look, theory.group_predicted, theory.group_changes, name=name, hover="tenth: " + hover)
        )
    x = Axis(f"−η {COVARIANCES[theory.theorem]}, up to a constant", zero=True, ends=_reach(check.predicted))
    y = Axis("ΔH measured, nats", zero=True, ends=_reach(check.changes))
    return Panel(tuple(marks), x, y, title, f"rank correlation {with_interval(check.correlation)}")


def _reach(values: Floats) -> tuple[float, float]:
    """Ends of an axis that shows the cloud, 0 and the outliers that are not far."""
    low, high = np.quantile(values, SHOWN)
    middle, half = (low + high) / 2, (high - low) / 2 or abs(high) or 1.0
    ends = max(values.min(), middle - REACH * half), min(values.max(), middle + REACH * half)
    low, high = min(ends[0], 0.0), max(ends[1], 0.0)
    margin = 0.05 * (high - low or 1.0)
    return float(low - margin), float(high + margin)


def phase_panels(run: RunReport) -> list[Panel]:
    """Seconds of a step by phase, stacked; cut where a few steps (compilation, a stall) are far above the others."""
    if run.phases is None:
        return []
    names = {each.column: each.label for each in (*PHASES, OTHER_PHASE)}
    x, hover = run.phases.steps, "step %{x}: %{y:.3~g} s"
    looks = (Look(color_of(place), hatch=hatch) for place, hatch in enumerate(HATCHES))
    marks = [
        Mark("stack", look, x, seconds, name=names[column], hover=hover)
        for look, (column, seconds) in zip(looks, run.phases.seconds.items(), strict=False)
    ]
    totals = np.sum(list(run.phases.seconds.values()), axis=0)
    height = float(min(ABOVE * totals.max(), STALL * np.quantile(totals, 0.95))) or 1.0
    cut = f"up to {totals.max():.3g} s, cut" if totals.max() > height else ""
    return [Panel(tuple(marks), y=Axis("seconds per step", ends=(0.0, height)), said=cut)]


def _phase_note(run: RunReport) -> str:
    if run.phases is None:
        return ""
    names = {each.column: each.label for each in (*PHASES, OTHER_PHASE)}
    sums = {names[column]: float(seconds.sum()) for column, seconds in run.phases.seconds.items()}
    total = sum(sums.values())
    parts = ", ".join(f"{label} {share(part / total)}" for label, part in sums.items()) if total else "nothing logged"
    return f"Of all time: {parts}."
