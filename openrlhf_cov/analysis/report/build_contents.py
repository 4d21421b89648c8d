"""Build the contents of a report: read the runs, compute the numbers of each run, and compare the runs."""

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from openrlhf_cov.analysis.across import SizeTrend, against_size, same_coefficients
from openrlhf_cov.analysis.law import BAND_PLACES, Forecast, LawFit, LawPoints, forecast
from openrlhf_cov.analysis.regression import Floats
from openrlhf_cov.analysis.report.contents import (
    TRAINING_METRICS,
    Contents,
    Ends,
    Extrapolation,
    LawLine,
    LawSection,
    Options,
    Phases,
    RunReport,
    SameSection,
    Setting,
    SizeSection,
    TheorySection,
    of_training,
)
from openrlhf_cov.analysis.report.curves import (
    ACCURACY_CURVES,
    COLUMNS,
    LENGTH_COLUMN,
    OTHER_PHASE,
    PHASES,
    REWARD,
    SELECTED_SHARE,
    SERIES_COLUMNS,
    SMOOTHED,
    STEP_TOTAL,
    Series,
    spread_out,
    stacked,
    to_series,
)
from openrlhf_cov.analysis.report.token_view import find_token_files
from openrlhf_cov.analysis.runs import (
    KEPT_ONLY,
    Run,
    evaluation_points,
    interventions,
    keeps_groups,
    read_run,
    training_points,
    with_mean,
)
from openrlhf_cov.analysis.stages import early_shares
from openrlhf_cov.analysis.table import Table
from openrlhf_cov.analysis.theory import (
    PREDICTIONS,
    AccuracyCovariance,
    check_group_covariance,
    check_theorem,
    covariance_bands,
    covariance_by_accuracy,
)
from openrlhf_cov.analysis.verdict import LawResult, LawVerdict, Reason, examine_law, usable_bound
from openrlhf_cov.errors import UsageError
from openrlhf_cov.utils.metric_table import ENTROPY, TIME
from openrlhf_cov.utils.metrics_log import METRICS_FILE
from openrlhf_cov.utils.redaction import redact_settings

# Flags that set folders, names and addresses. They do not change the training, so the report does not compare them.
PLACES = frozenset(
    {
        "--address",
        "--runtime-env-json",
        "--ckpt.output_dir",
        "--output",
        "--base_policies",
        "--ckpt.path",
        "--logger.tensorboard_dir",
        "--logger.wandb.run_name",
        "--logger.wandb.key",
    }
)
NO_LAW = "the law applies to none of them"
# Number of model sizes at which the trend over sizes is drawn.
GRID = 33
UNKNOWN_FLAGS = (
    "the flags of the run are unknown. If it had an entropy term or a raised clip bound, the law may not hold, and "
    "the log does not show it"
)
# Longest title that names all runs, in characters. A longer list of names is replaced by the number of runs.
LONGEST_TITLE = 80
# The start of a curve is the mean of this share of its values at the beginning; its end is the mean of as many at the
# end.
ENDS = 1 / 20
# Number of groups into which steps are sorted by their predicted change, for the means that the chart shows.
GROUPS = 10
# With fewer steps per group than this no means are shown.
FEWEST_PER_GROUP = 5


def read_runs(paths: Sequence[Path], mapping: Mapping[str, str] | str | None = None) -> list[Run]:
    """Return the runs at these paths, with names that distinguish them.

    Args:
        paths: Folders of runs, metrics files or logs of other trainers, each once.
        mapping: For logs of another trainer: a mapping from our name of a metric to the name in the log, or the name
            of a known trainer. None recognises the trainer by the names in the log.

    Raises:
        UsageError: A path cannot be read, or is given twice.
    """
    places = [(path.parent if path.name == METRICS_FILE else path).resolve() for path in paths]
    for path, place in zip(paths, places, strict=True):
        if places.count(place) > 1:
            raise UsageError(f"{path} is given twice")
    runs = [read_run(path, mapping=mapping, columns=COLUMNS) for path in paths]
    names = unlike([run.name for run in runs], places)
    return [replace(run, name=name) for run, name in zip(runs, names, strict=True)]


def unlike(names: Sequence[str], paths: Sequence[Path]) -> list[str]:
    """Return a different name for each run: equal names are replaced by the last parts of the paths.

    Args:
        names: Names of the runs.
        paths: Resolved path of each run, all different. A new name has as many parts as the names need to differ, and
            at least two.
    """
    found = list(names)
    for name in {name for name in names if names.count(name) > 1}:
        alike = [place for place, each in enumerate(names) if each == name]
        # The folder itself is equal for these runs, so begin with its parent.
        length = 2
        while len({paths[place].parts[-length:] for place in alike}) < len(alike):
            length += 1
        for place in alike:
            found[place] = "/".join(paths[place].parts[-length:])
    return found


def check_metric(metric: str, runs: Iterable[Run]) -> None:
    """Check that a metric can be used as R, the score in the entropy law R = -a exp(H) + b.

    Args:
        metric: The value of ``--metric``: the name of a metric, or several names with commas. R is then their mean.
        runs: The runs of the report.

    Raises:
        UsageError: No run has a metric of this name, a name is given twice, or metrics of the training are mixed with
            metrics of evaluations.
    """
    columns = [name for run in runs for name in run.evaluations.columns]
    known = list(dict.fromkeys([*TRAINING_METRICS, *columns]))
    names = metric.split(",")
    for name in names:
        if name not in known:
            raise UsageError(f"--metric {name}: {_near(name, known)}")
    of_training = set(names) & set(TRAINING_METRICS)
    if len(set(names)) < len(names) or (of_training and len(of_training) < len(names)):
        raise UsageError(
            f"--metric {metric}: the metrics of a mean must differ and be all of evaluations, or reward and score"
        )


def check_names(flag: str, names: Iterable[str], runs: Sequence[Run]) -> None:
    """Check that runs with these names are in the report.

    Args:
        flag: The flag with which the user gave the names, for the message.
        names: The names.
        runs: The runs of the report.

    Raises:
        UsageError: No run has one of the names.
    """
    known = [run.name for run in runs]
    for name in names:
        if name not in known:
            raise UsageError(f"{flag} {name}: {_near(name, known)}")


def _near(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    listed = ", ".join(known[:20]) + (", ..." if len(known) > 20 else "")
    return (f"did you mean {' or '.join(near)}? " if near else "") + f"there are {listed}"


def build_contents(runs: Sequence[Run], options: Options) -> Contents:
    """Return the contents of a report.

    Args:
        runs: The runs, in the order of the report.
        options: The choices of the user.

    Raises:
        UsageError: The metric or a name of the options does not fit the runs.
    """
    check_metric(options.metric, runs)
    check_names("--size", options.sizes, runs)
    runs = [with_mean(run, options.metric) for run in runs]
    reports = tuple(_run_report(run, options) for run in runs)
    names = ", ".join(run.name for run in reports)
    return Contents(
        title=names if len(reports) == 1 or len(names) <= LONGEST_TITLE else f"{len(reports)} runs",
        options=options,
        runs=reports,
        settings=setting_differences(reports),
        same=same_section(reports),
        sizes=size_section(reports, options),
        notes=tuple(_notes(runs, options)),
    )


def _run_report(run: Run, options: Options) -> RunReport:
    table = run.training
    times = table.column(TIME)
    # Lines of other trainers may have no clock.
    times = times[~np.isnan(times)]
    selected = table.column(SELECTED_SHARE)
    return RunReport(
        name=run.name,
        path=run.path,
        settings=redact_settings(run.settings),
        warnings=run.warnings,
        step_count=len(table),
        last_step=int(table.steps[-1]),
        seconds=float(times[-1] - times[0]) if len(times) else math.nan,
        entropy=_ends(table.column(options.entropy)),
        reward=_ends(table.column(REWARD)),
        length=_ends(table.column(LENGTH_COLUMN)),
        selected=float(np.nanmean(selected)) if not np.isnan(selected).all() else math.nan,
        series=_curves(table, SERIES_COLUMNS),
        # Not smoothed: a run has few evaluations, and each is a mean over many problems.
        evaluations=_curves(run.evaluations, run.evaluations.columns.keys() - {TIME}, smoothed=0.0),
        law=law_section(run, options),
        theory=tuple(_theory_section(table, theorem, options) for theorem in PREDICTIONS),
        stage_bands=tuple(covariance_bands(table)),
        accuracy=_accuracy(table),
        group_correlation=check_group_covariance(table),
        phases=_phases(table),
        token_files=find_token_files(run.path),
    )


def _ends(values: Floats) -> Ends:
    logged = values[~np.isnan(values)]
    if not len(logged):
        return Ends(math.nan, math.nan)
    count = max(1, int(len(logged) * ENDS))
    return Ends(float(logged[:count].mean()), float(logged[-count:].mean()))


def _curves(table: Table, names: Iterable[str], *, smoothed: float = SMOOTHED) -> dict[str, Series]:
    wanted = tuple(names)
    families = tuple(name for name in wanted if name.endswith("/"))
    logged = [name for name in table.columns if name in wanted or name.startswith(families)]
    curves = {name: to_series(table.steps, table.columns[name], smoothed=smoothed) for name in logged}
    return {name: curve for name, curve in curves.items() if curve is not None}


def _theory_section(table: Table, theorem: int, options: Options) -> TheorySection:
    missing = [name for name in (PREDICTIONS[theorem][0], "entropy/delta") if name not in table.columns]
    nothing = np.zeros(0)
    if missing:
        return TheorySection(theorem, None, f"the log has no {' and no '.join(missing)}", nothing, nothing)
    check = check_theorem(table, theorem)
    if not check.pairs:
        return TheorySection(theorem, None, "no step with a prediction is followed by its change", nothing, nothing)
    groups = GROUPS if check.pairs >= GROUPS * FEWEST_PER_GROUP else 0
    # The means of groups of steps show a trend that the noise of single steps hides.
    order = np.argsort(check.predicted, kind="stable")
    parts = np.array_split(order, groups) if groups else []
    means = np.array([[check.predicted[part].mean(), check.changes[part].mean()] for part in parts]).reshape(-1, 2)
    shown = spread_out(check.pairs)
    check = replace(check, predicted=check.predicted[shown], changes=check.changes[shown])
    return TheorySection(theorem, check, "", means[:, 0], means[:, 1])


def _accuracy(table: Table) -> dict[str, AccuracyCovariance]:
    return {
        title: covariance_by_accuracy(table, curves[0].column.removesuffix("low"))
        for title, curves in ACCURACY_CURVES.items()
        if any(curve.column in table.columns for curve in curves)
    }


def _phases(table: Table) -> Phases | None:
    """Return the stack of phases; ``other`` is the rest of the total, where both were logged."""
    columns = {phase.column: table.columns[phase.column] for phase in PHASES if phase.column in table.columns}
    if not columns:
        return None
    # A phase that was not timed in a step counts as 0 there, so that the stack still adds up to the total.
    known = np.sum([np.nan_to_num(values) for values in columns.values()], axis=0)
    columns[OTHER_PHASE.column] = np.maximum(np.nan_to_num(table.column(STEP_TOTAL) - known), 0.0)
    steps, means = stacked(table.steps, columns)
    return Phases(steps, {name: np.nan_to_num(values) for name, values in means.items()})


def _notes(runs: Sequence[Run], options: Options) -> list[str]:
    """Return notes that restrict what the report says.

    There is one where R exceeds ``--reward_max``, where the flags of a run are not known, and where R is the mean over
    the groups that dynamic sampling kept.
    """
    bound = options.highest_reward
    notes = []
    for run in runs:
        points = law_points(run, options)
        if usable_bound(points, bound) != bound:
            highest = f"{options.metric} reaches {points.reward.max():.3g}"
            notes.append(f"{run.name}: {highest}, above --reward_max {bound:g}; the bound is not used for this run")
    unknown = [run.name for run in runs if not (run.settings or run.resolved)]
    if unknown:
        notes.append(f"{', '.join(unknown)}: {UNKNOWN_FLAGS}")
    kept = [run.name for run in runs if keeps_groups(run.training)]
    if kept and of_training(options.metric):
        notes.append(f"{', '.join(kept)}: {KEPT_ONLY}")
    return notes


def law_section(run: Run, options: Options) -> LawSection:
    """Return the fit of the entropy law to this run, or the reasons why the law does not apply.

    Args:
        run: The run, with the mean of ``options.metric`` as a column.
        options: The choices of the user.
    """
    points = law_points(run, options)
    result = _result(run, points, options)
    found, reason = _forecast(points, options)
    return LawSection(
        points=points[spread_out(len(points))],
        point_count=len(points),
        result=result,
        line=law_line(result.fit, points) if result.fit else None,
        forecast=found,
        no_forecast=reason,
        early=early_shares(points),
        highest_reward=usable_bound(points, options.highest_reward),
    )


def law_points(run: Run, options: Options) -> LawPoints:
    """Return entropy and R of each step, or of each evaluation if R is a score of evaluations.

    Args:
        run: The run, with the mean of ``options.metric`` as a column.
        options: The choices of the user, which name the columns of R and H.
    """
    find = training_points if of_training(options.metric) else evaluation_points
    return find(run, options.metric, options.entropy)


def law_line(fit: LawFit, points: LawPoints) -> LawLine:
    """Return the line from exp(0) to the highest exp(H) of the points.

    Args:
        fit: The fitted law.
        points: The points whose entropies bound the line, at least one.
    """
    ends = np.exp([points.entropy.min(), points.entropy.max()])
    # The points are equally spaced in exp(H), which is the x axis. The first is exp(0) = 1, where R is at its ceiling.
    grid = np.linspace(min(1.0, ends[0]), ends[1], BAND_PLACES)
    entropy = np.log(grid)
    low, high = fit.band(entropy)
    point_low, point_high = fit.band(entropy, further_points=True)
    return LawLine(entropy, grid, fit.reward_at(entropy), low, high, point_low, point_high)


def _result(run: Run, points: LawPoints, options: Options) -> LawResult:
    missing = _missing(run, options)
    if missing:
        return LawResult(None, None, LawVerdict((Reason("not_logged", f"the log has no {missing}"),)))
    return examine_law(
        points,
        interventions=interventions(run),
        highest_reward=usable_bound(points, options.highest_reward),
        method=options.method,
    )


def _missing(run: Run, options: Options) -> str:
    """Return the names of entropy and R if the log lacks their columns; "" if it has both."""
    metric = options.metric
    entropy = options.entropy
    table = run.training if of_training(metric) else run.evaluations
    lacks = "entropy" if entropy == ENTROPY else entropy
    missing = [lacks if entropy not in run.training.columns else "", metric if metric not in table.columns else ""]
    return " and no ".join(filter(None, missing))


def _forecast(points: LawPoints, options: Options) -> tuple[Forecast | None, str]:
    try:
        found = forecast(points, options.forecast_share, method=options.method)
    except ValueError as error:
        return None, f"the first {100 * options.forecast_share:.10g} % of {len(points)} points: {error}"
    # The numbers of the forecast come from all points; only what is drawn is thinned out.
    shown = spread_out(len(found.later))
    arrays = {name: getattr(found, name)[shown] for name in ("predicted", "low", "high")}
    return replace(found, later=found.later[shown], **arrays), ""


def setting_differences(runs: Sequence[RunReport]) -> tuple[Setting, ...]:
    """Return the flags whose values differ between runs, sorted by name. Runs without known flags do not count."""
    known = [run for run in runs if run.settings]
    flags = sorted({flag for run in known for flag in run.settings} - PLACES)
    return tuple(
        Setting(flag, tuple(run.settings.get(flag) for run in runs))
        for flag in flags
        if len({run.settings.get(flag) for run in known}) > 1
    )


def same_section(runs: Sequence[RunReport]) -> SameSection | None:
    """Return the test that all runs have the same coefficients a and b.

    The test takes all runs with a fit. The section has a reason in place of the test where the law applies to none of
    them.

    Args:
        runs: The runs of the report.

    Returns:
        The section; None for a single run.
    """
    if len(runs) < 2:
        return None
    fitted = [run for run in runs if run.law.result.fit]
    names = tuple(run.name for run in fitted)
    unfit = _unfit(fitted)
    if fitted and len(unfit) == len(fitted):
        return SameSection(names, unfit, None, NO_LAW)
    try:
        result = same_coefficients([run.law.result.fit for run in fitted if run.law.result.fit])
    except ValueError as error:
        return SameSection(names, unfit, None, str(error))
    return SameSection(names, unfit, result, "")


def size_section(runs: Sequence[RunReport], options: Options) -> SizeSection | None:
    """Return the trend of a, b and the ceiling over model sizes, from the runs with a size and a fit.

    Args:
        runs: The runs of the report.
        options: The choices of the user, with the sizes by run name.

    Returns:
        The section; None where no size is given.
    """
    if not options.sizes:
        return None
    used = [run for run in runs if run.name in options.sizes and run.law.result.fit]
    names = tuple(run.name for run in used)
    sizes = tuple(options.sizes[run.name] for run in used)
    if used and len(_unfit(used)) == len(used):
        return SizeSection(names, _unfit(used), sizes, None, NO_LAW, (), None)
    try:
        trend = against_size(sizes, [run.law.result.fit for run in used if run.law.result.fit])
    except ValueError as error:
        return SizeSection(names, _unfit(used), sizes, None, str(error), (), None)
    wanted = options.extrapolate_to
    ends = [*sizes, *([wanted] if wanted else [])]
    grid = np.geomspace(min(ends), max(ends), GRID).tolist()
    return SizeSection(
        names=names,
        unfit=_unfit(used),
        sizes=sizes,
        trend=trend,
        reason="",
        grid=tuple(_at(trend, size) for size in grid),
        extrapolation=_at(trend, wanted) if wanted else None,
    )


def _unfit(runs: Sequence[RunReport]) -> tuple[str, ...]:
    """Return the names of runs that the law does not describe."""
    return tuple(run.name for run in runs if not run.law.result.verdict.applies)


def _at(trend: SizeTrend, size: float) -> Extrapolation:
    return Extrapolation(size, *(getattr(trend, name).at(size) for name in ("a", "b", "ceiling")))
