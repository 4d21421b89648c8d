import os

import pytest

from openrlhf_cov.analysis.dashboard.state import open_sources
from openrlhf_cov.errors import UsageError
from openrlhf_cov.utils.metrics_log import MetricsLog


def source_of(path):
    (source,) = open_sources([path])
    return source


@pytest.mark.parametrize("name", ["", "metrics.jsonl"])
def test_a_folder_that_grows(folder, name):
    run = folder().add(1, 2)
    source = source_of(run.path / name)
    assert source.update()
    assert (source.state.name, source.state.done, source.state.follows) == ("demo", 2, True)
    assert not source.update()
    run.add(3)
    assert source.update()
    assert source.state.done == 3


def test_a_run_of_the_lab_finishes_with_its_result(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    (tmp_path / "command.txt").write_text("lab --output x")
    (tmp_path / "settings.json").write_text('{"--steps": "3"}')  # the default is not in the command
    log.write(1, {"reward": 0.5})
    source = source_of(tmp_path)
    source.update()
    now = source.state.last_time
    assert (source.state.total.steps, source.state.activity(now).state) == (3, "running")
    (tmp_path / "result.json").write_text("{}")
    assert source.update()
    assert source.state.activity(now).state == "finished"
    assert not source.update()


def test_a_folder_without_a_step(folder, tmp_path):
    run = folder()
    source = source_of(run.path)
    assert source.update()
    assert (source.state.activity(0.0).state, source.state.total.steps) == ("waiting", 40)
    assert not source.update()
    run.add(1)
    assert source.update()
    assert source.state.done == 1
    empty = tmp_path / "empty"
    empty.mkdir()
    source = source_of(empty)
    assert source.update()
    # The folder says what it waits for until a training has written its command there.
    assert source.state.activity(0.0).text == "no run yet, waiting for metrics.jsonl"
    assert not source.update()
    (empty / "command.txt").write_text("openrlhf-cov lab --output empty\n")
    assert source.update()
    assert source.state.activity(0.0).text == "waiting for the first step"


def test_a_run_that_was_resumed_goes_back(folder):
    run = folder().add(1, 2, 3)
    source = source_of(run.path)
    source.update()
    metrics = run.path / "metrics.jsonl"
    (run.path / "kept").write_text(metrics.read_text().split("\n")[0] + "\n")
    os.replace(run.path / "kept", metrics)
    assert source.update()
    assert source.state.done == 1
    os.replace(metrics, run.path / "metrics.jsonl.bak")
    metrics.touch()  # a run that starts from scratch in the same folder
    assert source.update()
    assert source.state.activity(0.0).state == "waiting"


def test_only_what_is_new_is_read(folder):
    run = folder().add(*range(1, 101))
    source = source_of(run.path)
    source.update()
    metrics = run.path / "metrics.jsonl"
    with metrics.open("r+") as file:  # what has been read may change unseen
        file.write(metrics.read_text()[:200].replace('"reward": 0.01', '"reward": 0.99'))
    run.add(101)
    assert source.update()
    assert source.state.curves[0].values[[0, -1]].tolist() == [0.01, 1.01]
    fresh = source_of(run.path)
    fresh.update()
    assert fresh.state.curves[0].values[0] == 0.99


def test_a_table_is_read_once(tmp_path):
    path = tmp_path / "verl.csv"
    path.write_text("step,actor/entropy,critic/score/mean\n1,0.5,0.25\n2,0.4,0.5\n")
    source = source_of(path)
    assert source.update()
    assert not source.update()
    state = source.state
    assert (state.name, state.follows, state.done) == ("verl", False, 2)
    assert [curve.last for curve in state.curves[:2]] == [0.5, 0.4]


def test_events_are_read_once_and_events_without_a_value_waited_for(tmp_path):
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    run = tmp_path / "run"
    writer = EventFileWriter(str(run / "tensorboard"))
    writer.flush()
    assert source_of(run).path == run  # as a run of ours before its first step
    waiting = source_of(run)
    waiting.update()
    assert waiting.state.activity(0.0).state == "waiting"
    for step in (1, 2):
        value = Summary.Value(tag="train/reward", simple_value=step / 4)
        writer.add_event(Event(step=step, wall_time=float(step), summary=Summary(value=[value])))
    writer.close()
    source = source_of(run)
    source.update()
    assert (source.state.follows, source.state.done, source.state.curves[0].last) == (False, 2, 0.5)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["none"], "none does not exist; name the folder of a run, its --ckpt.output_dir"),
        (["demo", "demo"], "demo is given twice"),
        (["demo", "demo/metrics.jsonl"], "demo is given twice"),
        (["demo/command.txt"], "must be the folder of a run, a metrics.jsonl or a log"),
        (["."], "is a folder of runs, not a run; name the runs: "),
    ],
)
def test_what_is_no_run(folder, tmp_path, names, message):
    folder().add(1)
    with pytest.raises(UsageError) as error:
        open_sources([tmp_path / name for name in names])
    assert message in str(error.value)
    assert "\n" not in str(error.value)
