"""``make demo`` with few steps: a task, a Ray of its own, a training, a table; and nothing left running."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ending import ended
from forkserver import forks
from processes import HANGS, wait_until

from openrlhf_cov.experiments.tiny_task.base_policy import BasePolicyConfig
from openrlhf_cov.experiments.tiny_task.task_files import TaskSettings, write_task

pytestmark = pytest.mark.e2e


# Environment variable that all processes of one demo inherit, those of its Ray too.
MARK = "COV_TEST_RUN"


def processes_of(mark: str) -> list[int]:
    """Live processes of the demo with that mark."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # of another user, or gone
            continue
        if f"{MARK}={mark}".encode() in variables:
            found.append(int(folder.name))
    return found


@pytest.fixture(scope="module")
def demo_task(tmp_path_factory) -> Path:
    """The embedded task with few rows and a policy that has learned little."""
    folder = tmp_path_factory.mktemp("demo") / "task"
    # of the sizes of a head that vLLM has for the CPU 32 is the smallest
    policy = BasePolicyConfig(layers=1, heads=2, hidden_size=64, intermediate_size=128, steps=60, rows_per_step=48)
    write_task(folder, TaskSettings(train_rows=96, test_rows=64), policy)
    return folder


@pytest.mark.long
def test_the_task_that_the_command_makes_is_for_a_mediocre_policy(tmp_path):
    command = [sys.executable, "-m", "openrlhf_cov.cli.make_tiny_task", "--output", str(tmp_path / "task")]
    ended([*command, "--train_rows", "96", "--test_rows", "64"], "the making of the task")
    made = json.loads((tmp_path / "task" / "task.json").read_text())
    assert 0.2 <= made["accuracy_sampled"] <= 0.6
    assert made["entropy"] > 0.2


# The demo, whose Ray and whose training are started by another program than Python.
STARTED_BY = "import sys; from openrlhf_cov.cli.demo import main; sys.executable = sys.argv.pop(1); sys.exit(main())"


def demo(task_folder: Path, output: Path, python: str | None = None) -> dict:
    """Arguments of ``subprocess`` for a demo of two steps that is marked with its output folder.

    With ``python`` the processes of its Ray are forked (forkserver.py): they have no mark, and are among ``forks()``.
    """
    command = [sys.executable, *(["-c", STARTED_BY, python] if python else ["-m", "openrlhf_cov.cli.demo"])]
    command += ["--steps", "2"]
    environment = os.environ | {MARK: str(output)}
    return dict(args=[*command, "--folder", str(task_folder), "--output", str(output)], env=environment, text=True)


# The only training of ``make test`` whose processes import all: those of the others are forked.
def test_demo_prints_a_table(demo_task, tmp_path):
    output = tmp_path / "run"
    words = demo(demo_task, output)
    done = ended(words["args"], "the demo", env=words["env"])
    assert "held-out accuracy, greedy" in done.stdout
    assert "entropy, nats per token" in done.stdout
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line["cov/selected_count"] > 0 for line in lines)  # of KL-Cov, which it shows
    assert (output / "model.safetensors").is_file()
    wait_until(lambda: processes_of(str(output)) == [], "the demo leaves no process")


def test_demo_stops_its_ray_when_it_is_interrupted(demo_task, tmp_path, forking_python):
    output = tmp_path / "run"
    process = subprocess.Popen(**demo(demo_task, output, forking_python), stderr=subprocess.PIPE)

    def has_actors() -> bool:
        """Return True once there is an actor beside the supervisor of the job, the driver and the controller."""
        return len(forks()) >= 4

    wait_until(has_actors, "the demo starts its actors", still_possible=lambda: process.poll() is None)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=HANGS)
    assert process.returncode == 130
    assert "interrupted" in stderr.splitlines()[-1]
    wait_until(lambda: processes_of(str(output)) + forks() == [], "the demo leaves no process")


@pytest.mark.long  # the demo ends its Ray in one way, after an interruption and after a failure
def test_demo_stops_its_ray_when_the_training_fails(demo_task, tmp_path, forking_python):
    task, output = tmp_path / "task", tmp_path / "run"
    shutil.copytree(demo_task, task)
    (task / "train.jsonl").write_text((task / "train.jsonl").read_text().replace('"label"', '"another key"'))
    done = subprocess.run(**demo(task, output, forking_python), capture_output=True, timeout=HANGS)
    assert done.returncode == 1, done.stderr
    assert "training failed" in done.stderr.splitlines()[-1]
    assert "--data.label_key" in done.stderr  # the end of the job's output says why
    wait_until(lambda: processes_of(str(output)) + forks() == [], "the demo leaves no process")


def test_demo_refuses_a_folder_that_is_in_use(tmp_path):
    (tmp_path / "something").touch()
    done = subprocess.run(**demo(tmp_path / "task", tmp_path), capture_output=True)
    assert done.returncode != 0
    assert "is not empty" in done.stderr
    assert os.listdir(tmp_path) == ["something"]
