"""How many steps a run will make, how fast it is, when it ends, and whether it still moves (pure)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from openrlhf_cov.analysis.regression import Floats
from openrlhf_cov.utils.command import TRAINER_DEFAULTS, setting

DYNAMIC = "--algo.dynamic_filtering_enable"
WINDOW = 20
"""Steps that the pace is taken from."""
PAUSE = 10
"""Intervals above this many usual ones are pauses: a run that was stopped and resumed."""
SILENT_AFTER, SILENT_SECONDS = 5, 10.0
"""A run is silent when no step came for this many usual intervals, and at least for these seconds."""


@dataclass(frozen=True)
class Total:
    """Global steps that a run will make, and where the number comes from; not ``exact`` where it is an estimate."""

    steps: int
    how: str
    exact: bool = True


def total_steps(settings: Mapping[str, str], asked: int | None = None, kept_frac: float = math.nan) -> Total | None:
    """``asked`` if given, else what the flags say; None if they do not. ``--rollout_limit`` is the most there can be.

    Without filtering an episode is ceil(``--data.max_samples`` / ``--rollout.batch_size``) steps. With dynamic
    sampling only the share ``kept_frac`` of the prompts counts. A data set smaller than ``--data.max_samples`` makes
    fewer steps; its size does not show in the flags.
    """
    if asked is not None:
        return Total(asked, "--steps")
    found, limit = _steps_of_the_data(settings, kept_frac), _whole(settings.get("--rollout_limit"))
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
    """Wall clock between the lines of the last steps, without pauses; ``step_seconds`` where that is not known.

    All are (n,). Wall clock holds what ``timing/step_total`` does not: evaluations, checkpoints, logging.
    """
    known = np.flatnonzero(np.isfinite(times))[-WINDOW - 1 :]
    seconds = np.diff(times[known]) / np.maximum(np.diff(steps[known]), 1)
    seconds = seconds[seconds > 0]
    if not len(seconds):
        seconds = step_seconds[np.isfinite(step_seconds)][-WINDOW:]
    if not len(seconds):
        return Pace(math.nan, math.nan)
    usual = float(np.median(seconds))
    return Pace(float(seconds[seconds <= PAUSE * usual].mean()), usual)


def remaining(done: int, total: Total | None, speed: Pace, age: float) -> float:
    """Seconds until the last step, ``age`` seconds after the newest one; NaN if unknown, 0 if nothing is left."""
    if total is None or not math.isfinite(speed.mean):
        return math.nan
    left = max(0, total.steps - done)
    return max(0.0, left * speed.mean - (age if math.isfinite(age) else 0.0))


@dataclass(frozen=True)
class Activity:
    """Is a run moving: ``state`` is waiting, running, silent, finished or read (once, a log of others)."""

    state: str
    text: str


def activity(done: int, total: Total | None, speed: Pace, age: float) -> Activity:
    """State of a run whose newest step, ``done``, is ``age`` seconds old (NaN if unknown)."""
    ago = f"last step {duration(age)} ago" if math.isfinite(age) else "time of the last step unknown"
    limit = max(SILENT_AFTER * speed.usual, SILENT_SECONDS) if math.isfinite(speed.usual) else math.inf
    if total is not None and (done >= total.steps if age > limit else total.exact and done == total.steps):
        return Activity("finished", f"finished, {ago}")
    if age > limit:
        usual = duration(speed.usual)
        return Activity("silent", f"no new step for {duration(age)} (usually {usual}): finished, stopped or stuck")
    return Activity("running", ago)


def duration(seconds: float) -> str:
    """3.5 s, 42 s, 12 min 5 s, 3 h 20 min, 2 d 4 h; "unknown" for NaN."""
    if not math.isfinite(seconds):
        return "unknown"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, size, below, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {unit}" + (f" {rest} {below}" if rest else "")
    return f"{whole} s"


def _whole(text: str | None) -> int:
    """The number of a flag; 0 if it is none."""
    try:
        return int(text or "0")
    except ValueError:
        return 0
