"""Charts of the page about one run, as Plotly figures (pure)."""

import numpy as np

from openrlhf_cov.report.contents import Options, RunReport, TheorySection
from openrlhf_cov.report.curves import (
    ACCURACY_CURVES,
    BAND_CURVES,
    OTHER_PHASE,
    PHASES,
    TOKEN_ACCURACY_CURVES,
    Curve,
)
from openrlhf_cov.report.plotly_figure import (
    FAINT,
    GROUND,
    INK,
    PATTERNS,
    Chart,
    Json,
    axis_name,
    band,
    color_of,
    curve,
    line_of,
    numbers,
    panels,
    running_means,
    step_numbers,
)
from openrlhf_cov.report.words import ends, number, share

LAW_COLOR, FORECAST_COLOR = color_of(0), color_of(1)
FORECAST_PLACES = 100
FEW_DECADES = 30
"""Ratio of largest and smallest up to which a logarithmic axis has names between the powers of ten."""

RUN_CHARTS = {
    "law": "R against exp(H)",
    "bands": "Covariance bands",
    "theorem1": "Theorem 1: ΔH against its prediction",
    "theorem2": "Theorem 2: ΔH against its prediction",
    "accuracy": "Covariance by accuracy of the prompts",
    "phases": "Time by phase",
}
"""Names and titles of all charts of a run, in their order."""


def run_charts(run: RunReport, options: Options) -> list[Chart]:
    """Those that the run has numbers for."""
    charts = [law_chart(run, options), bands_chart(run)]
    charts += [theory_chart(theory) for theory in run.theory]
    charts += [accuracy_chart(run), phases_chart(run)]
    return [chart for chart in charts if chart is not None]


def law_chart(run: RunReport, options: Options) -> Chart | None:
    """Points, and where the law applies its line with both intervals, the ceiling and the forecast."""
    law = run.law
    if not len(law.points):
        return None
    applies = law.result.fit is not None and law.line is not None and law.result.verdict.applies
    traces = _law_band(run) if applies else []
    traces += [_law_points(run)]
    if applies:
        traces += [*_forecast_traces(run), *_law_line(run)]
    elif law.line is not None:
        traces.append(_doubtful_line(run))
    layout = panels([options.metric], [False], "exp(H), H the mean token entropy in nats") | {"height": 420}
    layout["hovermode"] = "closest"
    note = "Training goes from right to left." + (
        " At exp(H) = 1 no entropy is left: there the line is at its ceiling. The darker band is the interval of the "
        "line, the lighter one that of a further point."
        if applies
        else " The law does not apply here, for the reasons above; the dotted line is what a fit gives all the same."
    )
    found = "applies" if applies else "does not apply"
    words = f"{options.metric} against exp(H), {law.point_count} points; the law {found}."
    return Chart("law", RUN_CHARTS["law"], words, traces, layout, note)


def _law_points(run: RunReport) -> Json:
    points = run.law.points
    few = len(points) <= 200
    return {
        "type": "scatter",
        "name": "steps",
        "legendgroup": "steps",
        "mode": "markers",
        "x": numbers(np.exp(points.entropy)),
        "y": numbers(points.reward),
        "customdata": step_numbers(points.steps),
        "marker": {"color": INK, "size": 6 if few else 4, "opacity": 0.55 if few else 0.35},
        "hovertemplate": "step %{customdata}: exp(H) %{x:.4~g}, R %{y:.4~g}<extra></extra>",
    }


def _law_band(run: RunReport) -> list[Json]:
    line = run.law.line
    style = {"legendgroup": "fit", "showlegend": False, "name": "interval"}
    return [
        *band(line.exp_entropy, line.point_low, line.point_high, LAW_COLOR, style, 0.1),
        *band(line.exp_entropy, line.low, line.high, LAW_COLOR, style, 0.25),
    ]


def _doubtful_line(run: RunReport) -> Json:
    """The line where the law does not apply, over the entropies of the run alone: no ceiling is read off it."""
    line, seen = run.law.line, np.exp(run.law.points.entropy)
    inside = (line.exp_entropy >= seen.min()) & (line.exp_entropy <= seen.max())
    return {
        "type": "scatter",
        "name": "fit, not to be relied on",
        "legendgroup": "fit",
        "mode": "lines",
        "x": numbers(line.exp_entropy[inside]),
        "y": numbers(line.reward[inside]),
        "line": {"color": FAINT, "dash": "dot", "width": 2},
        "hoverinfo": "skip",
    }


def _law_line(run: RunReport) -> list[Json]:
    line, ceiling = run.law.line, run.law.result.fit.ceiling
    fitted = {"x": numbers(line.exp_entropy), "y": numbers(line.reward), "mode": "lines", "line": line_of(0, 3)}
    error = {"type": "data", "symmetric": False, "thickness": 2, "width": 6, "color": LAW_COLOR}
    error |= {"array": numbers([ceiling.high - ceiling.estimate])}
    error |= {"arrayminus": numbers([ceiling.estimate - ceiling.low])}
    point = {"x": [1], "y": numbers([ceiling.estimate]), "mode": "markers", "error_y": error}
    marker = {"color": GROUND, "size": 10, "symbol": "diamond", "line": {"color": LAW_COLOR, "width": 2.5}}
    said = f"ceiling {number(ceiling.estimate)}, {ends(ceiling)}<extra></extra>"
    shared = {"type": "scatter", "legendgroup": "fit"}
    return [
        shared
        | fitted
        | {"name": "fitted line", "hovertemplate": "fit at exp(H) %{x:.4~g}: R %{y:.4~g}<extra></extra>"},
        shared | point | {"name": "ceiling", "marker": marker, "showlegend": False, "hovertemplate": said},
    ]


def _forecast_traces(run: RunReport) -> list[Json]:
    """The line of the first points over the entropies that came after, with its interval."""
    found = run.law.forecast
    if found is None or not len(found.later):
        return []
    order = np.argsort(found.later.entropy, kind="stable")
    order = order[np.unique(np.linspace(0, len(order) - 1, FORECAST_PLACES).astype(int))]
    x = np.exp(found.later.entropy[order])
    style = {"legendgroup": "forecast", "showlegend": False, "name": "interval of the forecast"}
    line = {"x": numbers(x), "y": numbers(found.predicted[order]), "mode": "lines"}
    look = {"color": FORECAST_COLOR, "dash": "dash", "width": 2.5}
    hover = {"hovertemplate": "forecast at exp(H) %{x:.4~g}: R %{y:.4~g}<extra></extra>"}
    name = {"type": "scatter", "name": f"forecast of the first {found.fit.points:,} points", "legendgroup": "forecast"}
    return [
        *band(x, found.low[order], found.high[order], FORECAST_COLOR, style, 0.12),
        name | line | hover | {"line": look},
    ]


def bands_chart(run: RunReport) -> Chart | None:
    """Mean covariance of the top tokens, logarithmic where all of it is positive."""
    shown = {each.column: run.series[each.column] for each in BAND_CURVES if each.column in run.series}
    if not shown:
        return None
    traces = []
    for place, each in enumerate(BAND_CURVES):
        if each.column in shown:
            traces += curve(shown[each.column], each.label, each.column, line_of(place), raw=False)
    layout = panels(["mean covariance of the top tokens"], [False]) | {"hovermode": "closest"}
    means = np.concatenate([series.mean for series in shown.values()])
    lowest, highest = np.nanmin(means), np.nanmax(means)
    words = [running_means(shown.values(), raw=False)]
    if lowest > 0:
        ticks = 1 if highest > FEW_DECADES * lowest else "D2"
        layout["yaxis"] |= {"type": "log", "tickformat": "~g", "dtick": ticks}
        words.append("Logarithmic.")
    note = " ".join(filter(None, words))
    return Chart("bands", RUN_CHARTS["bands"], "Covariance bands by step.", traces, layout, note, linked=True)


def theory_chart(theory: TheorySection) -> Chart | None:
    """Measured change of entropy against the predicted one, with the means of tenths of the steps."""
    check = theory.check
    if check is None:
        return None
    dots = {
        "type": "scatter",
        "mode": "markers",
        "name": "steps",
        "legendgroup": "steps",
        "x": numbers(check.predicted),
        "y": numbers(check.changes),
        "marker": {"color": color_of(0), "size": 6 if check.pairs <= 200 else 4, "opacity": 0.65},
        "hovertemplate": "predicted %{x:.3~g}, measured %{y:.3~g}<extra></extra>",
    }
    traces = [dots]
    if len(theory.group_predicted):
        means = {"x": numbers(theory.group_predicted), "y": numbers(theory.group_changes), "mode": "lines+markers"}
        look = {
            "line": {"color": color_of(1), "width": 2.5},
            "marker": {"color": color_of(1), "symbol": "square", "size": 8},
        }
        hover = {"hovertemplate": "tenth of the steps: predicted %{x:.3~g}, measured %{y:.3~g}<extra></extra>"}
        name = {"type": "scatter", "name": "means of tenths", "legendgroup": "means"}
        traces.append(name | means | look | hover)
    layout = panels(["ΔH measured, nats"], [False], "ΔH predicted, up to a constant") | {"hovermode": "closest"}
    zero = {"zeroline": True, "zerolinecolor": FAINT, "zerolinewidth": 1}
    layout["xaxis"] |= zero | {"nticks": 5, "tickangle": 0, "exponentformat": "power"}
    layout["yaxis"] |= zero
    name = f"theorem{theory.theorem}"
    note = f"Rank correlation {number(check.correlation.estimate)} ({ends(check.correlation)}), {check.pairs:,} pairs."
    words = f"Measured against predicted change of entropy by theorem {theory.theorem}. {note}"
    return Chart(name, RUN_CHARTS[name], words, traces, layout, note)


def accuracy_chart(run: RunReport) -> Chart | None:
    """Covariance of hard, medium and easy prompts: of responses, as in the paper, and of tokens."""
    shown: list[tuple[str, tuple[Curve, ...]]] = [
        ("covariance of responses", ACCURACY_CURVES),
        ("covariance of tokens", TOKEN_ACCURACY_CURVES),
    ]
    shown = [(title, curves) for title, curves in shown if any(each.column in run.series for each in curves)]
    if not shown:
        return None
    traces = []
    for row, (_, curves) in enumerate(shown):
        for place, each in enumerate(curves):
            series = run.series.get(each.column)
            if series is not None:
                lines = curve(series, each.label, each.label, line_of(place), axis_name(row), raw=False)
                lines[-1]["showlegend"] = each.label not in {trace["name"] for trace in traces}
                traces += lines
    layout = panels([title for title, _ in shown], [False] * len(shown)) | {"hovermode": "closest"}
    drawn = [run.series[each.column] for _, curves in shown for each in curves if each.column in run.series]
    note = f"{running_means(drawn, raw=False)} In the paper easy prompts have the higher covariance.".strip()
    if run.accuracy is not None:
        apart = run.accuracy.easy_minus_hard
        note += f" Easy minus hard here, of responses: {number(apart.estimate)} ({ends(apart)})."
    words = "Covariance by step for hard, medium and easy prompts."
    return Chart("accuracy", RUN_CHARTS["accuracy"], words, traces, layout, note, linked=True)


def phases_chart(run: RunReport) -> Chart | None:
    """Seconds of a step by phase, stacked."""
    phases = run.phases
    if phases is None:
        return None
    labels = {each.column: each.label for each in (*PHASES, OTHER_PHASE)}
    steps = step_numbers(phases.steps)
    hatch = {"fillmode": "overlay", "size": 7, "solidity": 0.2, "fgcolor": GROUND}
    traces = [
        {
            "type": "bar",
            "name": labels[column],
            "legendgroup": column,
            "x": steps,
            "y": numbers(seconds),
            "marker": {
                "color": color_of(place),
                "line": {"width": 0},
                "pattern": hatch | {"shape": PATTERNS[place]},
            },
            "hovertemplate": "step %{x}: %{y:.3~g} s",
        }
        for place, (column, seconds) in enumerate(phases.seconds.items())
    ]
    layout = panels(["seconds per step"], [False]) | {"barmode": "stack", "bargap": 0, "hovermode": "closest"}
    sums = {labels[column]: float(seconds.sum()) for column, seconds in phases.seconds.items()}
    total = sum(sums.values())
    parts = ", ".join(f"{label} {share(part / total)}" for label, part in sums.items()) if total else "nothing logged"
    note = f"Of all time: {parts}."
    return Chart(
        "phases", RUN_CHARTS["phases"], f"Seconds per step by phase. {note}", traces, layout, note, linked=True
    )
