"""The runs that the dashboard follows: their steps, their pace and what is shown of them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from openrlhf_cov.analysis.dashboard import alerts
from openrlhf_cov.analysis.dashboard.alerts import Alert, find_alerts
from openrlhf_cov.analysis.foreign_logs import EVENT_FILES, STATE_FILE, read_events, state_file
from openrlhf_cov.analysis.law import LawPoints
from openrlhf_cov.analysis.regression import Floats
from openrlhf_cov.analysis.runs import (
    INTERVENTION_COLUMNS,
    METHOD_FLAGS,
    TABLES,
    Run,
    RunFollower,
    interventions,
    keeps_groups,
    read_run,
    refuse_folder_of_runs,
    training_points,
)
from openrlhf_cov.analysis.table import EMPTY, Table
from openrlhf_cov.analysis.verdict import HIGHEST_REWARD, LawResult, examine_law, usable_bound
from openrlhf_cov.errors import UsageError
from openrlhf_cov.utils.command import COMMAND_FILE, TRAINER_DEFAULTS, setting
from openrlhf_cov.utils.metric_table import ENTROPY, OWN, PHASES, STEP_TOTAL, TIME, family, is_known, title
from openrlhf_cov.utils.metrics_log import METRICS_FILE, RESULT_FILE
from openrlhf_cov.utils.terminal import printable
from openrlhf_cov.utils.text_table import duration

DYNAMIC = "--algo.dynamic_filtering_enable"
# Global steps of a run of the lab.
LAB_STEPS = "--steps"
# Flags whose values the state of a run needs.
TOTAL_FLAGS = (*TRAINER_DEFAULTS, LAB_STEPS, "--stop_early")
# Steps that the pace is taken from.
WINDOW = 20
# Intervals above this many usual ones are pauses: a run that was stopped and resumed.
PAUSE = 10
# A run is silent when no step came for this many usual intervals, and at least for these seconds.
SILENT_AFTER = 5
SILENT_SECONDS = 10.0


@dataclass(frozen=True)
class Total:
    """Global steps that a run will make, and the source of the number; not ``exact`` where it is an estimate."""

    steps: int
    how: str
    exact: bool = True


def total_steps(settings: Mapping[str, str], asked: int | None = None, kept_frac: float = math.nan) -> Total | None:
    """Return the number of global steps of a run, None where its settings do not name it.

    A run of the lab has ``--steps``. An episode of the trainer has ceil(``--data.max_samples`` /
    ``--rollout.batch_size``) steps, and a run at most ``--rollout_limit``. A data set that is smaller than
    ``--data.max_samples`` makes fewer steps; its size does not show in the settings.

    Args:
        settings: Flags and values of the run.
        asked: The number that the user gave, which counts before the settings.
        kept_frac: Share of the groups that dynamic sampling keeps; only their prompts count.
    """
    if asked is not None:
        return Total(asked, "--steps")
    if (steps := _whole(settings.get(LAB_STEPS))) and "--data.max_samples" not in settings:
        stops_early = settings.get("--stop_early") == "true"
        return Total(steps, f"{LAB_STEPS} {steps}", exact=not stops_early)
    found = _steps_of_the_data(settings, kept_frac)
    limit = _whole(settings.get("--rollout_limit"))
    if limit and (found is None or limit < found.steps):
        return Total(limit, "--rollout_limit", exact=False)
    return found


def _steps_of_the_data(settings: Mapping[str, str], kept_frac: float) -> Total | None:
    prompts = _whole(settings.get("--data.max_samples"))
    # Only the trainer has --data.max_samples, so the defaults of the trainer are those of the run.
    batch, episodes = (_whole(setting(settings, flag) or default) for flag, default in TRAINER_DEFAULTS.items())
    if not (prompts and batch and episodes):
        return None
    times = f" x {episodes} episodes" if episodes > 1 else ""
    how = f"{prompts:,} prompts{times} / {batch:,} a step"
    if DYNAMIC in settings and math.isfinite(kept_frac):
        steps = max(1, int(prompts * episodes * kept_frac / batch))
        return Total(steps, f"about: {how}, {kept_frac:.0%} kept", exact=False)
    return Total(math.ceil(prompts / batch) * episodes, how)


@dataclass(frozen=True)
class Pace:
    """Seconds per step, NaN if unknown: ``mean`` of the last ``WINDOW`` steps, which an ETA needs, and the median."""

    mean: float
    usual: float


def pace(steps: Floats, times: Floats, step_seconds: Floats) -> Pace:
    """Return the seconds per step of the last steps, without pauses.

    Wall clock counts first: it includes evaluations, checkpoints and logging, which ``timing/step_total`` omits.

    Args:
        steps: Global steps (n,).
        times: Unix time (n,) of their lines in seconds, NaN where a line has none.
        step_seconds: ``timing/step_total`` (n,) in seconds, for a log without a clock.
    """
    known = np.flatnonzero(np.isfinite(times))[-WINDOW - 1 :]
    # A log of every tenth step has one line for ten steps.
    seconds = np.diff(times[known]) / np.maximum(np.diff(steps[known]), 1)
    # A clock that stood still or was set back between two lines says nothing about the pace.
    seconds = seconds[seconds > 0]
    if not len(seconds):
        seconds = step_seconds[np.isfinite(step_seconds)][-WINDOW:]
    if not len(seconds):
        return Pace(math.nan, math.nan)
    usual = float(np.median(seconds))
    return Pace(float(seconds[seconds <= PAUSE * usual].mean()), usual)


def remaining(done: int, total: Total | None, speed: Pace, age: float) -> float:
    """Return the seconds until the last step.

    Args:
        done: Finished steps.
        total: Steps of the run, None if unknown.
        speed: Pace of the run.
        age: Seconds since the newest step.

    Returns:
        Seconds, 0 at the end, NaN if the total or the pace is unknown.
    """
    if total is None or not math.isfinite(speed.mean):
        return math.nan
    left = max(0, total.steps - done)
    return max(0.0, left * speed.mean - (age if math.isfinite(age) else 0.0))


@dataclass(frozen=True)
class Activity:
    """The state of a run: waiting, running, silent, finished or read (a log of another trainer)."""

    state: str
    text: str


def activity(done: int, total: Total | None, speed: Pace, age: float, has_ended: bool = False) -> Activity:
    """Return the state of a run.

    Args:
        done: Its newest step.
        total: The number of its steps, None if unknown.
        speed: Its pace.
        age: Seconds since the newest step, NaN if unknown.
        has_ended: Whether the run has written its result.
    """
    ago = f"last step {duration(age)} ago" if math.isfinite(age) else "time of the last step unknown"
    if has_ended:
        return Activity("finished", f"finished, {ago}")
    limit = max(SILENT_AFTER * speed.usual, SILENT_SECONDS) if math.isfinite(speed.usual) else math.inf
    # An estimated total ends a run only once the run is silent: the data may give a step more.
    if total is not None and (done >= total.steps if age > limit else total.exact and done == total.steps):
        return Activity("finished", f"finished, {ago}")
    if age > limit:
        usual = duration(speed.usual)
        return Activity("silent", f"no new step for {duration(age)} (usually {usual}): finished, stopped or stuck")
    return Activity("running", ago)


def _whole(text: str | None) -> int:
    """Return the number of a flag; 0 if it is not a number."""
    try:
        return int(text or "0")
    except ValueError:
        return 0


# --- what is shown of a run

# Fewer than in a report, because the fit is repeated while the run grows.
LAW_RESAMPLES = 500
# The law is fitted again when this share of the points is new.
LAW_GROWTH = 0.01
UNKNOWN_PACE = Pace(math.nan, math.nan)
# Last steps whose times the shares of the phases are taken of.
PHASE_STEPS = 50


CURVES = ("reward", ENTROPY, "cov/mean", "response_length")
LENGTH = "rollout/response_length_mean"
SAMPLES = "rollout/num_samples"
SAMPLING = (
    *("sampling/kept_frac", "sampling/all_right_frac", "sampling/all_wrong_frac"),
    *("sampling/wasted_token_frac", "sampling/rounds"),
)
GRADER = (*family("reward/"), "truncated")
GRADIENT = ("gradient/positive_mass", "gradient/negative_mass", "gradient/zero_frac")
# All metrics that the dashboard reads.
COLUMNS = frozenset(
    {TIME, STEP_TOTAL, LENGTH, SAMPLES, *INTERVENTION_COLUMNS, *CURVES}
    | {*PHASES, *SAMPLING, *GRADER, *GRADIENT, *OWN, *alerts.COLUMNS}
)


@dataclass(frozen=True)
class Phase:
    """Seconds of the last step, and the share of the recent steps' time."""

    name: str
    seconds: float
    share: float


@dataclass(frozen=True, eq=False)
class RunCurve:
    """The logged points (n,) of a metric."""

    metric: str
    steps: Floats
    values: Floats

    @property
    def last(self) -> float:
        """The newest value; NaN for an empty curve."""
        return float(self.values[-1]) if len(self.values) else math.nan


@dataclass(frozen=True, eq=False)
class RunState:
    """A run as the dashboard shows it.

    ``follows`` is False for a log of another trainer, which is read once. ``has_ended`` is True for a run of the lab
    or of a study that has written its result. ``done`` is the newest step, 0 before the first; ``last_time`` is its
    Unix time. ``tokens_per_second`` are response tokens of the newest step, by the time of generation and of the whole
    step.
    """

    name: str
    path: str
    follows: bool
    has_ended: bool = False
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
    # False while the folder holds neither a command nor metrics: no training has started there.
    has_started: bool = True

    def age(self, now: float) -> float:
        """Return the seconds since the newest step: 0 if the run's clock is ahead of ours, NaN without a time."""
        age = now - self.last_time
        return age if math.isnan(age) else max(0.0, age)  # ``max`` takes 0 for the larger one of 0 and NaN

    def activity(self, now: float) -> Activity:
        """Return what the run does at the Unix time ``now`` in seconds."""
        if not self.has_started:
            return Activity("waiting", f"no run yet, waiting for {METRICS_FILE}")
        if not self.curves:
            return Activity("waiting", "waiting for the first step")
        if not self.follows:
            return Activity("read", "a log of another trainer, read once")
        return activity(self.done, self.total, self.pace, self.age(now), self.has_ended)

    def remaining(self, now: float) -> float:
        """Return the seconds to the last step, NaN if they are unknown or the run may be at its end already."""
        if self.activity(now).state not in ("running", "finished"):
            return math.nan
        return remaining(self.done, self.total, self.pace, self.age(now))


def build(
    run: Run,
    *,
    follows: bool = True,
    has_ended: bool = False,
    asked_steps: int | None = None,
    law: LawResult | None = None,
) -> RunState:
    """Return the state of a run for the dashboard.

    Args:
        run: The run as read so far.
        follows: False for a log of another trainer, which is read once.
        has_ended: True if the run wrote its result.
        asked_steps: Number of steps of the run that the user gave.
        law: The entropy law of the run, if it was fitted.
    """
    table = run.training
    kept = table.column("sampling/kept_frac")
    mean_kept = float(np.nanmean(kept)) if np.isfinite(kept).any() else math.nan
    total = total_steps(run.with_resolved(TOTAL_FLAGS), asked_steps, mean_kept)
    state = RunState(
        run.name, printable(str(run.path)), follows, has_ended=has_ended, total=total, warnings=run.warnings
    )
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
        tokens_per_second=(
            _ratio(tokens, _last(table, "timing/generation")),
            _ratio(tokens, _last(table, STEP_TOTAL)),
        ),
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
    """The law of a run that grows. It is fitted again when ``LAW_GROWTH`` of its points are new."""

    def __init__(self) -> None:
        self._points = training_points(Run("", Path(), EMPTY))
        self._result: LawResult | None = None

    def of(self, run: Run) -> LawResult:
        """Return the law of a run as it is now; the last result if few points are new."""
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
        """Return True if the fitted points have not changed, and only few are new."""
        fitted = self._points
        new = len(points) - len(self._points)
        # A resumed run may have replaced its last lines.
        same = new >= 0 and np.array_equal(points.reward[: len(fitted)], fitted.reward)
        return same and new < max(1.0, LAW_GROWTH * len(fitted))


def _curve(table: Table, name: str) -> RunCurve:
    values = table.column(name)
    there = np.isfinite(values)
    return RunCurve(name, table.steps[there].astype(np.float64), values[there])


def _phases(table: Table) -> tuple[Phase, ...]:
    """Return the phases that the log has, and as "other" the rest of the step."""
    present = [name for name in PHASES if name in table.columns]
    total = table.column(STEP_TOTAL)[-PHASE_STEPS:]
    if not present or not np.nansum(total):
        return ()
    recent = {title(name): table.column(name)[-PHASE_STEPS:] for name in present}
    recent["other"] = np.maximum(total - np.nansum(list(recent.values()), axis=0), 0.0)
    phases = [Phase(name, float(each[-1]), float(np.nansum(each) / np.nansum(total))) for name, each in recent.items()]
    # A remainder that would read 0 % is left out.
    return tuple(phase for phase in phases if phase.name != "other" or phase.share > 0.005)


def _present(table: Table, names: Sequence[str]) -> dict[str, float]:
    """Return title -> value in the newest step, of the metrics that the log has."""
    return {title(name): _last(table, name) for name in names if name in table.columns}


def _last(table: Table, name: str) -> float:
    return float(table.column(name)[-1])


def _ratio(value: float, by: float) -> float:
    return value / by if by > 0 else math.nan


# --- the runs


class WatchedRun:
    """A run and its state; ``update`` reads what is new."""

    def __init__(self, path: Path, name: str, asked_steps: int | None = None) -> None:
        self.path = path
        self.name = name
        self.asked_steps = asked_steps
        self._follower = RunFollower(path, COLUMNS) if _is_ours(path) else None
        self._fixed = Run("", path, EMPTY) if self._follower else read_run(path, columns=COLUMNS)
        self._law = RunningVerdict()
        self.state: RunState | None = None

    def update(self) -> bool:
        """Read what is new; return True if the state changed, which it does the first time."""
        has_news = self._follower is not None and self._follower.poll()
        # The result follows the last step, which may have been read before.
        has_ended = self._follower is not None and (self.path / RESULT_FILE).is_file()
        has_started = self._follower is None or _has_started(self.path)
        known = self.state and (self.state.has_ended, self.state.has_started)
        if not has_news and known == (has_ended, has_started):
            return False
        run = replace(self._follower.run if self._follower else self._fixed, name=self.name)
        self.state = build(
            run,
            follows=self._follower is not None,
            has_ended=has_ended,
            asked_steps=self.asked_steps,
            law=self._law.of(run) if len(run.training) else None,
        )
        self.state = replace(self.state, has_started=has_started)
        return True


def open_sources(paths: Sequence[Path], asked_steps: int | None = None) -> list[WatchedRun]:
    """Return the runs at these paths.

    Args:
        paths: Folders of runs, metrics files or logs of other trainers, each once.
        asked_steps: Number of steps of each run, the value of ``--steps``; None to take it from the settings of the
            run.

    Raises:
        UsageError: A path does not exist, is given twice or is not a run.
    """
    places = [_place(path) for path in paths]
    for path, place in zip(paths, places, strict=True):
        if places.count(place) > 1:
            raise UsageError(f"{path} is given twice")
    names = _names(places)
    return [WatchedRun(place, name, asked_steps) for place, name in zip(places, names, strict=True)]


def _place(path: Path) -> Path:
    if not path.exists():
        raise UsageError(f"{path} does not exist; name the folder of a run, its --ckpt.output_dir")
    path = path.resolve()
    return path.parent if path.name == METRICS_FILE else path


def _names(places: Sequence[Path]) -> list[str]:
    """Return the last parts of the paths, as many as distinguish them."""
    names: list[str] = []
    for count in range(1, max(len(place.parts) for place in places) + 1):
        names = ["/".join(place.parts[-count:]) for place in places]
        if len(set(names)) == len(names):
            break
    return [
        printable(name.removesuffix(place.suffix) if place.suffix in TABLES else name)
        for place, name in zip(places, names, strict=True)
    ]


def _has_started(folder: Path) -> bool:
    return (folder / METRICS_FILE).exists() or (folder / COMMAND_FILE).exists()


def _is_ours(path: Path) -> bool:
    """Return True for a folder that has or may get our metrics, as a new run whose TensorBoard events have no value.

    Raises:
        UsageError: The path is a file but not a table, or a folder of runs.
    """
    if not path.is_dir():
        if path.suffix not in TABLES and path.name != STATE_FILE:
            tables = ", ".join((*TABLES, STATE_FILE))
            raise UsageError(f"{path}: must be the folder of a run, a {METRICS_FILE} or a log ({tables})")
        return False
    if _has_started(path):
        return True
    refuse_folder_of_runs(path)
    if not any(path.rglob(EVENT_FILES)):
        return state_file(path) is None
    training, _, _ = read_events(path, columns=COLUMNS)
    return not len(training)
