"""Every adapter records the same numbers with its real tracker, offline."""

import math
import sqlite3
import time

import pytest

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.utils.trackers import TRACKERS, Trackers, tracker_names

SETTINGS = {"--lr": "1e-4", "--cov_type": "kl_cov"}
LINES = [
    (0, {"eval/greedy": 0.25}),
    (1, {"reward": 0.5, "entropy/mean": 1.5, "kl": math.nan, "note": None}),
    (2, {"reward": 0.75}),
]
# What the tracker has to hold: NaN and texts are no numbers that a tracker could draw.
RECORDED = {("eval/greedy", 0, 0.25), ("reward", 1, 0.5), ("entropy/mean", 1, 1.5), ("reward", 2, 0.75)}


def record(name, folder):
    trackers = Trackers([name], folder, SETTINGS)
    for step, values in LINES:
        trackers.log(step, values)
    trackers.close()


def test_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    record("tensorboard", tmp_path)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    found = {(name, each.step, each.value) for name in events.Tags()["scalars"] for each in events.Scalars(name)}
    assert found == RECORDED


@pytest.mark.slow
def test_wandb(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    record("wandb", tmp_path)
    (path,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    # The file holds protobuf records, in which names and values are plain text. A process of W&B writes it.
    expected = {text.encode() for name, _, value in RECORDED for text in (name, str(value))}
    deadline = time.monotonic() + 60
    while missing := {text for text in expected if text not in path.read_bytes()}:
        assert time.monotonic() < deadline, missing
        time.sleep(0.1)
    assert b"note" not in path.read_bytes()


def test_mlflow(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy", reason="mlflow-skinny has no local store")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    record("mlflow", tmp_path)
    with sqlite3.connect(tmp_path / "mlflow.db") as file:
        found = set(file.execute("select key, step, value from metrics"))
        settings = dict(file.execute("select key, value from params"))
    assert found == RECORDED
    assert settings == {"lr": "1e-4", "cov_type": "kl_cov"}


def test_trackio(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # read when it is imported
    pytest.importorskip("trackio")
    record("trackio", tmp_path)
    assert list((tmp_path / "trackio").rglob("*.db"))


def test_swanlab(tmp_path, monkeypatch):
    pytest.importorskip("swanlab")
    monkeypatch.setenv("SWANLAB_MODE", "offline")
    record("swanlab", tmp_path)
    assert any((tmp_path / "swanlab").iterdir())


class Broken:
    """A tracker whose end fails."""

    def __init__(self, folder, settings):
        pass

    def close(self):
        raise OSError("no network")


class Failing:
    """A tracker that fails at step 2, or already at its start if the settings say so."""

    def __init__(self, folder, settings):
        if settings:
            raise ValueError("No API key configured.\nA long explanation.")
        self.steps = []

    def log(self, step, values):
        self.steps.append(step)
        if step == 2:
            raise ConnectionError("the server is gone")

    def close(self):
        pass


def test_a_tracker_that_cannot_be_started_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(TRACKERS, "wandb", ("wandb", Failing))
    with pytest.raises(RunStopped) as stopped:
        Trackers(["wandb"], tmp_path, {"lr": 1})
    assert str(stopped.value).startswith("--log_to wandb cannot be started: No API key configured; ")
    assert "\n" not in str(stopped.value)


def test_a_tracker_that_fails_ends_no_run(tmp_path, monkeypatch, caplog):
    made = []
    monkeypatch.setitem(TRACKERS, "wandb", ("wandb", lambda *args: made.append(Failing(*args)) or made[-1]))
    all_of_run = Trackers(["wandb"], tmp_path, {})
    for step in (1, 2, 3):
        all_of_run.log(step, {"reward": 0.5})
    all_of_run.close()
    assert made[0].steps == [1, 2]
    assert "step 2: --log_to wandb failed and gets no more records: the server is gone" in caplog.text


def test_a_tracker_that_fails_at_its_end_keeps_no_other_open(tmp_path, monkeypatch):
    closed = []

    class Noted(Broken):
        def close(self):
            closed.append(True)

    monkeypatch.setitem(TRACKERS, "wandb", ("wandb", Broken))
    monkeypatch.setitem(TRACKERS, "tensorboard", ("tensorboard", Noted))
    with pytest.raises(OSError, match="no network"):
        Trackers(["wandb", "tensorboard"], tmp_path, {}).close()
    assert closed == [True]


@pytest.mark.parametrize(
    ("text", "names"), [("", ()), ("tensorboard", ("tensorboard",)), ("wandb, tensorboard", ("wandb", "tensorboard"))]
)
def test_names(text, names):
    assert tracker_names(text) == names


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("comet", "--log_to comet: there is no tracker 'comet'; choose from tensorboard, wandb, mlflow"),
        ("wandb,", "--log_to wandb,: there is no tracker ''"),
        ("wandb,wandb", "--log_to wandb,wandb: a tracker is named twice"),
        ("missing", "--log_to missing: no_such_package is not installed; run `pip install no_such_package`"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused(text, message, monkeypatch):
    monkeypatch.setitem(TRACKERS, "missing", ("no_such_package", Broken))
    with pytest.raises(ValueError, match=r"^--log_to") as refusal:
        tracker_names(text)
    assert str(refusal.value).startswith(message)
