"""The runs of a report: read with the columns that it needs, each with a name of its own."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from openrlhf_cov.analysis.runs import Run, read_run
from openrlhf_cov.errors import UsageError
from openrlhf_cov.report.curves import COLUMNS, REWARD

TRAINING_METRICS = (REWARD, "score")
"""What R of the law can be, beside the numbers of evaluations."""


def read_runs(
    paths: Sequence[Path], mapping: Mapping[str, str] | str | None = None, *, processes: int = 1
) -> list[Run]:
    """The runs at these paths, with the columns of a report; UsageError for what cannot be read or is given twice.

    ``processes`` as for ``read_run``.
    """
    places = [path.resolve() for path in paths]
    for path, place in zip(paths, places, strict=True):
        if places.count(place) > 1:
            raise UsageError(f"{path} is given twice")
    runs = [read_run(path, mapping=mapping, columns=COLUMNS, processes=processes) for path in paths]
    folders = [run.path.resolve() for run in runs]
    for run, folder in zip(runs, folders, strict=True):
        if folders.count(folder) > 1:
            raise UsageError(f"{run.path} is given twice")
    names = unlike([run.name for run in runs], folders)
    return [replace(run, name=name) for run, name in zip(runs, names, strict=True)]


def unlike(names: Sequence[str], paths: Sequence[Path]) -> list[str]:
    """The names, those that occur twice as the shortest end of their path that tells them apart."""
    found = list(names)
    for name in {name for name in names if names.count(name) > 1}:
        alike = [place for place, each in enumerate(names) if each == name]
        length = 2
        while len({paths[place].parts[-length:] for place in alike}) < len(alike):
            length += 1
        for place in alike:
            found[place] = "/".join(paths[place].parts[-length:])
    return found


def check_metric(metric: str, runs: Iterable[Run]) -> None:
    """UsageError for a metric that no run has, with those that there are."""
    columns = [name for run in runs for name in run.evaluations.columns]
    known = list(dict.fromkeys([*TRAINING_METRICS, *columns]))
    if metric not in known:
        raise UsageError(f"--metric {metric}: {_near(metric, known)}")


def check_names(flag: str, names: Iterable[str], runs: Sequence[Run]) -> None:
    """UsageError for a name that is no run's."""
    known = [run.name for run in runs]
    for name in names:
        if name not in known:
            raise UsageError(f"{flag} {name}: {_near(name, known)}")


def _near(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    listed = ", ".join(known[:20]) + (", ..." if len(known) > 20 else "")
    return (f"did you mean {' or '.join(near)}? " if near else "") + f"there are {listed}"
