"""The demo without its training: settings, what it shows, how it ends."""

import json
import os
import shlex
import subprocess
import sys
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from processes import wait_until

from openrlhf_cov.cli import demo
from openrlhf_cov.cli.evaluate import build_parser, check_inputs
from openrlhf_cov.errors import RunStopped, UsageError
from openrlhf_cov.experiments.tiny_task import demo_training
from openrlhf_cov.experiments.tiny_task.problems import Addition
from openrlhf_cov.experiments.tiny_task.task_files import TASK_FILES, TaskSettings, write_task


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
def python(monkeypatch, tmp_path):
    """Function (lines of a shell): they take the place of this Python, which starts the making of a task."""

    def install(script):
        program = tmp_path / "python"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))

    return install


@pytest.mark.parametrize(("status", "error"), [(2, UsageError), (1, RunStopped), (130, RunStopped)])
def test_a_task_that_cannot_be_made(python, tmp_path, status, error):
    python(f"exit {status}")
    with pytest.raises(error, match=f"could not be made in {tmp_path / 'task'}; name another folder with --folder"):
        demo_training.make_task(tmp_path / "task", "addition")


def test_the_making_of_a_task_ends_with_what_it_is_for(python, tmp_path):
    made = tmp_path / "pid"
    python(f"echo $$ > {made}\nexec sleep 1000")
    with demo_training.making_task(tmp_path / "task", "addition"):
        wait_until(lambda: made.exists() and made.read_text().strip(), "the maker runs")
    assert not Path("/proc", made.read_text().strip()).exists()


@pytest.mark.slow
def test_scores_are_those_that_the_task_reports(tmp_path):
    from openrlhf_cov.experiments.tiny_task.base_policy import BasePolicyConfig

    policy = BasePolicyConfig(layers=1, heads=2, hidden_size=16, intermediate_size=32, steps=2, rows_per_step=4)
    task = write_task(tmp_path / "task", TaskSettings(seed=7, train_rows=40, test_rows=12), policy)
    scores = demo_training.score(tmp_path / "task" / "model", tmp_path / "task")
    assert scores == {name: task[name] for name in scores}
    assert set(scores) == {"accuracy_greedy", "accuracy_sampled", "entropy", "mean_length"}
    assert demo_training.score_before(tmp_path / "task") == scores
    unscored = {name: value for name, value in task.items() if name not in scores}
    (tmp_path / "task" / "task.json").write_text(json.dumps(unscored))
    assert demo_training.score_before(tmp_path / "task") == scores


# A training that writes a step and waits until it was seen.
TRAINING = """
import json, os, sys, time
from pathlib import Path
folder, line = Path(sys.argv[1]), json.loads(sys.argv[2])
assert os.environ["RAY_ADDRESS"] == "127.0.0.1:1"
end = time.monotonic() + 60
for step in (3, 4):
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line | {"step": step}) + chr(10))
    while not (folder / "seen").exists():
        time.sleep(0.1)
        assert time.monotonic() < end
"""


@pytest.mark.slow
def test_a_step_reaches_a_pipe_while_the_training_goes_on(tmp_path):
    words = [sys.executable, "-c", TRAINING, str(tmp_path), json.dumps(LINE)]
    program = "from pathlib import Path; from openrlhf_cov.experiments.tiny_task import demo_training; "
    program += f"demo_training.train({words}, {{'RAY_ADDRESS': '127.0.0.1:1'}}, Path({str(tmp_path)!r}), 2)"
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables) as process:
        assert process.stdout.readline().split() == ["step", "accuracy", "entropy", "selected", "tokens/s", "seconds"]
        assert process.stdout.readline().split()[0] == "3"
        (tmp_path / "seen").touch()
        assert [line.split()[0] for line in process.stdout] == ["4"]  # each step once, and no progress bar
        assert process.wait(30) == 0


@pytest.mark.parametrize(
    ("log", "phase"),
    [
        ("", "starting the training process"),
        ("Connected to Ray\n", "starting the actors"),
        ("Connected to Ray\n(RolloutActor pid=3)\n", "starting the vLLM engine"),
        ("Connected to Ray\n(RolloutActor pid=3)\n(PolicyRole pid=4)\n", "loading the policy"),
        ("(PolicyRole pid=4)\nInitializing a V1 LLM engine\n", "starting the vLLM engine"),
    ],
)
def test_the_log_of_a_training_says_what_it_starts(log, phase):
    assert demo_training.starting_phase(log) == phase


def test_a_training_that_takes_long_to_start_says_what_it_does(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(demo_training, "STILL_STARTING", 0.2)
    starts_slowly = f"""
import json, time
from pathlib import Path
print("Connected to Ray", flush=True)
time.sleep(2)
Path({str(tmp_path)!r}, "metrics.jsonl").write_text(json.dumps({LINE!r}) + chr(10))
"""
    demo_training.train([sys.executable, "-c", starts_slowly], {}, tmp_path, 1)
    shown = capsys.readouterr()
    assert "demo: starting the actors (" in shown.err
    assert "it/s" not in shown.err  # no bar


LINE = {
    "step": 3,
    "rollout/reward_mean": 0.25,
    "rollout/response_length_mean": 10.0,
    "rollout/num_samples": 256.0,
    "entropy/mean": 0.5,
    "cov/selected_frac": 0.02,
    "timing/step_total": 4.0,
    "timing/generation": 1.0,
}


def test_a_step_by_hand():
    # 10 tokens x 256 samples in 4 seconds
    assert demo_training.step_line(LINE).split() == ["3", "0.250", "0.500", "0.0200", "640", "4.0"]


@pytest.mark.parametrize("name", sorted(LINE.keys() - {"step"}))
def test_a_null_stops_neither_line_nor_table(tmp_path, name):
    shown = demo_training.step_line(LINE | {name: None}).split()
    assert len(shown) == 6
    assert ("nan" in shown) == (name != "timing/generation")
    (tmp_path / "metrics.jsonl").write_text(json.dumps(LINE | {name: None}) + "\n")
    scores = {"accuracy_greedy": 0.5, "accuracy_sampled": 0.25}
    assert ("nan" in demo.table("kl_cov", scores, scores, tmp_path, tmp_path / "r.html", 9.0)) == (
        name != "cov/selected_frac"
    )


def test_the_table_by_hand(tmp_path):
    last = LINE | {"step": 4, "entropy/mean": 0.125, "rollout/reward_mean": 0.75, "timing/step_total": 6.0}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(LINE) + "\n" + json.dumps(last) + "\n")
    before = {"accuracy_greedy": 0.5, "accuracy_sampled": 0.25}
    after = {"accuracy_greedy": 1.0, "accuracy_sampled": 0.75}
    table = demo.table("clip_cov", before, after, tmp_path, tmp_path / "report.html", 99.6)
    text = " ".join(table.split())
    assert "2 steps of 32 prompts x 8 samples" in text
    assert "greedy 50.0% 100.0% held-out accuracy, temperature 1 25.0% 75.0%" in text
    assert "nats per token 0.500 0.125 training accuracy 25.0% 75.0%" in text
    # 2 x 2560 tokens, generated in 2 x 1 s, in steps of 4 + 6 s
    assert "2,560 generating, 512 over the whole step wall time 100 s, 10 s of it in steps" in text
    assert f"report {tmp_path / 'report.html'}" in text


def put_run(folder, entropy, accuracy):
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        {"step": step, "entropy/mean": h, "rollout/reward_mean": r, "reward": r}
        for step, (h, r) in enumerate(zip(entropy, accuracy, strict=True), start=1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_table_of_all_methods_by_hand(tmp_path):
    put_run(tmp_path / "none", [0.8, 9.0, 0.5, 0.4, 0.3, 0.2, 0.1], [0.25, 9.0, 0.5, 0.5, 0.5, 0.5, 0.5])
    put_run(tmp_path / "kl_cov", [0.8, 0.4], [0.25, 0.75])
    before = {"accuracy_greedy": 0.5, "accuracy_sampled": 0.25}
    after = {
        "none": {"accuracy_greedy": 0.75, "accuracy_sampled": 0.625},
        "kl_cov": {"accuracy_greedy": 1.0, "accuracy_sampled": 0.5},
    }
    text = demo.table_of_all(before, after, tmp_path, tmp_path / "report.html", 61.4)
    words = " ".join(text.split())
    assert "before none kl_cov held-out accuracy, greedy 50.0% 75.0% 100.0%" in words
    assert "temperature 1 25.0% 62.5% 50.0%" in words
    # the last five steps of the first run: (0.5 + 0.4 + 0.3 + 0.2 + 0.1) / 5; both of the second: (0.8 + 0.4) / 2
    assert "nats per token 0.800 0.300 0.600 training accuracy 25.0% 50.0% 50.0%" in words


def test_the_command_trains_on_the_prompts_of_its_steps(tmp_path):
    places = {"steps": 3, "task": tmp_path / "task", "output": tmp_path / "run"}
    command = demo_training.training_command("kl_cov", **places, address="http://127.0.0.1:1")
    flags = dict(pairwise(command))
    assert flags["--data.max_samples"] == "96"
    assert flags["--address"] == "http://127.0.0.1:1"
    assert "kl_cov" in command
    assert flags["--ckpt.output_dir"] == str(tmp_path / "run")
    assert flags["--reward.remote_url"].endswith("openrlhf_cov/experiments/tiny_task/tiny_reward_func.py")
    # A training that joins its Ray itself is the same command without the job.
    joined = demo_training.training_command("kl_cov", **places, address=None)
    assert joined == command[command.index("--") + 1 :]


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

    monkeypatch.setattr(demo, "local_ray", local_ray)
    monkeypatch.setattr(demo, "train_method", train_method)
    for name in ("score", "score_before"):
        monkeypatch.setattr(demo, name, lambda *_: {"accuracy_greedy": 0.5, "accuracy_sampled": 0.5})
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
    assert all(method in page.read_text() for method in demo.METHOD_FLAGS)
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
