"""The parts of the demo's training that need no Ray: settings, progress, and how it ends."""

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from demo_runs import LINE
from processes import wait_until

from openrlhf_cov.errors import RunStopped, UsageError
from openrlhf_cov.experiments.tiny_task import demo_training
from openrlhf_cov.experiments.tiny_task.task_files import TaskSettings, write_task


@pytest.mark.slow
@pytest.mark.parametrize(("status", "error"), [(2, UsageError), (1, RunStopped), (130, RunStopped)])
def test_a_task_that_cannot_be_made(python, tmp_path, status, error):
    python(f"exit {status}")
    with pytest.raises(error, match=f"could not be made in {tmp_path / 'task'}; name another folder with --folder"):
        demo_training.make_task(tmp_path / "task", "addition")


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_a_step_by_hand():
    # 10 tokens x 256 samples in 4 seconds
    assert demo_training.step_line(LINE).split() == ["3", "0.250", "0.500", "0.0200", "640", "4.0"]


@pytest.mark.parametrize("name", sorted(LINE.keys() - {"step"}))
def test_a_null_does_not_stop_the_line_of_a_step(name):
    shown = demo_training.step_line(LINE | {name: None}).split()
    assert len(shown) == 6
    assert ("nan" in shown) == (name != "timing/generation")


def test_the_command_trains_on_the_prompts_of_its_steps(tmp_path):
    places = {"steps": 3, "task": tmp_path / "a task", "output": tmp_path / "run"}
    command = demo_training.training_command("kl_cov", **places, address="http://127.0.0.1:1")
    flags = dict(pairwise(command))
    assert flags["--data.max_samples"] == "96"
    assert flags["--address"] == "http://127.0.0.1:1"
    assert "kl_cov" in command
    assert flags["--ckpt.output_dir"] == str(tmp_path / "run")
    assert flags["--actor.model_name_or_path"] == str(tmp_path / "a task" / "model")
    assert flags["--reward.remote_url"].endswith("openrlhf_cov/experiments/tiny_task/tiny_reward_func.py")
    # A training that joins its Ray itself is the same command without the job.
    joined = demo_training.training_command("kl_cov", **places, address=None)
    assert joined == command[command.index("--") + 1 :]
