"""The charts of a report, for its pictures and for its page (pure). A text in the place of a chart says why not."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from openrlhf_cov.analysis.regression import Floats
from openrlhf_cov.pages.chart import (
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
    short_names,
    shortened,
)
from openrlhf_cov.report.contents import Contents, Options, RunReport, TheorySection
from openrlhf_cov.report.curves import (
    ACCURACY_CURVES,
    BAND_CURVES,
    CURVE_FIGURES,
    LENGTH,
    OTHER_PHASE,
    PHASES,
    PROGRESS,
    SAMPLING,
    SELECTION,
    TOKEN_ACCURACY_CURVES,
    Curve,
    CurveFigure,
    CurvePanel,
)
from openrlhf_cov.report.series import Series, spread_out
from openrlhf_cov.report.words import ends, number, share, size_text, with_interval

MOST_RAW = 4
"""Runs up to which single values are drawn behind their running mean."""
TOGETHER = 5
"""Runs up to which one label has the values of all at a step."""
MOST_PANELS = 9
"""Of a picture with panels for each run."""
MOST_ROWS = 40
"""Runs of the picture of coefficients."""
DOTS, FORECAST_PLACES = 300, 100
"""Dots of a run beside those of others; places of the line of a forecast."""
MARGIN = 0.08
"""Around the rewards of the law, in parts of their span."""
SHOWN, REACH = (0.005, 0.995), 1.6
"""Quantiles between which most of a cloud lies; its axes reach no further than so many times as far."""
ABOVE, STALL = 1.05, 1.6
"""Height of stacks: above the highest, and at most so many times what 95 % of the steps stay below."""
COEFFICIENTS = {"a": "a", "b": "b", "ceiling": "ceiling, −a + b"}
COVARIANCES = {1: "Cov(log π, π A)", 2: "Cov(log π, A)"}
EXP_H = Axis("exp(H), H the mean token entropy in nats")
SOLID = {"dash": "solid", "marker": ""}

RUN_CHARTS = {
    "law": "R against exp(H)",
    "bands": "Covariance bands",
    "theorem1": "Theorem 1: ΔH against its prediction",
    "theorem2": "Theorem 2: ΔH against its prediction",
    "accuracy": "Covariance by accuracy of the prompts",
    "phases": "Time by phase",
}
"""Names and titles of the charts of a run in the page, in their order."""


def run_key(place: int) -> str:
    """Legend group of the run at this place, in every chart."""
    return f"run{place}"


def labels(contents: Contents) -> list[str]:
    return short_names([run.name for run in contents.runs])


def curve(series: Series, name: str, group: str, look: Look, raw: bool = True, hover: str = "") -> list[Mark]:
    """The values, faint, and the running mean; the values alone where that is the same, or without ``raw``."""
    mean = Mark("line", look, series.steps, series.mean, name=name, group=group)
    mean = replace(mean, hover=hover or "step %{x}: %{y:.4~g}")
    if not raw or series.window == 1:
        return [mean]
    return [Mark("line", replace(look, width=1, opacity=0.3, **SOLID), series.steps, series.values, group=group), mean]


def running_means(panels: Sequence[CurvePanel | Curve], runs: Sequence[RunReport], raw: bool) -> str:
    """What the lines of these columns are, in words; empty where all are the values themselves."""
    found = [run.series[each.column].window for each in panels for run in runs if each.column in run.series]
    if max(found, default=1) == 1:
        return ""
    return f"Lines are running means of up to {max(found)} logged steps" + (
        ", with the values behind." if raw else "."
    )


def curve_chart(contents: Contents, figure: CurveFigure) -> Chart | str:
    """A panel for each column that any run has values of, a line per run in each."""
    runs, names, wanted = contents.runs, labels(contents), figure.panels
    if figure is PROGRESS and contents.options.metric not in figure.columns:
        wanted += (CurvePanel(contents.options.metric, contents.options.metric),)
    found = [(panel, [run.series.get(panel.column, run.evaluations.get(panel.column)) for run in runs])
             for panel in wanted]  # fmt: skip
    found = [(panel, curves) for panel, curves in found if any(curves)]
    if not found:
        return f"no run has {' or '.join(figure.columns)}"
    selected = [run.series[SELECTION.columns[0]].values for run in runs if SELECTION.columns[0] in run.series]
    if figure is SELECTION and not any((values > 0).any() for values in selected):
        return "no token was selected in any run"
    raw, together = len(runs) <= MOST_RAW, 1 < len(runs) <= TOGETHER
    panels = []
    for panel, curves in found:
        marks = [
            mark
            for place, series in enumerate(curves)
            if series is not None
            for mark in curve(
                series, names[place], run_key(place), look_of(place), raw, "%{y:.4~g}" if together else ""
            )
        ]
        panels.append(Panel(tuple(marks), y=Axis(share=panel.share), title=panel.axis))
    zoom = "With a mouse, drag across to zoom: all charts by step follow. A double-click goes back."
    words = [running_means([panel for panel, _ in found], runs, raw), zoom if figure is PROGRESS else ""]
    return Chart(
        name=figure.name,
        title=figure.title,
        panels=tuple(panels),
        description=f"{figure.title} by global step, {len(runs)} runs: {', '.join(p.axis for p, _ in found)}.",
        note=" ".join(filter(None, words)),
        linked=True,
        together=together,
        wide=figure is PROGRESS,
    )


def law_of_all(contents: Contents) -> Chart | str:
    """R against exp(H) of all runs, with the line of each run that follows the law, down to its ceiling."""
    metric, names, marks = contents.options.metric, labels(contents), []
    for place, run in enumerate(contents.runs):
        points, law, style = run.law.points, run.law, {"name": names[place], "group": run_key(place)}
        if not len(points):
            continue
        few = spread_out(len(points), DOTS)
        at, look = np.exp(points.entropy[few]), look_of(place, opacity=0.45)
        hover = "step %{customdata}: exp(H) %{x:.4~g}, R %{y:.4~g}"
        marks.append(
            Mark("dots", look, at, points.reward[few], hover=hover, texts=points.steps[few].tolist(), **style)
        )
        if law.line is not None and law.result.verdict.applies:
            look = look_of(place, marker="", width=2.5)
            hover = "line at exp(H) %{x:.4~g}: R %{y:.4~g}"
            marks.append(Mark("line", look, law.line.exp_entropy, law.line.reward, group=run_key(place), hover=hover))
    if not marks:
        return _no_law(contents)
    applies = sum(run.law.result.verdict.applies for run in contents.runs)
    return Chart(
        "law_of_all",
        "The law, all runs",
        (Panel(tuple(marks), EXP_H, Axis(metric)),),
        f"{metric} against exp(H) of {len(contents.runs)} runs; {applies} have a fitted line.",
        "Training goes from right to left. A line ends at exp(H) = 1, where no entropy is left: its ceiling. "
        "Runs to which the law does not apply have dots only.",
        wide=True,
        height=400,
    )


def _no_law(contents: Contents) -> str:
    return f"no run has entropy and {contents.options.metric} of the same steps"


def evaluation_charts(contents: Contents) -> list[Chart]:
    """A chart for each number of evaluations, scores before lengths and shares of failures."""
    runs, names = contents.runs, labels(contents)
    columns = list(dict.fromkeys(name for run in runs for name in run.evaluations))
    columns.sort(key=lambda name: ("avg@" not in name and "pass" not in name and "acc" not in name, name))
    charts = []
    for number_of, column in enumerate(columns):
        marks = [
            mark
            for place, run in enumerate(runs)
            if column in run.evaluations
            for mark in curve(run.evaluations[column], names[place], run_key(place), look_of(place))
        ]
        said = f"{column} by global step, {len(marks)} runs."
        charts.append(Chart(f"evaluation{number_of}", column, (Panel(tuple(marks)),), said, linked=True))
    return charts


def size_chart(contents: Contents) -> Chart | str:
    """a, b and the ceiling against the size of the model, with the trend and where it leads."""
    section = contents.sizes
    if section is None:
        return "no run has a size (--size RUN=N)"
    if section.trend is None:
        return section.reason
    fits = {run.name: run.law.result.fit for run in contents.runs}
    sizes, wanted, panels = [each.size for each in section.grid], section.extrapolation, []
    for row, (name, title) in enumerate(COEFFICIENTS.items()):
        trend, color = [getattr(each, name) for each in section.grid], look_of(row, **SOLID)
        marks = bands(sizes, [each.low for each in trend], [each.high for each in trend], replace(color, opacity=0.2))
        middle, hover = [each.estimate for each in trend], "trend at %{customdata}: %{y:.4~g}"
        marks.append(Mark("line", color, sizes, middle, hover=hover, texts=list(map(size_text, sizes))))
        for run, size in zip(section.names, section.sizes, strict=True):
            look = look_of(row, size=8, hollow=run in section.unfit)
            said = f"{shortened(run)}, {size_text(size)}"
            marks.append(_whisker(look, [size], getattr(fits[run], name), said))
        if wanted is not None:
            look, said = look_of(row, marker="star", size=11), f"extrapolated to {size_text(wanted.size)}"
            marks.append(_whisker(look, [wanted.size], getattr(wanted, name), said))
        ticks = {tick: size_text(tick) for tick in size_ticks(min(sizes), max(sizes))}
        panels.append(Panel(tuple(marks), Axis("non-embedding parameters", log=True, ticks=ticks), title=title))
    note = f"Bands: where one more model of that size would lie, {share(contents.options.level)}; none with two sizes."
    note += " Hollow: the law does not apply to that run." if section.unfit else ""
    words = f"a, b and ceiling of {len(section.names)} runs against model size, with their trend."
    return Chart("model_size", "Coefficients against model size", tuple(panels), words, note, wide=True)


def _whisker(look: Look, x: Sequence[float], interval, said: str) -> Mark:
    hover = "%{customdata}: %{y:.4~g}"
    y, low, high = (np.array([getattr(interval, each)]) for each in ("estimate", "low", "high"))
    return Mark("dots", look, x, y, low, high, hover=hover, texts=[said])


def size_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten between two sizes, both included; the ends where there are fewer than two."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    inside = [tick for tick in ticks if low <= tick <= high]
    return inside if len(inside) > 1 else [low, high]


def coefficients_chart(contents: Contents) -> Chart | str:
    """a, b and ceiling of every run with their intervals; hollow and grey where the law does not apply."""
    found = [run for run in contents.runs if run.law.result.fit]
    runs = found[:MOST_ROWS]
    if len(runs) < 2:
        return "fewer than two runs have a fit"
    names = [name + ("" if run.law.result.verdict.applies else "\n(does not apply)")
             for name, run in zip(short_names([run.name for run in runs]), runs, strict=True)]  # fmt: skip
    rows, panels = Axis(ticks=dict(enumerate(names)), ends=(len(runs) - 0.5, -0.5)), []
    for name in COEFFICIENTS:
        marks = []
        for row, run in enumerate(runs):
            applies, interval = run.law.result.verdict.applies, getattr(run.law.result.fit, name)
            look = Look(color_of(0) if applies else FAINT, hollow=not applies, size=6)
            x, low, high = (np.array([getattr(interval, each)]) for each in ("estimate", "low", "high"))
            marks.append(Mark("dots", look, x, [row], low, high, whiskers="x"))
        panels.append(Panel(tuple(marks), Axis(), rows, title=name))
    title = _part_of("Coefficients of the law", len(runs), len(found))
    return Chart("coefficients", title, tuple(panels), shared="y", row=1.1 + 0.32 * len(runs))


# --- one run


def run_charts(run: RunReport, options: Options) -> list[Chart]:
    """Those that the run has numbers for."""
    found: dict[str, tuple[list[Panel], str, str]] = {
        "law": (law_panels(run, options), f"{options.metric} against exp(H)", _law_note(run)),
        "bands": (bands_panels(run), "Covariance bands by step", running_means(BAND_CURVES, [run], raw=False)),
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
    reach = Axis(options.metric, ends=(float(shown.min() - margin), float(shown.max() + margin)))
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
    line, level = run.law.line, share(options.level)
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
    point = _whisker(Look(color, marker="diamond", size=9, hollow=True), [1.0], ceiling, "")
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
    """Covariance of hard, medium and easy prompts: of responses, as in the paper, and of tokens."""
    kinds = {"covariance of responses": ACCURACY_CURVES, "covariance of tokens": TOKEN_ACCURACY_CURVES}
    found = {title: _curves(run, curves) for title, curves in kinds.items()}
    return [Panel(marks, y=Axis(title)) for title, marks in found.items() if marks]


def _accuracy_note(run: RunReport) -> str:
    means = running_means((*ACCURACY_CURVES, *TOKEN_ACCURACY_CURVES), [run], raw=False)
    note = f"{means} In the paper easy prompts have the higher covariance.".strip()
    if run.accuracy is not None:
        apart = run.accuracy.easy_minus_hard
        note += f" Easy minus hard here, of responses: {number(apart.estimate)} ({ends(apart)})."
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


# --- pictures


def runs_beside(
    contents: Contents, name: str, title: str, panels_of: Callable[[RunReport], list[Panel]], why: str, **how: str
) -> Chart | str:
    """A picture with the panels of each run, as many runs as there is room for; axes that are shared have all ends."""
    names = labels(contents)
    found = [(label, panels) for label, run in zip(names, contents.runs, strict=True) if (panels := panels_of(run))]
    if not found:
        return why
    most = max(len(panels) for _, panels in found)
    shown = found[: MOST_PANELS // most]
    panels = [
        replace(panel, title=", ".join(filter(None, [label, panel.title]))) for label, each in shown for panel in each
    ]
    if "y" in how.get("shared", "") and all(panel.y.ends for panel in panels):
        low, high = min(panel.y.ends[0] for panel in panels), max(panel.y.ends[1] for panel in panels)
        panels = [replace(panel, y=replace(panel.y, ends=(low, high))) for panel in panels]
    columns = 3 if most == 1 else most
    return Chart(name, _part_of(title, len(shown), len(found)), tuple(panels), columns=columns, **how)


def _part_of(title: str, shown: int, found: int) -> str:
    return title if shown == found else f"{title} ({shown} of {found} runs)"


def laws(contents: Contents) -> Chart | str:
    title = f"The entropy law R = −a exp(H) + b, R: {contents.options.metric}"
    panels_of = partial(law_panels, options=contents.options)
    return runs_beside(contents, "law", title, panels_of, _no_law(contents), shared="xy")


def theories(contents: Contents) -> Chart | str:
    title, why = "Change of entropy against its prediction", contents.runs[0].theory[0].reason
    return runs_beside(contents, "entropy_change", title, theory_panels, why)


def _of_columns(name: str, title: str, panels_of: Callable[[RunReport], list[Panel]], column: str):
    why = f"no run has {column}"
    return partial(runs_beside, name=name, title=title, panels_of=panels_of, why=why, shared="y")


PICTURES: Mapping[str, Callable[[Contents], Chart | str]] = {
    PROGRESS.name: partial(curve_chart, figure=PROGRESS),
    "law": laws,
    "coefficients": coefficients_chart,
    "model_size": size_chart,
    "covariance_bands": _of_columns(
        "covariance_bands", "Covariance of the tokens, by band", bands_panels, f"{BAND_CURVES[0].column} and the like"
    ),
    "entropy_change": theories,
    SELECTION.name: partial(curve_chart, figure=SELECTION),
    SAMPLING.name: partial(curve_chart, figure=SAMPLING),
    LENGTH.name: partial(curve_chart, figure=LENGTH),
    "timing": _of_columns("timing", "Time of a step, by phase", phase_panels, "the time of its phases"),
    "covariance_by_accuracy": _of_columns(
        "covariance_by_accuracy",
        "Covariance by the accuracy of the prompt",
        accuracy_panels,
        f"{ACCURACY_CURVES[0].column} and the like",
    ),
}
"""By the name of the file: what there is to draw, or why there is nothing."""


def overview_charts(contents: Contents) -> tuple[list[Chart], list[str]]:
    """Charts of the page with a line per run, and the titles of those that no run has values for.

    Of a single run the law is among its own.
    """
    curves = {figure.title: curve_chart(contents, figure) for figure in CURVE_FIGURES}
    across = [law_of_all(contents) if len(contents.runs) > 1 else "", size_chart(contents)]
    first, *others = curves.values()
    charts = [chart for chart in (first, *across, *others) if isinstance(chart, Chart)]
    return charts, [title for title, chart in curves.items() if isinstance(chart, str)]
