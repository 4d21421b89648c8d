"""The charts of a report, for its files and for its page (pure); None stands for a chart with nothing to show."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

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
    short_names,
    shortened,
)
from openrlhf_cov.analysis.regression import Floats
from openrlhf_cov.analysis.report.contents import (
    TRAINING_METRICS,
    Contents,
    Extrapolation,
    LawLine,
    LawSection,
    Options,
    RunReport,
    TheorySection,
    evaluation_columns,
    is_part,
    is_score,
)
from openrlhf_cov.analysis.report.curves import (
    ACCURACY_CURVES,
    BAND_CURVES,
    CURVE_FIGURES,
    METHOD_FIGURES,
    OTHER_PHASE,
    OVERVIEW,
    PHASES,
    PROGRESS,
    SELECTED_SHARE,
    Curve,
    CurveFigure,
    Series,
    spread_out,
)
from openrlhf_cov.analysis.report.words import ends, number, share, size_text, with_interval
from openrlhf_cov.analysis.theory import GROUP_COVARIANCE
from openrlhf_cov.utils.estimates import LEVEL, Interval

# With more runs, only running means are drawn, without the values behind them.
MAX_RAW = 4
# With more runs, each line has its own label instead of one label for all lines at a step.
TOGETHER = 5
# Panels of a picture that has panels for each run.
MAX_PANELS = 9
# Runs in the picture of coefficients.
MAX_ROWS = 40
# Dots of a run in a chart with other runs.
DOTS = 300
# Panels of the scores of evaluations; the page has a selection of the other numbers.
MAX_SCORES = 4
# Points of the line of a forecast.
FORECAST_PLACES = 100
# Space around the rewards of the law, as a share of their span.
MARGIN = 0.08
# The axes of a cloud reach at most 1.6 times as far as the range between these quantiles.
SHOWN = (0.005, 0.995)
REACH = 1.6
# A stack is cut at 1.6 times the height that 95 % of the steps stay below.
ABOVE = 1.05
STALL = 1.6
# Pixels of a chart of the law.
LAW_HEIGHT = 420
COEFFICIENTS = {"a": "a", "b": "b", "ceiling": "ceiling, −a + b"}
COVARIANCES = {1: "Cov(log π, π A)", 2: "Cov(log π, A)"}
EXP_H = Axis("exp(H), H the mean token entropy in nats")
ZOOM = "With a mouse, drag across a chart to zoom; all charts by step follow. Double-click to zoom out."
FALL_NOTE = (
    "−ΔH is the entropy that the updates of a step took. The covariance is measured before these updates, over "
    "the responses to a prompt, and averaged over the prompts. Both are running means relative to their maximum. "
    "Theorem 1 describes one update per rollout: with several updates, the later ones contribute to −ΔH alone."
)


# --- curves by step


@dataclass(frozen=True)
class PageCharts:
    """The charts of a page with a line per run, by section; ``numbers`` has one chart per number of evaluations."""

    overview: Chart | None
    method: list[Chart]
    scores: Chart | None
    numbers: list[Chart]
    law: list[Chart]


def page_charts(contents: Contents) -> PageCharts:
    """Return the charts of a page with a line per run; the law of a single run is among the charts of the run."""
    overview = curve_chart(contents, OVERVIEW)
    method = [curve_chart(contents, figure, without=OVERVIEW.columns) for figure in METHOD_FIGURES]
    law = [law_of_all(contents) if len(contents.runs) > 1 else None, size_chart(contents)]
    scores, numbers = evaluation_charts(contents)
    return PageCharts(overview, _drawn(method), scores, numbers, _drawn(law))


def _drawn(charts: Sequence[Chart | None]) -> list[Chart]:
    return [chart for chart in charts if chart is not None]


def run_key(place: int) -> str:
    """Return the legend group of the run at this place, which is the same in every chart."""
    return f"run{place}"


def labels(contents: Contents) -> list[str]:
    """Return the names of the runs as legends show them."""
    return short_names([run.name for run in contents.runs])


def curve_chart(contents: Contents, figure: CurveFigure, *, without: Sequence[str] = ()) -> Chart | None:
    """Return a chart with a panel for each column that a run has values of, and a line per run in each panel.

    Args:
        contents: The runs.
        figure: The columns.
        without: Columns of the figure that are left out.
    """
    runs = contents.runs
    wanted = figure.panels_of(column for run in runs for column in run.series)
    if figure in (OVERVIEW, PROGRESS) and contents.options.metric not in figure.columns:
        wanted += (Curve(contents.options.metric, shortened(contents.options.metric)),)
    # A run without a method logs zeros for its selection; empty panels about it would say nothing.
    selects = any((run.series[SELECTED_SHARE].values > 0).any() for run in runs if SELECTED_SHARE in run.series)
    selection = () if selects else (SELECTED_SHARE, "cov/selected_abs_log_ratio", "cov/selected_ppo_kl")
    wanted = tuple(panel for panel in wanted if panel.column not in (*without, *selection))
    panels = [_run_panel(contents, panel) for panel in wanted]
    drawn = [panel for panel in panels if panel.marks]
    if not drawn:
        return None
    note = running_means(wanted, runs, raw=len(runs) <= MAX_RAW)
    return Chart(
        name=figure.name,
        title=figure.title,
        panels=tuple(drawn),
        description=f"{figure.title} by global step of {len(runs)} runs: {', '.join(panel.title for panel in drawn)}.",
        note=" ".join(filter(None, [note, ZOOM if figure is OVERVIEW else ""])),
        linked=True,
        together=1 < len(runs) <= TOGETHER,
    )


def _run_panel(contents: Contents, panel: Curve) -> Panel:
    """Return a panel with a line per run; it has no marks if no run has values."""
    runs = contents.runs
    names = labels(contents)
    column = panel.column
    is_evaluation = any(column in run.evaluations for run in runs)
    # Beyond MAX_RAW runs the faint values would hide the means. Evaluations have few values, so they are always shown.
    raw = len(runs) <= MAX_RAW or is_evaluation
    # Where one box lists all runs at a step, the box names the step once.
    hover = "%{y:.4~g}" if 1 < len(runs) <= TOGETHER else ""
    marks: list[Mark] = []
    for place, run in enumerate(runs):
        series = run.series.get(column, run.evaluations.get(column))
        if series is not None:
            marks += curve(series, names[place], run_key(place), look_of(place), raw=raw, hover=hover)
    can_be_share = column in TRAINING_METRICS or (is_evaluation and is_score(column))
    return Panel(tuple(marks), y=_curve_axis(marks, panel.share, can_be_share), title=panel.label)


def _curve_axis(marks: Sequence[Mark], is_share: bool, can_be_share: bool) -> Axis:
    """Return the y axis of curves, which ends where values are impossible.

    Values that are never negative have an axis that ends at 0. A score that stays within 0 and 1 is a share of correct
    responses, so its axis ends at 1.
    """
    values = Panel(tuple(marks)).values("y")
    if is_share or not len(values) or values.min() < 0:
        return Axis(share=is_share)
    return Axis(possible=(0.0, 1.0 if can_be_share and values.max() <= 1 else math.inf))


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


def evaluation_charts(contents: Contents) -> tuple[Chart | None, list[Chart]]:
    """Return a chart of the main scores, and a chart for each of the other numbers of the evaluations."""
    columns = evaluation_columns(contents.runs)
    if not columns:
        return None, []
    together = 1 < len(contents.runs) <= TOGETHER
    found = [column for column in columns if is_score(column)]
    overall = [column for column in found if not is_part(column, columns)]
    main = (overall or found or columns[:1])[:MAX_SCORES]
    panels = tuple(_run_panel(contents, Curve(column, column)) for column in main)
    words = f"Scores of evaluations by global step: {', '.join(main)}."
    scores = Chart("scores", "Scores", panels, words, linked=True, together=together)
    others = [
        Chart(
            f"evaluation{place}",
            column,
            (replace(_run_panel(contents, Curve(column, column)), title=""),),
            f"{column} by global step.",
            linked=True,
            together=together,
        )
        for place, column in enumerate(columns)
        if column not in main
    ]
    return scores, others


# --- the law across runs


def law_of_all(contents: Contents) -> Chart | None:
    """Return R against exp(H) of all runs, with the line of each run that the law describes, down to its ceiling."""
    metric = contents.options.metric
    names = labels(contents)
    marks = []
    for place, run in enumerate(contents.runs):
        points = run.law.points
        line = run.law.line
        if not len(points):
            continue
        # A browser draws some hundred dots of each run without delay.
        few = spread_out(len(points), DOTS)
        marks.append(
            Mark(
                "dots",
                look_of(place, opacity=0.45),
                np.exp(points.entropy[few]),
                points.reward[few],
                name=names[place],
                group=run_key(place),
                hover="step %{customdata}: exp(H) %{x:.4~g}, R %{y:.4~g}",
                texts=points.steps[few].tolist(),
            )
        )
        # A line of a run that the law does not describe would invite reading off a ceiling.
        if line is not None and run.law.accepted:
            look = look_of(place, marker="", width=2.5)
            hover = "line at exp(H) %{x:.4~g}: R %{y:.4~g}"
            marks.append(Mark("line", look, line.exp_entropy, line.reward, group=run_key(place), hover=hover))
    if not marks:
        return None
    applies = sum(run.law.accepted is not None for run in contents.runs)
    return Chart(
        "law_of_all",
        "Reward against entropy, all runs",
        (Panel(tuple(marks), EXP_H, Axis(shortened(metric))),),
        f"{metric} against exp(H) of {len(contents.runs)} runs; {applies} have a fitted line.",
        "A dot is a step. A line ends at its ceiling, at exp(H) = 1, where no entropy is left. Runs that the law does "
        "not describe have dots only.",
        height=LAW_HEIGHT,
    )


def size_chart(contents: Contents) -> Chart | None:
    """Return a, b and the ceiling against the size of the model, with the trend and its extrapolation."""
    section = contents.sizes
    if section is None or section.trend is None:
        return None
    fits = {run.name: run.law.result.fit for run in contents.runs}
    sizes = [each.size for each in section.grid]
    panels = []
    for row, (name, title) in enumerate(COEFFICIENTS.items()):
        trend = [_coefficient(each, name) for each in section.grid]
        look = look_of(row, dash="solid", marker="")
        area = replace(look, opacity=0.2)
        marks = bands(sizes, [each.low for each in trend], [each.high for each in trend], area)
        hover = "trend at %{customdata}: %{y:.4~g}"
        middle = [each.estimate for each in trend]
        marks.append(Mark("line", look, sizes, middle, hover=hover, texts=list(map(size_text, sizes))))
        for run, size in zip(section.names, section.sizes, strict=True):
            if fit := fits[run]:
                look = look_of(row, size=8, hollow=run in section.unfit)
                said = f"{shortened(run)}, {size_text(size)}"
                marks.append(whisker(look, [size], _coefficient(fit, name), said))
        if wanted := section.extrapolation:
            look = look_of(row, marker="star", size=11)
            said = f"extrapolated to {size_text(wanted.size)}"
            marks.append(whisker(look, [wanted.size], _coefficient(wanted, name), said))
        ticks = {tick: size_text(tick) for tick in size_ticks(min(sizes), max(sizes))}
        panels.append(Panel(tuple(marks), Axis("non-embedding parameters", log=True, ticks=ticks), title=title))
    note = f"Bands are {share(LEVEL)} intervals for one more model of that size; two sizes have no interval."
    note += " Hollow: the law does not describe this run." if section.unfit else ""
    words = f"a, b and ceiling of {len(section.names)} runs against model size, with their trend."
    return Chart("model_size", "Coefficients against model size", tuple(panels), words, note)


def _coefficient(found: Extrapolation | LawFit, name: str) -> Interval:
    return getattr(found, name)


def size_ticks(low: float, high: float) -> list[float]:
    """Return the ticks of an axis of model sizes: 1, 2 and 5 times powers of ten.

    Args:
        low: Lower end of the axis in parameters, above 0.
        high: Upper end of the axis in parameters.

    Returns:
        The ticks within [low, high]; both ends where there are fewer than two of these.
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    inside = [tick for tick in ticks if low <= tick <= high]
    return inside if len(inside) > 1 else [low, high]


def coefficients_chart(contents: Contents) -> Chart | None:
    """Return a, b and the ceiling of every run with a fit; hollow and grey where the law does not apply."""
    found = [(run, run.law.result.fit) for run in contents.runs if run.law.result.fit]
    shown = found[:MAX_ROWS]
    if len(shown) < 2:
        return None
    names = short_names([run.name for run, _ in shown])
    names = [
        name if run.law.accepted else f"{name}\n(does not apply)" for name, (run, _) in zip(names, shown, strict=True)
    ]
    # The axis goes from high to low, so that the first run is at the top.
    rows = Axis(ticks=dict(enumerate(names)), ends=(len(shown) - 0.5, -0.5))
    panels = []
    for name in COEFFICIENTS:
        marks = []
        for row, (run, fit) in enumerate(shown):
            look = Look(color_of(0) if run.law.accepted else FAINT, hollow=not run.law.accepted, size=6)
            value = _coefficient(fit, name)
            marks.append(Mark("dots", look, [value.estimate], [row], [value.low], [value.high], whiskers="x"))
        panels.append(Panel(tuple(marks), Axis(), rows, title=name))
    title = _part_of("Coefficients of the law", len(shown), len(found))
    return Chart("coefficients", title, tuple(panels), shared="y", row=1.1 + 0.32 * len(shown))


def whisker(look: Look, x: Sequence[float], interval: Interval, said: str) -> Mark:
    """Return a dot with the whiskers of an interval along y.

    Args:
        look: Color and marker of the dot.
        x: The place on the x axis, (1,).
        interval: The value and its interval.
        said: Text in front of the value in the label of the dot.
    """
    hover = "%{customdata}: %{y:.4~g}"
    return Mark("dots", look, x, [interval.estimate], [interval.low], [interval.high], hover=hover, texts=[said])


# --- one run


def detail_charts(run: RunReport) -> list[Chart]:
    """Return the charts of one run about its covariances and its time, as far as the run logged them."""
    found = [
        _chart(
            "bands", "Covariance of the top tokens", bands_panels(run), running_means(BAND_CURVES, [run], raw=False)
        ),
        _chart("accuracy", "Covariance by accuracy of the prompts", accuracy_panels(run), _accuracy_note(run)),
        _chart("phases", "Time of a step by phase", phase_panels(run), _phase_note(run)),
    ]
    return _drawn(found)


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
    return _drawn(found)


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


def bands_panels(run: RunReport) -> list[Panel]:
    """Return the mean covariance of the top tokens by step."""
    axis = Axis("mean covariance of the top tokens", log=True)
    return [Panel(marks, y=axis)] if (marks := _curves(run, BAND_CURVES)) else []


def _curves(run: RunReport, curves: Sequence[Curve]) -> tuple[Mark, ...]:
    marks: list[Mark] = []
    for place, each in enumerate(curves):
        if each.column in run.series:
            marks += curve(run.series[each.column], each.label, each.label, look_of(place), raw=False)
    return tuple(marks)


def accuracy_panels(run: RunReport) -> list[Panel]:
    """Return the covariance for hard, medium and easy prompts, of responses (as in the paper) and of tokens."""
    found = {title: _curves(run, curves) for title, curves in ACCURACY_CURVES.items()}
    return [Panel(marks, y=Axis(title)) for title, marks in found.items() if marks]


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
        marks += curve(_relative(series), name, name, look_of(place), raw=False)
    said = f"rank correlation {with_interval(run.group_correlation)}" if run.group_correlation else ""
    return [Panel(tuple(marks), y=Axis("relative to the maximum", zero=True), said=said)]


def _relative(series: Series) -> Series:
    """Return the series relative to the maximum of its running mean."""
    size = float(np.nanmax(np.abs(series.mean))) or 1.0
    return replace(series, values=series.values / size, mean=series.mean / size)


def _accuracy_note(run: RunReport) -> str:
    curves = [each for curves in ACCURACY_CURVES.values() for each in curves]
    note = f"{running_means(curves, [run], raw=False)} In the paper, easy prompts have the higher covariance.".strip()
    if run.accuracy:
        title, found = next(iter(run.accuracy.items()))
        apart = found.easy_minus_hard
        note += f" Here, easy minus hard of {title} is {number(apart.estimate)} ({ends(apart)})."
    return note


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
    # One outlier would otherwise squeeze the cloud into a line.
    low, high = np.quantile(values, SHOWN)
    middle = (low + high) / 2
    half = (high - low) / 2 or abs(high) or 1.0
    low = min(max(values.min(), middle - REACH * half), 0.0)
    high = max(min(values.max(), middle + REACH * half), 0.0)
    margin = 0.05 * (high - low or 1.0)
    return float(low - margin), float(high + margin)


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
    height = float(min(ABOVE * totals.max(), STALL * np.quantile(totals, 0.95))) or 1.0
    cut = f"up to {totals.max():.3g} s, cut" if totals.max() > height else ""
    return [Panel(tuple(marks), y=Axis("seconds per step", ends=(0.0, height)), said=cut)]


PHASE_NAMES = {each.column: each.label for each in (*PHASES, OTHER_PHASE)}


def _phase_note(run: RunReport) -> str:
    if run.phases is None:
        return ""
    sums = {PHASE_NAMES[column]: float(seconds.sum()) for column, seconds in run.phases.seconds.items()}
    total = sum(sums.values())
    if total <= 0:
        return ""
    shares = [f"{name} {share(part / total)}" for name, part in sums.items()]
    return f"Share of all time: {', '.join(shares)}."


# --- files


def pictures(contents: Contents) -> list[Chart]:
    """Return the charts that are written as files."""
    metric = shortened(contents.options.metric)

    def law(run: RunReport) -> list[Panel]:
        return law_panels(run, contents.options)

    beside = [
        runs_beside(contents, "law", f"The entropy law R = −a exp(H) + b, R: {metric}", law, shared="xy"),
        runs_beside(contents, "covariance_bands", "Covariance of the tokens, by band", bands_panels, shared="y"),
        runs_beside(contents, "entropy_change", "Change of entropy against its prediction", theory_panels),
        runs_beside(contents, "entropy_fall", "Drop of entropy and covariance", fall_panels),
        runs_beside(contents, "timing", "Time of a step, by phase", phase_panels, shared="y"),
        runs_beside(contents, "covariance_by_accuracy", "Covariance by the accuracy of the prompt", accuracy_panels),
    ]
    curves = [curve_chart(contents, figure) for figure in CURVE_FIGURES]
    return _drawn([*curves, *beside, coefficients_chart(contents), size_chart(contents)])


def runs_beside(
    contents: Contents,
    name: str,
    title: str,
    panels_of: Callable[[RunReport], list[Panel]],
    shared: str = "",
) -> Chart | None:
    """Return a picture with the panels of each run, for as many runs as fit; None if no run has a panel.

    Args:
        contents: The runs.
        name: Name of the file.
        title: Title of the picture, which gets the number of runs that are left out.
        panels_of: Returns the panels of a run.
        shared: Axes that all panels have in common: "x", "y", "xy" or none. A shared y axis covers all panels.
    """
    found = [
        (label, panels)
        for label, run in zip(labels(contents), contents.runs, strict=True)
        if (panels := panels_of(run))
    ]
    if not found:
        return None
    most = max(len(panels) for _, panels in found)
    shown = found[: MAX_PANELS // most]
    panels: list[Panel] = []
    for label, of_run in shown:
        for panel in of_run:
            panels.append(replace(panel, title=", ".join(filter(None, [label, panel.title]))))
    # With a shared axis, matplotlib takes the ends of the panel that it draws last.
    ranges = [panel.y.ends for panel in panels if panel.y.ends]
    if "y" in shared and len(ranges) == len(panels):
        both = (min(low for low, _ in ranges), max(high for _, high in ranges))
        panels = [replace(panel, y=replace(panel.y, ends=both)) for panel in panels]
    title = _part_of(title, len(shown), len(found))
    return Chart(name, title, tuple(panels), columns=3 if most == 1 else most, shared=shared)


def _part_of(title: str, shown: int, found: int) -> str:
    return title if shown == found else f"{title} ({shown} of {found} runs)"
