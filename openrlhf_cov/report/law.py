"""The entropy law of one run, as a report shows it."""

from dataclasses import replace

import numpy as np

from openrlhf_cov.analysis.law import BAND_PLACES, Forecast, LawFit, LawPoints, forecast
from openrlhf_cov.analysis.runs import Run, evaluation_points, interventions, training_points
from openrlhf_cov.analysis.verdict import LawResult, Reason, Verdict, examine_law, usable_bound
from openrlhf_cov.report.contents import LawLine, LawSection, Options
from openrlhf_cov.report.reading import TRAINING_METRICS
from openrlhf_cov.report.series import spread_out
from openrlhf_cov.report.text import percent
from openrlhf_cov.utils.metric_table import ENTROPY


def law_section(run: Run, options: Options) -> LawSection:
    """The law of this run, or why it has none."""
    points = law_points(run, options.metric)
    result = _result(run, points, options)
    found, reason = _forecast(points, options)
    return LawSection(
        points=_shown(points),
        point_count=len(points),
        result=result,
        line=law_line(result.fit, points) if result.fit else None,
        forecast=found,
        no_forecast=reason,
    )


def law_points(run: Run, metric: str) -> LawPoints:
    """Entropy and R of each step, or of each evaluation."""
    if metric in TRAINING_METRICS:
        return training_points(run, metric)
    return evaluation_points(run, metric)


def law_line(fit: LawFit, points: LawPoints) -> LawLine:
    """The line from exp(0) to the highest exp(H) of the points."""
    ends = np.exp([points.entropy.min(), points.entropy.max()])
    grid = np.linspace(min(1.0, ends[0]), ends[1], BAND_PLACES)
    entropy = np.log(grid)
    low, high = fit.band(entropy)
    point_low, point_high = fit.band(entropy, further_points=True)
    return LawLine(entropy, grid, fit.reward_at(entropy), low, high, point_low, point_high)


def _result(run: Run, points: LawPoints, options: Options) -> LawResult:
    missing = _missing(run, options.metric)
    if missing:
        return LawResult(None, None, Verdict((Reason("not_logged", f"the log has no {missing}"),)))
    return examine_law(
        points,
        interventions=interventions(run),
        highest_reward=usable_bound(points, options.highest_reward),
        method=options.method,
        level=options.level,
    )


def _missing(run: Run, metric: str) -> str:
    """What of entropy and R the log does not have at all."""
    table = run.training if metric in TRAINING_METRICS else run.evaluations
    missing = ["entropy" if ENTROPY not in run.training.columns else "", metric if metric not in table.columns else ""]
    return " and no ".join(filter(None, missing))


def _forecast(points: LawPoints, options: Options) -> tuple[Forecast | None, str]:
    try:
        found = forecast(points, options.forecast_share, method=options.method, level=options.level)
    except ValueError as error:
        return None, f"the first {percent(options.forecast_share)}% of {len(points)} points: {error}"
    shown = spread_out(len(found.later))
    arrays = {name: getattr(found, name)[shown] for name in ("predicted", "low", "high")}
    return replace(found, later=_chosen(found.later, shown), **arrays), ""


def _shown(points: LawPoints) -> LawPoints:
    return _chosen(points, spread_out(len(points))) if len(points) else points


def _chosen(points: LawPoints, places: np.ndarray) -> LawPoints:
    return LawPoints(points.steps[places], points.entropy[places], points.reward[places])
