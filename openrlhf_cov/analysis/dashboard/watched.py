"""Where the dashboard gets its runs from: a folder that is followed, or a log of another trainer, read once."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from openrlhf_cov.analysis.dashboard.state import COLUMNS, RunningVerdict, RunState, build
from openrlhf_cov.analysis.foreign_logs import EVENT_FILES, read_events
from openrlhf_cov.analysis.runs import TABLES, Run, RunFollower, read_run
from openrlhf_cov.analysis.table import EMPTY
from openrlhf_cov.errors import UsageError
from openrlhf_cov.utils.command import COMMAND_FILE
from openrlhf_cov.utils.metrics_log import METRICS_FILE
from openrlhf_cov.utils.terminal import printable

NAMED = 5
"""Runs that an error names."""


class WatchedRun:
    """A run and its state; ``update`` reads what is new."""

    def __init__(self, path: Path, name: str, asked_steps: int | None = None) -> None:
        self.path, self.name, self.asked_steps = path, name, asked_steps
        self._follower = RunFollower(path, COLUMNS) if _is_ours(path) else None
        self._fixed = Run("", path, EMPTY) if self._follower else read_run(path, columns=COLUMNS)
        self._law = RunningVerdict()
        self.state: RunState | None = None

    def update(self) -> bool:
        """Read on; True if the state changed, as it does the first time."""
        news = self._follower is not None and self._follower.poll()
        if self.state is not None and not news:
            return False
        run = replace(self._follower.run if self._follower else self._fixed, name=self.name)
        law = self._law.of(run) if len(run.training) else None
        self.state = build(run, follows=self._follower is not None, asked_steps=self.asked_steps, law=law)
        return True


def open_sources(paths: Sequence[Path], asked_steps: int | None = None) -> list[WatchedRun]:
    """The runs at these paths; UsageError for one that is not there, is given twice or is no run."""
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
    """Last parts of the paths, as many as tell them apart."""
    for count in range(1, max(len(place.parts) for place in places) + 1):
        names = ["/".join(place.parts[-count:]) for place in places]
        if len(set(names)) == len(names):
            break
    return [
        printable(name.removesuffix(place.suffix) if place.suffix in TABLES else name)
        for place, name in zip(places, names, strict=True)
    ]


def _is_ours(path: Path) -> bool:
    """True for a folder that has, or may get, our metrics; a new run of ours has TensorBoard events without a value.

    UsageError for a file that is no table, and for a folder of runs.
    """
    if not path.is_dir():
        if path.suffix not in TABLES:
            raise UsageError(f"{path} is no run: a folder, a {METRICS_FILE} or a table ({', '.join(TABLES)})")
        return False
    if (path / METRICS_FILE).exists() or (path / COMMAND_FILE).exists():
        return True
    if below := sorted(str(each.parent) for each in path.glob(f"*/{METRICS_FILE}")):
        raise UsageError(f"{path} holds no run but folders of runs; name them: {' '.join(below[:NAMED])}")
    if not any(path.rglob(EVENT_FILES)):
        return True
    training, _, _ = read_events(path, columns=COLUMNS)
    return not len(training)
