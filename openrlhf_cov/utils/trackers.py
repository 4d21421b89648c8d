"""Experiment trackers: one adapter per tracker, which takes the records of ``metrics.jsonl`` and ``eval.jsonl``.

``--log_to wandb,mlflow`` chooses them. Each is an optional dependency. A tracker that needs an account is set up in
its own way before the run (``wandb login``, ``MLFLOW_TRACKING_URI``, ``swanlab login``); without that, MLflow, Trackio
and TensorBoard write files on this host, and W&B and SwanLab are used offline with ``WANDB_MODE=offline`` and
``SWANLAB_MODE=offline``.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from openrlhf_cov.errors import RunStopped, reason_of

PROJECT = "openrlhf_cov"

logger = logging.getLogger(__name__)


class Tracker(Protocol):
    """A run in an experiment tracker."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record the values of a global step.

        Args:
            step: The global step, from 1; 0 for an evaluation before the first step.
            values: Name -> finite number. The names are those in the files of the run.
        """

    def close(self) -> None:
        """Send or write what is missing, and end the run in the tracker."""


class TensorBoard:
    """TensorBoard, in the folder ``tensorboard`` of the run."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"))
        table = "\n".join(f"| {name} | {value} |" for name, value in settings.items())
        self._writer.add_text("settings", f"| setting | value |\n|---|---|\n{table}")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Implement ``Tracker``."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Implement ``Tracker``."""
        self._writer.close()


class Wandb:
    """Weights & Biases. The run has the name of its folder; the variables of W&B choose everything else."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        import wandb

        project = os.environ.get("WANDB_PROJECT", PROJECT)
        self._run = wandb.init(project=project, name=folder.name, dir=str(folder), config=dict(settings))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Implement ``Tracker``."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Implement ``Tracker``."""
        self._run.finish()


class MLflow:
    """MLflow, at ``MLFLOW_TRACKING_URI`` or in the file ``mlflow.db`` of the run."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        import mlflow  # pyright: ignore[reportMissingImports]

        if "MLFLOW_TRACKING_URI" not in os.environ:
            mlflow.set_tracking_uri(f"sqlite:///{folder.resolve()}/mlflow.db")
        mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT))
        self._mlflow = mlflow
        mlflow.start_run(run_name=folder.name)
        mlflow.log_params({name.lstrip("-"): str(value)[:500] for name, value in settings.items()})

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Implement ``Tracker``."""
        self._mlflow.log_metrics(dict(values), step=step)

    def close(self) -> None:
        """Implement ``Tracker``."""
        self._mlflow.end_run()


class Trackio:
    """Trackio, in its folder on this host (``TRACKIO_DIR``)."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        import trackio  # pyright: ignore[reportMissingImports]

        self._trackio = trackio
        trackio.init(project=PROJECT, name=folder.name, config=dict(settings))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Implement ``Tracker``."""
        self._trackio.log(dict(values), step=step)

    def close(self) -> None:
        """Implement ``Tracker``."""
        self._trackio.finish()


class SwanLab:
    """SwanLab, offline in the folder ``swanlab`` of the run where ``SWANLAB_MODE`` says so."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        import swanlab  # pyright: ignore[reportMissingImports]

        mode = os.environ.get("SWANLAB_MODE", "cloud")
        self._swanlab = swanlab
        swanlab.init(
            project=PROJECT,
            experiment_name=folder.name,
            config=dict(settings),
            logdir=str(folder / "swanlab"),
            mode=mode,
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Implement ``Tracker``."""
        self._swanlab.log(dict(values), step=step)

    def close(self) -> None:
        """Implement ``Tracker``."""
        self._swanlab.finish()


# Name of a tracker -> the package that it needs, and its adapter.
TRACKERS: dict[str, tuple[str, Callable[[Path, Mapping[str, Any]], Tracker]]] = {
    "tensorboard": ("tensorboard", TensorBoard),
    "wandb": ("wandb", Wandb),
    "mlflow": ("mlflow", MLflow),
    "trackio": ("trackio", Trackio),
    "swanlab": ("swanlab", SwanLab),
}


def tracker_names(text: str) -> tuple[str, ...]:
    """Return the names in a value of ``--log_to``.

    Args:
        text: Names separated by commas, such as ``wandb,mlflow``; empty for no tracker.

    Raises:
        ValueError: A name is unknown or stands twice, or its package is not installed. The message names the flag.
    """
    names = tuple(name.strip() for name in text.split(",")) if text else ()
    for name in names:
        if name not in TRACKERS:
            raise ValueError(f"--log_to {text}: there is no tracker {name!r}; choose from {', '.join(TRACKERS)}")
        package = TRACKERS[name][0]
        if find_spec(package) is None:
            raise ValueError(f"--log_to {text}: {package} is not installed; run `pip install {package}`")
    if len(set(names)) < len(names):
        raise ValueError(f"--log_to {text}: a tracker is named twice; name each once")
    return names


class Trackers:
    """All trackers of a run.

    Args:
        names: Keys of ``TRACKERS``.
        folder: The folder of the run. Its name is the name of the run in the trackers.
        settings: Flag -> value, without secrets.

    Raises:
        RunStopped: A tracker cannot be started, such as one that lacks an account.
    """

    def __init__(self, names: Sequence[str], folder: Path, settings: Mapping[str, Any]) -> None:
        self._trackers: dict[str, Tracker] = {}
        for name in names:
            try:
                self._trackers[name] = TRACKERS[name][1](folder, settings)
            except Exception as error:  # a tracker may raise anything
                reason = reason_of(error).rstrip(".")
                raise RunStopped(
                    f"--log_to {name} cannot be started: {reason}; set the tracker up, or leave it out"
                ) from error

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Send the numbers of a record to every tracker. Values that are no finite number are left out.

        A tracker that fails gets no more records, with a warning: the files of the run have them all.

        Args:
            step: The global step, from 1; 0 for an evaluation before the first step.
            values: Name -> value, as in the files of the run.
        """
        numbers = {name: float(value) for name, value in values.items() if _is_finite(value)}
        for name, tracker in list(self._trackers.items()):
            try:
                tracker.log(step, numbers)
            except Exception as error:
                del self._trackers[name]
                logger.warning(
                    "step %d: --log_to %s failed and gets no more records: %s", step, name, reason_of(error)
                )

    def close(self) -> None:
        """End the run in every tracker, also where one of them fails.

        Raises:
            Exception: The first failure of a tracker.
        """
        failures = []
        for tracker in self._trackers.values():
            try:
                tracker.close()
            except Exception as error:  # a tracker may raise anything, and the next one has to be closed
                failures.append(error)
        if failures:
            raise failures[0]


def _is_finite(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) != float("inf") and value == value
