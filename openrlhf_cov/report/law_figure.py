"""R against exp(H): the points of each run, the law fitted to them, its interval and its forecast."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from openrlhf_cov.report.contents import Contents, LawSection, RunReport
from openrlhf_cov.report.style import GREY, MOST_PANELS, legend_below, new_panels, part_of, short
from openrlhf_cov.report.text import number, percent, with_interval

TIME = LinearSegmentedColormap.from_list("time", ["#c6dbef", "#08306b"])
"""Early points are light, late ones dark."""
LINE, FORECAST = "#D55E00", "#000000"
MARGIN = 0.08


def law_figure(contents: Contents) -> Figure | str:
    """A panel per run with points, or why there is none."""
    found = [run for run in contents.runs if len(run.law.points)]
    runs = found[:MOST_PANELS]
    if not runs:
        return f"no run has entropy and {contents.options.metric} of the same steps"
    title = f"The entropy law R = −a exp(H) + b, R: {contents.options.metric}"
    figure, panels = new_panels(len(runs), title=part_of(title, len(runs), len(found)), share_x=True, share_y=True)
    for axes, run in zip(panels, runs, strict=True):
        _draw(axes, run)
    low, high = _reach(runs)
    panels[0].set_ylim(low, high)
    legend_below(figure, _legend(contents))
    return figure


def _draw(axes: Axes, run: RunReport) -> None:
    law, applies = run.law, run.law.result.verdict.applies
    points = law.points
    span = max(np.ptp(points.steps), 1)
    colors = TIME((points.steps - points.steps[0]) / span)
    axes.scatter(np.exp(points.entropy), points.reward, s=14, c=colors, linewidths=0, zorder=2)
    if law.line is not None:
        line = law.line
        if applies:
            axes.fill_between(line.exp_entropy, line.low, line.high, color=LINE, alpha=0.25, linewidth=0, zorder=1)
        axes.plot(line.exp_entropy, line.reward, color=LINE if applies else GREY, linestyle="-" if applies else ":")
    if applies:
        _draw_forecast(axes, law)
        _draw_ceiling(axes, law)
    axes.set_title(f"{short(run.name)}\n{_subtitle(law)}")
    axes.set_xlabel("exp(H)")
    axes.set_ylabel("R")


def _draw_forecast(axes: Axes, law: LawSection) -> None:
    """The line fitted to the first share over the entropies that came later, and the end of its reach."""
    found = law.forecast
    if found is None:
        return
    x = np.exp(found.later.entropy)
    order = np.argsort(x)
    axes.plot(x[order], found.predicted[order], color=FORECAST, linestyle=(0, (5, 2)), linewidth=1.2, zorder=3)
    for end in (found.low, found.high):
        axes.plot(x[order], end[order], color=FORECAST, linestyle=(0, (1, 2)), linewidth=0.9, zorder=3)


def _draw_ceiling(axes: Axes, law: LawSection) -> None:
    ceiling = law.result.fit.ceiling
    axes.plot([1.0, 1.0], [ceiling.low, ceiling.high], color=LINE, marker="_", markersize=9, zorder=4)
    axes.plot([1.0], [ceiling.estimate], color=LINE, marker="D", markersize=5, zorder=4)


def _subtitle(law: LawSection) -> str:
    if not law.result.verdict.applies:
        codes = [reason.code.replace("_", " ") for reason in law.result.verdict.reasons]
        return "the law does not apply: " + short(", ".join(dict.fromkeys(codes)), 40)
    fit = law.result.fit
    return f"a {number(fit.a.estimate)}, b {number(fit.b.estimate)}, ceiling {with_interval(fit.ceiling)}"


def _reach(runs: list[RunReport]) -> tuple[float, float]:
    """Rewards to show: all points, and the lines that are believed; a wide forecast band is cut."""
    shown = [run.law.points.reward for run in runs]
    shown += [run.law.line.reward for run in runs if run.law.line and run.law.result.verdict.applies]
    values = np.concatenate(shown)
    margin = MARGIN * (np.ptp(values) or 1.0)
    return float(values.min() - margin), float(values.max() + margin)


def _legend(contents: Contents) -> list:
    share = f"{percent(contents.options.forecast_share)}%"
    level = f"{contents.options.level:.0%}"
    dot = {"linestyle": "none", "marker": "o", "markersize": 4}
    handles = [
        Line2D([], [], color=TIME(0.15), label="first points", **dot),
        Line2D([], [], color=TIME(1.0), label="last points", **dot),
    ]
    sections = [run.law for run in contents.runs]
    if any(section.result.verdict.applies for section in sections):
        handles += [
            Line2D([], [], color=LINE, label="fit"),
            Patch(color=LINE, alpha=0.25, label=f"its {level} interval"),
            Line2D([], [], color=LINE, marker="D", linestyle="none", label="ceiling, R at H = 0"),
            Line2D([], [], color=FORECAST, linestyle=(0, (5, 2)), label=f"forecast from the first {share}"),
            Line2D([], [], color=FORECAST, linestyle=(0, (1, 2)), label=f"its {level} interval for a point"),
        ]
    if any(section.line is not None and not section.result.verdict.applies for section in sections):
        handles.append(Line2D([], [], color=GREY, linestyle=":", label="line, where the law does not apply"))
    return handles
