"""A training run as the analysis sees it, read from our folders, TensorBoard events or a table."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from openrlhf_cov.analysis.foreign_logs import (
    EVENT_FILES,
    STATE_FILE,
    read_csv,
    read_events,
    read_trainer_state,
    state_file,
)
from openrlhf_cov.analysis.json_rows import JsonRows
from openrlhf_cov.analysis.law import LawPoints
from openrlhf_cov.analysis.table import EMPTY, Table, missing_steps
from openrlhf_cov.errors import UsageError
from openrlhf_cov.utils.command import COMMAND_FILE, SETTINGS_FILE, read_flags, read_settings, setting
from openrlhf_cov.utils.metric_table import ENTROPY
from openrlhf_cov.utils.metrics_log import EVAL_FILE, METRICS_FILE
from openrlhf_cov.utils.terminal import printable

TABLES = (".csv", ".tsv")
# Folders between that of a study and its runs: stage, method, settings and seed.
DEEPEST = 4
# Runs that a message names.
NAMED = 5
# Steps from an evaluation to the next logged entropy, at most.
NEAREST_ENTROPY = 5
# What to know of the law of training rewards where ``keeps_groups``.
KEPT_ONLY = "R is that of the groups that dynamic sampling kept"
KL = "--algo.kl.init_coef"
ENTROPY_COEF = "--actor.entropy_coef"
# Flags whose last number is the upper bound of the PPO clip; the first counts.
CLIPS = ("--actor.eps_clip_low_high", "--actor.eps_clip")
# The upper bound of the paper's runs without a raised clip.
PPO_CLIP = 0.2
METHOD_FLAGS = ("--cov_type", "--method")
SELECTED = "cov/selected_frac"
TO_REFERENCE = "kl"
# Training columns that ``interventions`` looks at.
INTERVENTION_COLUMNS = (SELECTED, TO_REFERENCE)


@dataclass(frozen=True, eq=False)
class Run:
    """``training`` has a row per global step, ``evaluations`` one per evaluation; names as in docs/metrics.md.

    ``settings`` are the flags on the command line of the run, where they are known. ``resolved`` are all settings that
    the run itself recorded, with the defaults of the program that made the run. All texts are printable; ``warnings``
    say what was odd about the files.
    """

    name: str
    path: Path
    training: Table
    evaluations: Table = EMPTY
    settings: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    resolved: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", printable(self.name))
        for name in ("settings", "resolved"):
            texts = {flag: printable(value) for flag, value in getattr(self, name).items()}
            object.__setattr__(self, name, texts)
        object.__setattr__(self, "warnings", tuple(map(printable, self.warnings)))

    def setting(self, flag: str) -> str | None:
        """Return the value of a flag as the run recorded it, or else as its command line names it.

        None means that the value is unknown: no default of this or of another program is filled in.
        """
        if flag in self.resolved:
            return self.resolved[flag]
        return setting(self.settings, flag)

    def with_resolved(self, flags: Iterable[str]) -> dict[str, str]:
        """Return the flags of the command line, and for ``flags`` what the run recorded."""
        return {**self.settings, **{flag: self.resolved[flag] for flag in flags if flag in self.resolved}}


class RunFollower:
    """A run folder of ours that is being written: ``poll`` reads what is new and nothing else."""

    def __init__(self, folder: str | Path, columns: Collection[str] | None = None) -> None:
        self.folder = Path(folder)
        self._metrics = JsonRows(self.folder / METRICS_FILE, columns)
        self._evaluations = JsonRows(self.folder / EVAL_FILE)

    def poll(self) -> bool:
        """Read on; True if there is anything new."""
        metrics = self._metrics.read()
        evaluations = self._evaluations.read()
        return metrics or evaluations

    @property
    def run(self) -> Run:
        """The run as far as it has been read."""
        return Run(
            name=self.folder.resolve().name,
            path=self.folder,
            training=self._metrics.table,
            evaluations=self._evaluations.table,
            settings=read_flags(self.folder / COMMAND_FILE),
            resolved=read_settings(self.folder / SETTINGS_FILE),
            warnings=(*self._metrics.warnings, *_gaps(self._metrics.table, METRICS_FILE), *self._evaluations.warnings),
        )


def read_run(
    path: str | Path,
    *,
    mapping: Mapping[str, str] | str | None = None,
    columns: Collection[str] | None = None,
) -> Run:
    """Read a run from its files.

    Args:
        path: A run folder of ours, its ``metrics.jsonl``, a folder with TensorBoard events, a CSV file, or a
            ``trainer_state.json`` or a folder of checkpoints that have one.
        mapping: Names in the log of another trainer for ours, see ``renaming``.
        columns: Training columns to keep, None all.

    Raises:
        UsageError: The path is none of these, or has no rows.
    """
    path = Path(path)
    if not path.exists():
        raise UsageError(f"{path} does not exist")
    if path.name == METRICS_FILE:
        path = path.parent
    # Our own metrics go first: a run folder of ours may have TensorBoard events as well.
    if (path / METRICS_FILE).exists():
        follower = RunFollower(path, columns)
        try:
            follower.poll()
        except OSError as error:
            raise unreadable(error) from error
        run = follower.run
    elif path.suffix in TABLES or (path.is_dir() and any(path.rglob(EVENT_FILES))):
        read, name = (read_csv, path.stem) if path.suffix in TABLES else (read_events, path.resolve().name)
        training, evaluations, warnings = read(path, mapping, columns)
        run = Run(name, path, training, evaluations, warnings=(*warnings, *_gaps(training, path.name)))
    elif state := state_file(path):
        training, evaluations, warnings = read_trainer_state(state, mapping, columns)
        name = path.resolve().parent.name if path == state else path.resolve().name
        run = Run(name, path, training, evaluations, warnings=(*warnings, *_gaps(training, state.name)))
    else:
        refuse_folder_of_runs(path)
        raise UsageError(
            f"{path} is not a run; give a folder with {METRICS_FILE} or TensorBoard events, a .csv or .tsv file, or "
            f"a {STATE_FILE} of TRL"
        )
    if not len(run.training):
        raise UsageError(f"{path} holds no step yet" + "".join(f"; {warning}" for warning in run.warnings))
    return run


def refuse_folder_of_runs(path: Path) -> None:
    """Raise UsageError, with some of the runs, for a folder that holds runs, such as the folder of a study."""
    for depth in range(1, DEEPEST + 1):
        if below := sorted(str(each.parent) for each in path.glob("*/" * depth + METRICS_FILE)):
            raise UsageError(f"{path} is a folder of runs, not a run; name the runs: {' '.join(below[:NAMED])}")


def unreadable(error: OSError) -> UsageError:
    """Return an error of one line about a file of a run that cannot be opened."""
    return UsageError(f"{error.filename} cannot be read ({error.strerror}); it has to be a file that you may read")


def _gaps(training: Table, source: str) -> list[str]:
    """Return one warning for all steps that are missing."""
    count, before = missing_steps(training.steps)
    return [f"{source}: steps missing within the log, {count}, the first after step {before}"] if count else []


def interventions(run: Run) -> list[str]:
    """Return the interventions on the entropy of this run, for ``examine_law``, from its flags and metrics.

    These are a method, a KL term, an entropy term and a raised upper clip bound. Only what the run recorded counts,
    see ``Run.setting``. Where the run says nothing of a method, the share of selected tokens shows a covariance
    method. Where it says nothing of a KL coefficient, ``kl`` shows a KL term: trainers log it with a reference policy.
    """
    found = []
    methods = [f"{flag} {run.setting(flag)}" for flag in METHOD_FLAGS if run.setting(flag) not in (None, "", "none")]
    selected = np.nan_to_num(run.training.column(SELECTED))
    found += methods or ([f"a covariance method ({SELECTED} above 0)"] if selected.any() else [])
    # A coefficient of 0 is no intervention; one that is unknown may be.
    coef = run.setting(KL)
    entropy = run.setting(ENTROPY_COEF)
    if _number(coef):
        is_default = run.settings and not setting(run.settings, KL)
        found.append(f"{KL} {coef}" + (" (the program's default)" if is_default else ""))
    if _number(entropy):
        found.append(f"{ENTROPY_COEF} {entropy}")
    # An exact name: --actor.eps_clip is a flag of its own, not the beginning of --actor.eps_clip_low_high.
    clips = {**run.settings, **run.resolved}
    clip = next((flag for flag in CLIPS if clips.get(flag)), None)
    if clip and _number(clips[clip].split()[-1]) > PPO_CLIP:
        found.append(f"{clip} {clips[clip]}")
    if coef is None and np.nan_to_num(run.training.column(TO_REFERENCE)).any():
        found.append(f"a KL term (the log has a {TO_REFERENCE} that is not 0)")
    return found


def keeps_groups(training: Table) -> bool:
    """Return True if dynamic sampling dropped the groups of equal rewards."""
    return "sampling/kept_frac" in training.columns


def with_mean(run: Run, metric: str) -> Run:
    """Return the run with the mean of several columns as a column of its own; NaN where one of them is missing.

    The paper's R is the mean over its validation sets.

    Args:
        run: The run.
        metric: Names of the columns with commas between them, which is also the name of the new one. A single name
            changes nothing.
    """
    names = metric.split(",")
    found = {"training": run.training, "evaluations": run.evaluations}
    for part, table in found.items():
        if len(names) > 1 and all(name in table.columns for name in names):
            columns = {**table.columns, metric: np.mean([table.columns[name] for name in names], axis=0)}
            return replace(run, **{part: Table(table.steps, columns)})
    return run


def training_points(run: Run, reward: str = "reward", entropy: str = ENTROPY) -> LawPoints:
    """Return entropy and reward of each step's rollouts, which one policy made.

    Where groups of equal rewards are filtered out (dynamic sampling), the reward is that of the groups that are left.
    The scores of evaluations then show the law better.

    Args:
        run: The run.
        reward: Column of R.
        entropy: Column of H, in nats.
    """
    return LawPoints.of(run.training.steps, run.training.column(entropy), run.training.column(reward))


def evaluation_points(run: Run, metric: str, entropy: str = ENTROPY) -> LawPoints:
    """Return the score of each evaluation, with the entropy of the policy that was evaluated.

    An evaluation of step s comes after the updates of s, and ``entropy/mean`` is measured before those of its step:
    the evaluated policy is the one whose entropy is in line s + 1. Entropy between logged lines is interpolated; that
    of the last evaluation of a run is the last one logged. Evaluations further than ``NEAREST_ENTROPY`` steps from
    any logged entropy are left out. The paper takes the entropy of the same step, early in a run a higher one.

    Args:
        run: The run.
        metric: Column of R among the evaluations.
        entropy: Column of H among the training metrics, in nats.
    """
    entropies = run.training.column(entropy)
    logged = np.flatnonzero(~np.isnan(entropies))
    if not len(logged):
        return LawPoints.of([], [], [])
    steps = run.evaluations.steps
    measured = run.training.steps[logged]
    # The first logged entropy at or after step s + 1, and below the one before it.
    after = np.clip(np.searchsorted(measured, steps + 1), 0, len(measured) - 1)
    distance = np.minimum(abs(measured[after] - steps - 1), abs(measured[np.maximum(after - 1, 0)] - steps - 1))
    near = distance <= NEAREST_ENTROPY
    matched = np.interp(steps + 1, measured, entropies[logged])
    return LawPoints.of(steps[near], matched[near], run.evaluations.column(metric)[near])


def _number(text: str | None) -> float:
    """Return the number of a flag; of a schedule START:END:STEPS the first of START and END that is not 0."""
    try:
        numbers = [float(part) for part in (text or "0").split(":")[:2]]
    except ValueError:
        return 0.0
    return next((number for number in numbers if number), 0.0)
