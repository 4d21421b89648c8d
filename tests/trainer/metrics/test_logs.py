"""Where the numbers of a run go: its two files, W&B and TensorBoard."""

import json
import logging
import os
import sys

import pytest
from run_flags import run_flags

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.trainer.metrics.logs import CovWandbLogger, TrainingLogs
from openrlhf_cov.utils.metrics_log import read_metrics

EXAMPLE = ("text of a sample", 0.5)


class FakeWandb:
    """The part of the module that upstream uses. Like the real one it reads the id of the run from the environment."""

    class api:
        api_key = "key"

    class Table:
        def __init__(self, columns, data=()):
            self.columns, self.data = columns, list(data)

        def add_data(self, *row):
            self.data.append(row)

    def __init__(self, environment):
        self.environment, self.runs, self.logged, self.finished = environment, [], [], 0

    def init(self, **settings):
        self.runs.append((self.environment.get("WANDB_RUN_ID"), self.environment.get("WANDB_RESUME")))
        self.settings = settings

    def define_metric(self, *args, **settings):
        pass

    def log(self, values):
        self.logged.append(values)

    def finish(self):
        self.finished += 1


def flags(tmp_path, folder="run", load_enable=False, wandb_key="", tensorboard=False, **changes):
    return run_flags({
        "logger.wandb.key": wandb_key, "logger.wandb.run_name": "r", "ckpt.output_dir": str(tmp_path / folder),
        "logger.tensorboard_dir": str(tmp_path / "tensorboard") if tensorboard else "",
        "ckpt.path": str(tmp_path / folder / "state"), "ckpt.load_enable": load_enable,
    } | changes)  # fmt: skip


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Function (load_enable, folder) -> the fake module and the flags of a run that was just started there.

    Every start is a process of its own, which has no id in its environment unless the user gave one.
    """
    wandb = FakeWandb(os.environ)
    monkeypatch.setitem(sys.modules, "wandb", wandb)

    def run(load_enable=False, folder="run", run_id=None):
        for name in ("WANDB_RUN_ID", "WANDB_RESUME"):
            monkeypatch.setenv(name, "")  # so that the variables are as before after the test
            os.environ.pop(name)
        if run_id:
            os.environ["WANDB_RUN_ID"] = run_id
        args = flags(tmp_path, folder, load_enable, wandb_key="k-0815")
        CovWandbLogger(args)
        return wandb, args

    return run


def test_every_step_and_every_evaluation_has_a_line(tmp_path):
    log = TrainingLogs(flags(tmp_path), resumed_step=0)
    log.write_step(1, {"policy_loss": 0.5}, EXAMPLE)
    log.write_evaluation(1, {"eval_task_pass1": 0.25})
    (line,) = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert (line["step"], line["policy_loss"], "generated_samples" in line) == (1, 0.5, False)
    (line,) = read_metrics(tmp_path / "run" / "eval.jsonl")
    assert (line["step"], line["eval_task_pass1"]) == (1, 0.25)
    assert log.evaluation_of(1) == {"eval_task_pass1": 0.25}
    assert log.evaluation_of(2) is None


@pytest.mark.parametrize(("resumed_step", "kept"), [(3, [1, 2, 3]), (0, [])])
def test_lines_of_later_steps_are_dropped(tmp_path, resumed_step, kept):
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("metrics.jsonl", "eval.jsonl"):
        (folder / name).write_text("".join(json.dumps({"step": step, "value": 1.0}) + "\n" for step in range(6)))
    log = TrainingLogs(flags(tmp_path), resumed_step)
    log.write_step(resumed_step + 1, {}, EXAMPLE)
    if kept:
        kept = [0, *kept]
    # A fresh start keeps nothing of an earlier attempt, also not its evaluation at step 0.
    assert [line["step"] for line in read_metrics(folder / "metrics.jsonl")] == [*kept, resumed_step + 1]
    assert [line["step"] for line in read_metrics(folder / "eval.jsonl")] == kept
    assert log.evaluation_of(0) == ({"value": 1.0} if kept else None)


@pytest.mark.parametrize("write", ["write_step", "write_evaluation"])
def test_a_disk_that_is_full_stops_the_run_with_one_line(tmp_path, write):
    log = TrainingLogs(flags(tmp_path), 0)
    (tmp_path / "run").mkdir(exist_ok=True)
    for name in ("metrics.jsonl", "eval.jsonl"):
        (tmp_path / "run" / name).unlink(missing_ok=True)
        (tmp_path / "run" / name).symlink_to("/dev/full")
    example = [EXAMPLE] if write == "write_step" else []
    with pytest.raises(RunStopped, match="jsonl cannot be written at global step 4: No space left on device"):
        getattr(log, write)(4, {"loss": 1.0}, *example)


@pytest.mark.parametrize(("p99", "count"), [(2.0, 0), (2.01, 1)])
def test_a_policy_that_runs_away_is_reported(tmp_path, log, p99, count):
    TrainingLogs(flags(tmp_path), 0).write_step(1, {"ppo/ratio_p99": p99, "ppo/ratio_max": 37.5}, EXAMPLE)
    messages = [record.getMessage() for record in log.records if record.levelno == logging.WARNING]
    assert len(messages) == count
    assert all("ppo/ratio_p99 2.01" in text and "ppo/ratio_max 37.5" in text for text in messages)


class Tracker:
    def __init__(self):
        self.steps, self.evaluations, self.is_closed = [], [], False

    def log_train(self, step, values):
        self.steps.append((step, values))

    def log_eval(self, step, values):
        self.evaluations.append((step, values))

    def close(self):
        self.is_closed = True


def test_trackers_get_every_nth_step_with_an_example_and_every_evaluation(tmp_path):
    log = TrainingLogs(flags(tmp_path, **{"logger.logging_steps": 2}), 0)
    log.trackers = [tracker] = [Tracker()]
    for step in range(1, 5):
        log.write_step(step, {"loss": 1.0}, EXAMPLE)
        log.write_evaluation(step, {"eval/mean/avg": 0.5, "eval_task_pass1": 0.25})
    values = {"loss": 1.0, "generated_samples": list(EXAMPLE)}
    assert tracker.steps == [(2, values), (4, values)]
    assert tracker.evaluations == [(step, {"mean/avg": 0.5, "eval_task_pass1": 0.25}) for step in range(1, 5)]
    log.close()
    assert tracker.is_closed


# Weights & Biases.


def test_a_resumed_run_continues_its_wandb_run(start, tmp_path):
    start()
    actor = tmp_path / "run" / "state" / "_actor"
    actor.mkdir(parents=True)
    (actor / "latest").write_text("global_step1")
    start(load_enable=True)
    wandb, _ = start(load_enable=True)
    (first, how), *others = wandb.runs
    assert first == (tmp_path / "run" / "wandb_run_id").read_text()
    assert how == "allow"
    assert others == [(first, "allow")] * 2


def test_other_runs_and_fresh_starts_have_wandb_runs_of_their_own(start):
    start()
    start(folder="other")
    wandb, _ = start(load_enable=True)  # killed before its first checkpoint: step 1 is made again
    assert len({run_id for run_id, _ in wandb.runs}) == 3


def test_an_id_that_the_user_gives_is_taken(start):
    wandb, _ = start(run_id="mine")
    assert wandb.runs == [("mine", "allow")]


def test_secrets_do_not_reach_wandb(start):
    wandb, _ = start()
    assert "k-0815" not in repr(wandb.settings)


def test_metrics_of_an_evaluation_have_one_prefix_in_wandb(start):
    wandb, args = start()
    log = TrainingLogs(args, 0)
    log.write_evaluation(4, METRICS)
    assert wandb.logged[-1].keys() == NAMES | {"eval/global_step"}
    log.write_step(5, {"loss": 1.0}, EXAMPLE)
    assert wandb.logged[-1] == {"train/loss": 1.0, "train/global_step": 5}
    log.close()
    assert wandb.finished == 1


METRICS = {"eval/aime24/avg@32": 0.25, "eval/mean/avg": 0.5, "eval_task_pass1": 0.75}
NAMES = {"eval/aime24/avg@32", "eval/mean/avg", "eval/eval_task_pass1"}


def test_metrics_of_an_evaluation_have_one_prefix_in_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = TrainingLogs(flags(tmp_path, tensorboard=True), 0)
    log.write_evaluation(4, METRICS)
    log.write_step(4, {"loss": 1.0}, EXAMPLE)
    log.close()
    events = EventAccumulator(str(tmp_path / "tensorboard" / "r"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == NAMES | {"train/loss"}
