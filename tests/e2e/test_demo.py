"""``make demo`` with few steps: a task, a Ray of its own, ``ray job submit``, a table; and nothing left running."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e


def ray_processes(folder: Path) -> list[str]:
    """Command lines of live processes that mention a run's folder or belong to its Ray."""
    listing = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listing.splitlines() if "/tmp/cov-" in line or str(folder) in line]


@pytest.fixture
def demo_task(tmp_path) -> Path:
    """The embedded task as the command makes it, with few rows."""
    folder = tmp_path / "task"
    command = [sys.executable, "-m", "openrlhf_cov.cli.make_tiny_task", "--output", str(folder)]
    subprocess.run([*command, "--train_rows", "96", "--test_rows", "64"], check=True)
    made = json.loads((folder / "task.json").read_text())
    assert 0.2 <= made["accuracy_sampled"] <= 0.6  # mediocre on purpose
    assert made["entropy"] > 0.2
    return folder


def demo(task_folder: Path, output: Path) -> list[str]:
    command = [sys.executable, "-m", "openrlhf_cov.cli.demo", "--steps", "2"]
    return [*command, "--task", str(task_folder), "--output", str(output)]


def test_demo_prints_a_table_and_stops_when_it_is_interrupted(demo_task, tmp_path):
    output = tmp_path / "run"
    done = subprocess.run(demo(demo_task, output), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "held-out accuracy, greedy" in done.stdout
    assert "entropy, nats per token" in done.stdout
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert (output / "model.safetensors").is_file()
    assert ray_processes(output) == []

    interrupted = tmp_path / "interrupted"
    process = subprocess.Popen(demo(demo_task, interrupted), stderr=subprocess.PIPE, text=True)
    wait_for((interrupted / "train.log").exists)  # the job is being submitted
    time.sleep(10)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in stderr.splitlines()[-1]
    assert ray_processes(interrupted) == []


def wait_for(condition, timeout: float = 120) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.5)


def test_demo_refuses_a_folder_that_is_in_use(tmp_path):
    (tmp_path / "something").touch()
    done = subprocess.run(demo(tmp_path / "task", tmp_path), capture_output=True, text=True)
    assert done.returncode != 0
    assert "is not empty" in done.stderr
    assert os.listdir(tmp_path) == ["something"]
