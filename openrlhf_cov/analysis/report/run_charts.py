"""The charts of one run in a report, and their panels, which pictures show beside those of other runs (pure)."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from openrlhf_cov.analysis.law import LawFit
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
    whisker,
)
from openrlhf_cov.analysis.regression import Floats
from openrlhf_cov.analysis.report.contents import LawLine, LawSection, Options, RunReport, TheorySection
from openrlhf_cov.analysis.report.curves import (
    ACCURACY_CURVES,
    BAND_CURVES,
    OTHER_PHASE,
    PHASES,
    Curve,
    Series,
    spread_out,
)
from openrlhf_cov.analysis.report.words import ends, number, share, with_interval
from openrlhf_cov.analysis.theory import GROUP_COVARIANCE
from openrlhf_cov.utils.estimates import LEVEL

# Points of the line of a forecast.
FORECAST_PLACES = 100
# Space around the rewards of the law, as a share of their span.
MARGIN = 0.08
# The axes of a cloud of points reach at most this many times as far as the range between these quantiles, so that
# single points do not squeeze all others together.
CLOUD_QUANTILES = (0.005, 0.995)
CLOUD_REACH = 1.6
# A stack of phases is drawn with 5 % of space above the slowest step. But it is cut at 1.6 times the time that 95 %
# of the steps stay below, because one step that stalls would make all others look flat.
STACK_HEADROOM = 1.05
STALL_LIMIT = 1.6
# Pixels of a chart of the law.
LAW_HEIGHT = 420
COVARIANCES = {1: "Cov(log π, π A)", 2: "Cov(log π, A)"}
EXP_H = Axis("exp(H), H the mean token entropy in nats")
FALL_NOTE = (
    "−ΔH is the entropy that the updates of a step took. The covariance is measured before these updates, over "
    "the responses to a prompt, and averaged over the prompts. Both are running means relative to their maximum. "
    "Theorem 1 describes one update per rollout: with several updates, the later ones contribute to −ΔH alone."
)
PHASE_NAMES = {each.column: each.label for each in (*PHASES, OTHER_PHASE)}


def detail_charts(run: RunReport) -> list[Chart]:
    """Return the charts of one run about its covariances and its time, as far as the run logged them."""
    found = [
        _chart(
            "bands", "Covariance of the top tokens", bands_panels(run), running_means(BAND_CURVES, [run], raw=False)
        ),
        _chart("accuracy", "Covariance by accuracy of the prompts", accuracy_panels(run), _accuracy_note(run)),
        _chart("phases", "Time of a step by phase", phase_panels(run), _phase_note(run)),
    ]
    return drawn_only(found)


def law_charts(run: RunReport, options: Options) -> list[Chart]:
    """Return the charts of one run about the entropy law and the theorems, as far as the run logged them.

    Args:
        run: The run.
        options: The choices of the user, of which the metric names the axis of R.
    """
    law = _chart("law", f"{options.metric} against exp(H)", law_panels(run, options), _law_note(run.law))
    found = [replace(law, height=LAW_HEIGHT) if law else None]
    for theory in run.theory:
        title = f"Theorem {theory.theorem}: change of entropy against its prediction"
        note = f"{theory.check.pairs:,} pairs of steps." if theory.check else ""
        panels = [replace(_theory_panel(theory), title="")] if theory.check else []
        found.append(_chart(f"theorem{theory.theorem}", title, panels, note))
    found.append(_chart("fall", "Drop of entropy and covariance (paper, equation 8)", fall_panels(run), FALL_NOTE))
    return drawn_only(found)


def drawn_only(charts: Sequence[Chart | None]) -> list[Chart]:
    """Return the charts that have something to show."""
    return [chart for chart in charts if chart is not None]


def _chart(name: str, title: str, panels: list[Panel], note: str) -> Chart | None:
    if not panels:
        return None
    return Chart(name, title, tuple(panels), f"{title}. {note}".strip(), note, linked=panels[0].x is STEPS)


def law_panels(run: RunReport, options: Options) -> list[Panel]:
    """Return the panel of the entropy law: its points and, where the law applies, its line, ceiling and forecast.

    Args:
        run: The run.
        options: The choices of the user, of which the metric names the axis of R.

    Returns:
        One panel; none for a run without points.
    """
    law = run.law
    points = run.law.points
    line = run.law.line
    if not len(points):
        return []
    x = np.exp(points.entropy)
    few = len(points) <= 200
    dots = Mark(
        "dots",
        Look(INK, marker="circle", size=6 if few else 4, opacity=0.8 if few else 0.6),
        x,
        points.reward,
        name="steps, late ones strong",
        by_time=True,
        hover="step %{customdata}: exp(H) %{x:.4~g}, R %{y:.4~g}<extra></extra>",
        texts=points.steps.tolist(),
    )
    marks = [dots]
    shown = points.reward
    if line is not None and law.accepted:
        # Bands lie behind the dots, lines in front of them.
        marks = [*_law_bands(line), dots, *_law_line(line, law.accepted), *_forecast(law)]
        shown = np.concatenate([shown, line.reward])
    elif line is not None:
        # Only over the entropies of the run, so that nobody reads a ceiling off it.
        inside = (line.exp_entropy >= x.min()) & (line.exp_entropy <= x.max())
        fit = (line.exp_entropy[inside], line.reward[inside])
        marks.append(Mark("line", Look(FAINT, "dot"), *fit, name="fit, not to be relied on", group="fit"))
    margin = MARGIN * (float(np.ptp(shown)) or 1.0)
    reach = Axis(shortened(options.metric), ends=(float(shown.min() - margin), float(shown.max() + margin)))
    return [Panel(tuple(marks), EXP_H, reach, said=_law_words(law))]


def _law_words(law: LawSection) -> str:
    fit = law.accepted
    if fit is None:
        codes = dict.fromkeys(reason.code.replace("_", " ") for reason in law.result.verdict.reasons)
        return "the law does not apply: " + shortened(", ".join(codes), 40)
    return f"a {number(fit.a.estimate)}, b {number(fit.b.estimate)}, ceiling {with_interval(fit.ceiling)}"


def _law_note(law: LawSection) -> str:
    points = f"{law.point_count:,} points, from light (early) to dark (late)."
    if law.accepted:
        return (
            f"{points} At exp(H) = 1 no entropy is left, and the line is at its ceiling. The darker band is the "
            "interval of the line, the lighter one the interval of a further point."
        )
    return f"{points} The law does not apply to this run; the dotted line is the fit for comparison."


def _law_bands(line: LawLine) -> list[Mark]:
    level = share(LEVEL)
    look = Look(color_of(0), opacity=0.1)
    outer = bands(
        line.exp_entropy,
        line.point_low,
        line.point_high,
        look,
        name=f"{level} interval of a further point",
        group="fit",
    )
    look = replace(look, opacity=0.25)
    return [
        *outer,
        *bands(line.exp_entropy, line.low, line.high, look, name=f"{level} interval of the line", group="fit"),
    ]


def _law_line(line: LawLine, fit: LawFit) -> list[Mark]:
    hover = "fit at exp(H) %{x:.4~g}: R %{y:.4~g}<extra></extra>"
    look = Look(color_of(0), width=2.5)
    fitted = Mark("line", look, line.exp_entropy, line.reward, name="fitted line", group="fit", hover=hover)
    point = whisker(Look(color_of(0), marker="diamond", size=9, hollow=True), [1.0], fit.ceiling, "")
    said = f"ceiling {number(fit.ceiling.estimate)}, {ends(fit.ceiling)}<extra></extra>"
    return [fitted, replace(point, name="ceiling, R at H = 0", group="fit", hover=said, texts=())]


def _forecast(law: LawSection) -> list[Mark]:
    """Return the line that the first points predict over the entropies that came later, with its interval."""
    found = law.forecast
    if found is None or not len(found.later):
        return []
    # By entropy, not by time: a line that goes back and forth along the axis could not be read.
    order = np.argsort(found.later.entropy, kind="stable")
    order = order[spread_out(len(order), FORECAST_PLACES)]
    x = np.exp(found.later.entropy[order])
    look = Look(color_of(1), "dash", width=2.5)
    name = f"forecast of the first {found.fit.points:,} points"
    hover = "forecast at exp(H) %{x:.4~g}: R %{y:.4~g}<extra></extra>"
    area = bands(x, found.low[order], found.high[order], replace(look, opacity=0.12), group="forecast")
    return [*area, Mark("line", look, x, found.predicted[order], name=name, group="forecast", hover=hover)]


def theory_panels(run: RunReport) -> list[Panel]:
    """Return a panel per theorem: the measured change of entropy against the predicted one; none without a check."""
    return [_theory_panel(theory) for theory in run.theory] if any(theory.check for theory in run.theory) else []


def _theory_panel(theory: TheorySection) -> Panel:
    check = theory.check
    title = f"theorem {theory.theorem}"
    if check is None:
        return Panel((), title=title, said=theory.reason)
    hover = "predicted %{x:.3~g}, measured %{y:.3~g}<extra></extra>"
    look = Look(color_of(0), size=6 if check.pairs <= 200 else 4, opacity=0.65)
    marks = [Mark("dots", look, check.predicted, check.changes, name="steps", hover=hover)]
    if len(theory.group_predicted):
        look = Look(color_of(1), marker="square", width=2.5, size=7)
        means = (theory.group_predicted, theory.group_changes)
        marks.append(Mark("line", look, *means, name="means of tenths of the steps", hover="tenth: " + hover))
    x = Axis(f"−η {COVARIANCES[theory.theorem]}, up to a constant", zero=True, ends=_reach(check.predicted))
    y = Axis("measured ΔH, nats", zero=True, ends=_reach(check.changes))
    return Panel(tuple(marks), x, y, title, f"rank correlation {with_interval(check.correlation)}")


def _reach(values: Floats) -> tuple[float, float]:
    """Return ends of an axis that show the cloud, 0, and outliers that are not far."""
    low, high = np.quantile(values, CLOUD_QUANTILES)
    middle = (low + high) / 2
    half = (high - low) / 2 or abs(high) or 1.0
    low = min(max(values.min(), middle - CLOUD_REACH * half), 0.0)
    high = max(min(values.max(), middle + CLOUD_REACH * half), 0.0)
    margin = 0.05 * (high - low or 1.0)
    return float(low - margin), float(high + margin)


def fall_panels(run: RunReport) -> list[Panel]:
    """Return −ΔH of a step and equation 8 before it, each relative to its maximum (paper, figure 8)."""
    changes = run.series.get("entropy/delta")
    covariance = run.series.get(GROUP_COVARIANCE)
    if changes is None or covariance is None:
        return []
    # The change that step t + 1 measures is that of the updates of step t.
    falls = replace(changes, steps=changes.steps - 1, values=-changes.values, mean=-changes.mean)
    shown = {"−ΔH": falls, "Cov(log π, π A), paper eq. 8": covariance}
    marks: list[Mark] = []
    for place, (name, series) in enumerate(shown.items()):
        # The scale is the maximum of the running mean.
        size = float(np.nanmax(np.abs(series.mean))) or 1.0
        relative = replace(series, values=series.values / size, mean=series.mean / size)
        marks += curve(relative, name, name, look_of(place), raw=False)
    said = f"rank correlation {with_interval(run.group_correlation)}" if run.group_correlation else ""
    return [Panel(tuple(marks), y=Axis("relative to the maximum", zero=True), said=said)]


def bands_panels(run: RunReport) -> list[Panel]:
    """Return the mean covariance of the top tokens by step."""
    axis = Axis("mean covariance of the top tokens", log=True)
    return [Panel(marks, y=axis)] if (marks := _curves(run, BAND_CURVES)) else []


def accuracy_panels(run: RunReport) -> list[Panel]:
    """Return the covariance for hard, medium and easy prompts, of responses (as in the paper) and of tokens."""
    found = {title: _curves(run, curves) for title, curves in ACCURACY_CURVES.items()}
    return [Panel(marks, y=Axis(title)) for title, marks in found.items() if marks]


def _accuracy_note(run: RunReport) -> str:
    curves = [each for curves in ACCURACY_CURVES.values() for each in curves]
    note = f"{running_means(curves, [run], raw=False)} In the paper, easy prompts have the higher covariance.".strip()
    if run.accuracy:
        title, found = next(iter(run.accuracy.items()))
        apart = found.easy_minus_hard
        note += f" Here, easy minus hard of {title} is {number(apart.estimate)} ({ends(apart)})."
    return note


def _curves(run: RunReport, curves: Sequence[Curve]) -> tuple[Mark, ...]:
    marks: list[Mark] = []
    for place, each in enumerate(curves):
        if each.column in run.series:
            marks += curve(run.series[each.column], each.label, each.label, look_of(place), raw=False)
    return tuple(marks)


def curve(series: Series, name: str, group: str, look: Look, raw: bool = True, hover: str = "") -> list[Mark]:
    """Return the marks of a curve: the running mean in front of its faint values.

    Args:
        series: The values and their running mean by step.
        name: Name in the legend.
        group: Curves of one group are shown and hidden together.
        look: Color and style of the line.
        raw: False for the running mean alone.
        hover: Text beside the pointer; "" for step and value.
    """
    mean = Mark("line", look, series.steps, series.mean, name=name, group=group, hover=hover or "step %{x}: %{y:.4~g}")
    if not raw or series.window == 1:
        return [mean]
    faint = replace(look, width=1, opacity=0.3, dash="solid", marker="")
    return [Mark("line", faint, series.steps, series.values, group=group), mean]


def running_means(panels: Sequence[Curve], runs: Sequence[RunReport], raw: bool) -> str:
    """Return a sentence about the lines of some columns; it is empty where lines show the values themselves.

    Args:
        panels: The columns.
        runs: The runs whose lines are drawn.
        raw: True if the values are drawn behind their means.
    """
    found = [run.series[each.column].window for each in panels for run in runs if each.column in run.series]
    if max(found, default=1) == 1:
        return ""
    behind = ", with the values behind them" if raw else ""
    return f"Lines are running means over up to {max(found)} logged steps{behind}."


def phase_panels(run: RunReport) -> list[Panel]:
    """Return the seconds of a step by phase, stacked; cut where few steps are far above the others."""
    if run.phases is None:
        return []
    hover = "step %{x}: %{y:.3~g} s"
    looks = (Look(color_of(place), hatch=hatch) for place, hatch in enumerate(HATCHES))
    marks = [
        Mark("stack", look, run.phases.steps, seconds, name=PHASE_NAMES[column], hover=hover)
        for look, (column, seconds) in zip(looks, run.phases.seconds.items(), strict=False)
    ]
    # A step that stalls, such as the first one that compiles kernels, would hide the phases of all others.
    totals = np.sum(list(run.phases.seconds.values()), axis=0)
    height = float(min(STACK_HEADROOM * totals.max(), STALL_LIMIT * np.quantile(totals, 0.95))) or 1.0
    cut = f"up to {totals.max():.3g} s, cut" if totals.max() > height else ""
    return [Panel(tuple(marks), y=Axis("seconds per step", ends=(0.0, height)), said=cut)]


def _phase_note(run: RunReport) -> str:
    if run.phases is None:
        return ""
    sums = {PHASE_NAMES[column]: float(seconds.sum()) for column, seconds in run.phases.seconds.items()}
    total = sum(sums.values())
    if total <= 0:
        return ""
    shares = [f"{name} {share(part / total)}" for name, part in sums.items()]
    return f"Share of all time: {', '.join(shares)}."
