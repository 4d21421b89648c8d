"""The demo without its training: settings, what it shows, how it ends."""

import json
import shlex
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest
from demo_runs import put_run

from openrlhf_cov.cli.evaluate import build_parser, check_inputs
from openrlhf_cov.experiments.tiny_task import demo_run
from openrlhf_cov.experiments.tiny_task.demo_training import METHOD_FLAGS
from openrlhf_cov.experiments.tiny_task.problems import Addition
from openrlhf_cov.experiments.tiny_task.task_files import TASK_FILES


def put_task(folder: Path, train_rows: int) -> Path:
    """A folder that looks like a finished task."""
    for name in TASK_FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (folder / "train.jsonl").write_text('{"input": "1+1=", "label": "2"}\n' * train_rows)
    (folder / "task.json").write_text(json.dumps({"task": "tiny_addition", "settings": {"seed": 0}}))
    return folder


def test_programs_without_a_sandbox_are_one_line_with_what_to_install(run_command, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    folders = ("--output", tmp_path / "run", "--folder", tmp_path / "task")
    status, _, line = run_command("demo", "--task", "code", *folders)
    assert (status, line.count("\n")) == (2, 1)
    assert "apt install bubblewrap" in line
    assert not (tmp_path / "run").exists()


@pytest.fixture
def trained(monkeypatch):
    """A demo without Ray and engines: trainings write a file; the list of (method, Ray, KL coefficient)."""
    trainings = []

    def train_method(method, steps, task, output, ray, kl_coef):
        trainings.append((method, ray, kl_coef))
        put_run(output, [0.5 - 0.01 * step for step in range(steps)], [0.1] * steps)

    @contextmanager
    def local_ray(**settings):
        yield f"Ray of {settings['log']}"

    monkeypatch.setattr(demo_run, "local_ray", local_ray)
    monkeypatch.setattr(demo_run, "train_method", train_method)
    for name in ("score", "score_before"):
        monkeypatch.setattr(demo_run, name, lambda *_: {"accuracy_greedy": 0.5, "accuracy_sampled": 0.5})
    return trainings


@pytest.mark.slow
def test_all_methods_are_trained_alike_and_the_printed_commands_work(monkeypatch, trained, tmp_path, run_command):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # the command is not found by its name
    put_task(tmp_path / "task", train_rows=192)
    words = ("--method", "all", "--steps", "6", "--folder", "task", "--output", "my runs/demo")
    status, printed, _ = run_command("demo", *words)
    assert status == 0
    output = tmp_path / "my runs" / "demo"
    assert trained == [(method, f"Ray of {output / 'ray.log'}", 0.0) for method in ("none", "clip_cov", "kl_cov")]
    page = output / "report" / "report.html"
    assert f"report     {page}" in printed
    assert all(method in page.read_text() for method in METHOD_FLAGS)
    said = printed.partition("\nNext:\n")[2]
    watch, report, evaluate = [line for line in said.splitlines() if line and not line.startswith("#")]
    for command, outcome in ((watch, "6"), (report, "law")):
        done = subprocess.run(command, shell=True, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert outcome in done.stdout
    assert (output / "law" / "report.html").is_file()
    Path("task", "benchmark.jsonl").write_text(json.dumps(Addition(10, 11).to_benchmark_row()) + "\n")
    # Without vLLM: the flags are those of the command, and the benchmark is read.
    program, name, *flags = shlex.split(evaluate)
    assert (Path(program).name, name) == ("openrlhf-cov", "evaluate")
    check_inputs(build_parser().parse_args(flags))
