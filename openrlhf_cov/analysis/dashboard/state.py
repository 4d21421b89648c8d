"""What is shown of a run, worked out from its table (pure)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from openrlhf_cov.analysis.dashboard import alerts
from openrlhf_cov.analysis.dashboard.alerts import Alert, find_alerts
from openrlhf_cov.analysis.dashboard.eta import Activity, Pace, Total, activity, pace, remaining, total_steps
from openrlhf_cov.analysis.law import LawPoints
from openrlhf_cov.analysis.regression import Floats
from openrlhf_cov.analysis.runs import (
    INTERVENTION_COLUMNS,
    METHOD_FLAGS,
    Run,
    interventions,
    keeps_groups,
    training_points,
)
from openrlhf_cov.analysis.table import EMPTY, Table
from openrlhf_cov.analysis.verdict import HIGHEST_REWARD, LawResult, examine_law, usable_bound
from openrlhf_cov.utils.command import TRAINER_DEFAULTS
from openrlhf_cov.utils.metric_table import ENTROPY, OWN, PHASES, STEP_TOTAL, TIME, family, is_known, title
from openrlhf_cov.utils.terminal import printable

LAW_RESAMPLES = 500
LAW_GROWTH = 0.01
"""The law is fitted again when this share of the points is new."""
UNKNOWN_PACE = Pace(math.nan, math.nan)
PHASE_STEPS = 50
"""Last steps whose times the shares of the phases are taken of."""


CURVES = ("reward", ENTROPY, "cov/mean", "response_length")
LENGTH, SAMPLES = "rollout/response_length_mean", "rollout/num_samples"
SAMPLING = (
    *("sampling/kept_frac", "sampling/all_right_frac", "sampling/all_wrong_frac"),
    *("sampling/wasted_token_frac", "sampling/rounds"),
)
GRADER = (*family("reward/"), "truncated")
GRADIENT = ("gradient/positive_mass", "gradient/negative_mass", "gradient/zero_frac")
COLUMNS = frozenset(
    {TIME, STEP_TOTAL, LENGTH, SAMPLES, *INTERVENTION_COLUMNS, *CURVES}
    | {*PHASES, *SAMPLING, *GRADER, *GRADIENT, *OWN, *alerts.COLUMNS}
)
"""All metrics that the dashboard reads."""


@dataclass(frozen=True)
class Phase:
    """Seconds of the last step, and the share of the recent steps' time."""

    name: str
    seconds: float
    share: float


@dataclass(frozen=True, eq=False)
class RunCurve:
    """Points (n,) that there are of a metric."""

    metric: str
    steps: Floats
    values: Floats

    @property
    def last(self) -> float:
        return float(self.values[-1]) if len(self.values) else math.nan


@dataclass(frozen=True, eq=False)
class RunState:
    """A run as the dashboard shows it. ``done`` is the newest step, 0 before the first; ``last_time`` its Unix time.

    ``tokens_per_second`` are response tokens of the newest step, by the time of generation and of the whole step.
    """

    name: str
    path: str
    follows: bool
    done: int = 0
    total: Total | None = None
    pace: Pace = UNKNOWN_PACE
    last_time: float = math.nan
    curves: tuple[RunCurve, ...] = ()
    phases: tuple[Phase, ...] = ()
    step_seconds: float = math.nan
    tokens_per_second: tuple[float, float] = (math.nan, math.nan)
    sampling: dict[str, float] = field(default_factory=dict)
    grader: dict[str, float] = field(default_factory=dict)
    gradient: dict[str, float] = field(default_factory=dict)
    own: dict[str, float] = field(default_factory=dict)
    selected_frac: float = math.nan
    law: LawResult | None = None
    keeps_groups: bool = False
    alerts: tuple[Alert, ...] = ()
    warnings: tuple[str, ...] = ()

    def age(self, now: float) -> float:
        """Seconds since the newest step; 0 where the clock of the run is ahead of ours."""
        return max(0.0, now - self.last_time)

    def activity(self, now: float) -> Activity:
        if not self.curves:
            return Activity("waiting", "waiting for the first step")
        if not self.follows:
            return Activity("read", "a log of another trainer, read once")
        return activity(self.done, self.total, self.pace, self.age(now))

    def remaining(self, now: float) -> float:
        """Seconds to the last step, NaN if unknown or if the run may be at its end already."""
        if self.activity(now).state not in ("running", "finished"):
            return math.nan
        return remaining(self.done, self.total, self.pace, self.age(now))


def build(run: Run, *, follows: bool = True, asked_steps: int | None = None, law: LawResult | None = None) -> RunState:
    """The state of a run; ``asked_steps`` is the number of its steps where its flags do not say."""
    table = run.training
    total = total_steps(run.with_resolved(TRAINER_DEFAULTS), asked_steps, _kept(table))
    state = RunState(run.name, printable(str(run.path)), follows, total=total, warnings=run.warnings)
    if not len(table):
        return state
    tokens = _last(table, LENGTH) * _last(table, SAMPLES)
    return replace(
        state,
        done=int(table.steps[-1]),
        pace=pace(table.steps.astype(np.float64), table.column(TIME), table.column(STEP_TOTAL)),
        last_time=_last(table, TIME),
        curves=tuple(_curve(table, name) for name in CURVES),
        phases=_phases(table),
        step_seconds=_last(table, STEP_TOTAL),
        tokens_per_second=tuple(_ratio(tokens, _last(table, name)) for name in ("timing/generation", STEP_TOTAL)),
        sampling=_present(table, SAMPLING),
        grader=_present(table, GRADER),
        gradient=_present(table, GRADIENT),
        own={
            title(name): _last(table, name)
            for name in sorted(table.columns)
            if name.startswith(OWN) and is_known(name)
        },
        selected_frac=_last(table, "cov/selected_frac"),
        law=law,
        keeps_groups=keeps_groups(table),
        alerts=tuple(find_alerts(table, run.with_resolved(METHOD_FLAGS))),
    )


class RunningVerdict:
    """The law of a run that grows, fitted anew when ``LAW_GROWTH`` of its points are new."""

    def __init__(self) -> None:
        self._points = training_points(Run("", Path(), EMPTY))
        self._result: LawResult | None = None

    def of(self, run: Run) -> LawResult:
        points = training_points(run)
        if self._result is None or not self._still_good(points):
            self._result = examine_law(
                points,
                interventions=interventions(run),
                highest_reward=usable_bound(points, HIGHEST_REWARD),
                resamples=LAW_RESAMPLES,
            )
            self._points = points
        return self._result

    def _still_good(self, points: LawPoints) -> bool:
        """True if the points are those fitted, and few more."""
        fitted, new = self._points, len(points) - len(self._points)
        same = new >= 0 and np.array_equal(points.reward[: len(fitted)], fitted.reward)
        return same and new < max(1.0, LAW_GROWTH * len(fitted))


def _curve(table: Table, name: str) -> RunCurve:
    values = table.column(name)
    there = np.isfinite(values)
    return RunCurve(name, table.steps[there].astype(np.float64), values[there])


def _phases(table: Table) -> tuple[Phase, ...]:
    """The phases that the log has, and what their sum leaves of the step."""
    present = [name for name in PHASES if name in table.columns]
    total = table.column(STEP_TOTAL)[-PHASE_STEPS:]
    if not present or not np.nansum(total):
        return ()
    recent = {title(name): table.column(name)[-PHASE_STEPS:] for name in present}
    recent["other"] = np.maximum(total - np.nansum(list(recent.values()), axis=0), 0.0)
    phases = [Phase(name, float(each[-1]), float(np.nansum(each) / np.nansum(total))) for name, each in recent.items()]
    return tuple(phase for phase in phases if phase.name != "other" or phase.share > 0.005)


def _present(table: Table, names: Sequence[str]) -> dict[str, float]:
    """Title -> value in the newest step, of the metrics that the log has."""
    return {title(name): _last(table, name) for name in names if name in table.columns}


def _kept(table: Table) -> float:
    kept = table.column("sampling/kept_frac")
    return float(np.nanmean(kept)) if np.isfinite(kept).any() else math.nan


def _last(table: Table, name: str) -> float:
    return float(table.column(name)[-1])


def _ratio(value: float, by: float) -> float:
    return value / by if by > 0 else math.nan
