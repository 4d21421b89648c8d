"""From runs to the contents of their report."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from openrlhf_cov.analysis.regression import Floats
from openrlhf_cov.analysis.runs import KEPT_ONLY, Run, keeps_groups
from openrlhf_cov.analysis.table import TIME, Table
from openrlhf_cov.analysis.theory import (
    PREDICTIONS,
    AccuracyCovariance,
    check_theorem,
    covariance_bands,
    covariance_by_accuracy,
)
from openrlhf_cov.analysis.verdict import usable_bound
from openrlhf_cov.report.across import same_section, setting_differences, size_section
from openrlhf_cov.report.contents import Contents, Ends, Options, Phases, RunReport, TheorySection
from openrlhf_cov.report.curves import (
    ACCURACY_CURVES,
    OTHER_PHASE,
    PHASES,
    SERIES_COLUMNS,
    STEP_TOTAL,
    TOKEN_ACCURACY_CURVES,
    Curve,
)
from openrlhf_cov.report.law import law_points, law_section
from openrlhf_cov.report.reading import TRAINING_METRICS, check_metric, check_names
from openrlhf_cov.report.series import SMOOTHED, Series, spread_out, stacked, to_series
from openrlhf_cov.report.tokens import find_token_files
from openrlhf_cov.utils.metric_table import ENTROPY
from openrlhf_cov.utils.redaction import redact_settings

UNKNOWN_FLAGS = (
    "flags not known; if there was an entropy term or a raised clip bound, the law may not hold and the log does not "
    "show it"
)
ENDS = 1 / 20
"""Share of the values at either end of a curve that its start and end are the means of."""
GROUPS = 10
"""Groups of steps with similar predictions."""
FEWEST_PER_GROUP = 5


def build_contents(runs: Sequence[Run], options: Options) -> Contents:
    """All that a report says about these runs, whose names differ; UsageError for options that do not fit them."""
    check_metric(options.metric, runs)
    check_names("--size", options.sizes, runs)
    reports = tuple(_run_report(run, options) for run in runs)
    return Contents(
        title=reports[0].name if len(reports) == 1 else f"{len(reports)} runs",
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
    times = times[~np.isnan(times)]
    return RunReport(
        name=run.name,
        path=run.path,
        settings=redact_settings(run.settings),
        warnings=run.warnings,
        step_count=len(table),
        last_step=int(table.steps[-1]),
        seconds=float(times[-1] - times[0]) if len(times) else math.nan,
        entropy=_ends(table.column(ENTROPY)),
        reward=_ends(table.column("reward")),
        series=_curves(table, SERIES_COLUMNS),
        evaluations=_curves(run.evaluations, run.evaluations.columns, smoothed=0.0),
        law=law_section(run, options),
        theory=tuple(_theory_section(table, theorem, options) for theorem in PREDICTIONS),
        stage_bands=tuple(covariance_bands(table)),
        accuracy=_accuracy(table, ACCURACY_CURVES, options),
        token_accuracy=_accuracy(table, TOKEN_ACCURACY_CURVES, options),
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
    logged = [name for name in names if name in table.columns]
    curves = {name: to_series(table.steps, table.columns[name], smoothed=smoothed) for name in logged}
    return {name: curve for name, curve in curves.items() if curve is not None}


def _theory_section(table: Table, theorem: int, options: Options) -> TheorySection:
    missing = [name for name in (PREDICTIONS[theorem][0], "entropy/delta") if name not in table.columns]
    nothing = np.zeros(0)
    if missing:
        return TheorySection(theorem, None, f"the log has no {' and no '.join(missing)}", nothing, nothing)
    check = check_theorem(table, theorem, level=options.level)
    if not check.pairs:
        return TheorySection(theorem, None, "no step with a prediction is followed by its change", nothing, nothing)
    groups = GROUPS if check.pairs >= GROUPS * FEWEST_PER_GROUP else 0
    order = np.argsort(check.predicted, kind="stable")
    parts = np.array_split(order, groups) if groups else []
    means = np.array([[check.predicted[part].mean(), check.changes[part].mean()] for part in parts]).reshape(-1, 2)
    shown = spread_out(check.pairs)
    check = replace(check, predicted=check.predicted[shown], changes=check.changes[shown])
    return TheorySection(theorem, check, "", means[:, 0], means[:, 1])


def _accuracy(table: Table, curves: Sequence[Curve], options: Options) -> AccuracyCovariance | None:
    if not any(curve.column in table.columns for curve in curves):
        return None
    return covariance_by_accuracy(table, tokens=curves is TOKEN_ACCURACY_CURVES, level=options.level)


def _phases(table: Table) -> Phases | None:
    """The stack of phases; ``other`` is what the total has beyond them, where both were logged."""
    columns = {phase.column: table.columns[phase.column] for phase in PHASES if phase.column in table.columns}
    if not columns:
        return None
    known = np.sum([np.nan_to_num(values) for values in columns.values()], axis=0)
    columns[OTHER_PHASE.column] = np.maximum(np.nan_to_num(table.column(STEP_TOTAL) - known), 0.0)
    steps, means = stacked(table.steps, columns)
    return Phases(steps, {name: np.nan_to_num(values) for name, values in means.items()})


def _notes(runs: Sequence[Run], options: Options) -> list[str]:
    """Where R is above the highest that it is said to be or is that of a part of the groups, and flags not known."""
    bound, notes = options.highest_reward, []
    for run in runs:
        points = law_points(run, options.metric)
        if usable_bound(points, bound) != bound:
            highest = f"{options.metric} reaches {points.reward.max():.3g}"
            notes.append(f"{run.name}: {highest}, above --reward_max {bound:g}, which is not used for this run")
    unknown = [run.name for run in runs if not run.settings]
    if unknown:
        notes.append(f"{', '.join(unknown)}: {UNKNOWN_FLAGS}")
    kept = [run.name for run in runs if keeps_groups(run.training)]
    if kept and options.metric in TRAINING_METRICS:
        notes.append(f"{', '.join(kept)}: {KEPT_ONLY}")
    return notes
