"""Studies of the whole trainer; what they start is played here, and is real in tests/e2e/test_study_ray.py."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from played_trainer import ASKED, FLAGS, Trainer, ray_study, write_spec

from openrlhf_cov.cli import study
from openrlhf_cov.cluster import ray_here
from openrlhf_cov.cluster.ray_here import KEEP_ENGINES
from openrlhf_cov.errors import RunStopped, UsageError
from openrlhf_cov.experiments.study import ray_runs
from openrlhf_cov.experiments.study.run_plan import all_runs
from openrlhf_cov.experiments.study.run_results import read_result


@pytest.fixture
def spec_file(tmp_path):
    """Function (changes) -> a study of two runs in a file."""
    return partial(write_spec, tmp_path)


@pytest.fixture
def trainer(monkeypatch):
    """Plays the trainings and evaluations that a study starts."""
    return Trainer(monkeypatch)


@pytest.mark.slow
def test_a_run_is_trained_looked_at_and_read(tmp_path, spec_file, trainer):
    made = ray_study(spec_file(), tmp_path)
    first, second = all_runs(made.spec, {})
    assert made.score(first) is None
    made.train(first)
    assert made.score(first).last == 0.5
    result = read_result(made.output, first)
    assert result.greedy.tolist() == [True, False]
    assert result.right.tolist() == [4, 1]
    assert result.evaluations.steps.tolist() == [3]
    assert result.metrics.column("reward").tolist() == [0.1] * 3
    (call,) = trainer.calls
    assert call[0].startswith("train")
    assert call[call.index("--train.seed") + 1] == "0"
    assert call[call.index("--ckpt.output_dir") + 1] == str(made.output / first.folder)
    assert made.score(second) is None
    study.write(made, tmp_path / "all.jsonl.xz")
    assert "1 of 2 runs" in (made.output / "study.md").read_text()
    other = ray_study(spec_file(), tmp_path / "elsewhere")
    other.take(tmp_path / "all.jsonl.xz")
    assert other.score(first).last == 0.5


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_a_training_that_broke_off_goes_on_where_it_can(tmp_path, spec_file, trainer, has_checkpoint):
    made = ray_study(spec_file(), tmp_path)
    run = all_runs(made.spec, {})[0]
    folder = made.output / run.folder
    trainer.breaks_off = True
    with pytest.raises(RunStopped):
        made.train(run)
    assert made.score(run) is None
    left = folder / "left"
    left.write_text("")
    if has_checkpoint:
        (folder / "state" / "_actor").mkdir(parents=True)
        (folder / "state" / "_actor" / "latest").write_text("global_step1")
    trainer.breaks_off = False
    made.train(run)
    assert ("--ckpt.load_enable" in trainer.calls[-1]) == has_checkpoint
    assert left.exists() == has_checkpoint
    assert made.score(run).last == 0.5
    assert not (folder / "state").exists()  # what a finished run has no use for


def test_a_trained_model_is_not_trained_again(tmp_path, spec_file, trainer):
    made = ray_study(spec_file(), tmp_path)
    run = all_runs(made.spec, {})[0]
    made.train(run)
    (made.output / run.folder / "result.json").unlink()  # killed while it was looked at
    made.train(run)
    assert len(trainer.calls) == 1
    assert made.score(run).last == 0.5
    (made.output / run.folder / "result.json").unlink()
    (made.output / run.folder / "trained.json").unlink()  # killed while the model was written: it may be half there
    made.train(run)
    assert len(trainer.calls) == 2
    made.train(run)  # finished: nothing to do
    assert len(trainer.calls) == 2


def test_a_run_of_other_flags_is_left_alone(tmp_path, spec_file, trainer):
    made = ray_study(spec_file(), tmp_path)
    made.train(all_runs(made.spec, {})[0])
    other = ray_study(spec_file(flags=FLAGS + " --actor.adam.lr 1e-7"), tmp_path)
    with pytest.raises(UsageError, match="other settings"):
        other.scores()


def test_what_a_kill_left_of_a_folder_is_no_run_of_another_study(tmp_path, spec_file, trainer):
    made = ray_study(spec_file(), tmp_path)
    run = all_runs(made.spec, {})[0]
    folder = made.output / run.folder
    folder.mkdir(parents=True)
    (folder / ".asked.json.tmp").write_text("[")
    assert made.score(run) is None
    made.train(run)
    assert made.score(run).last == 0.5
    assert [path.name for path in folder.parent.iterdir()] == ["seed-0"]


def test_commands_that_tuning_has_named_are_said_too(tmp_path, spec_file, trainer, capsys):
    tuning = {"seeds": [10], "grid": {"--actor.adam.lr": ["1e-7", "2e-7"]}}
    made = ray_study(spec_file(tuning=tuning, validation="--benchmarks amc23 --limit 8"), tmp_path)
    made.dry_run(1)
    assert capsys.readouterr().out.count("--ckpt.output_dir") == 2
    for run in all_runs(made.spec, {}):
        made.train(run)
    made.dry_run(1)
    assert capsys.readouterr().out.count("--ckpt.output_dir") == 4  # and the selected configuration with two seeds


def test_a_look_by_evaluations_question_by_question(tmp_path, spec_file, monkeypatch, make_evaluation):
    # two benchmarks of three and two questions, four samples each; greedy answers are evaluations of their own
    made = ray_study(spec_file(validation="--benchmarks amc23 --limit 3"), tmp_path)
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text('{"step": 7, "time": 0.0}\n')
    asked = {}
    found = {
        "test-greedy": {"aime24": ["1", "2", "1"], "amc23": ["3", "-"]},
        "test": {"aime24": ["1 1 1 1", "2 - 2 1", "1 2 1 2"], "amc23": ["2 2 2 2", "- 1 1 1"]},
        "validation-greedy": {"math500": ["1", "1", "2", "1"]},
    }

    def evaluate(words, log):
        place = Path(words[words.index("--output") + 1])
        asked[place.name] = words[5:]
        make_evaluation(found[place.name]).write(place)

    monkeypatch.setattr(ray_runs, "call", evaluate)
    evaluations, test = ray_runs.seen_by_evaluate(made, folder)
    assert evaluations == {7: {"greedy": 0.75, "length": 25.0}}  # four samples of 10, 20, 30 and 40 tokens
    assert test["greedy"] == [1, 0, 1, 0, 0]
    assert test["right"] == [4, 1, 2, 0, 3]
    assert test["samples"] == 4
    assert test["kinds"] == ["aime24"] * 3 + ["amc23"] * 2
    assert asked["test"] == ASKED.split()
    assert asked["test-greedy"] == [*ASKED.split(), "--temperature", "0", "--samples", "1"]
    assert asked["validation-greedy"] == "--benchmarks amc23 --limit 3 --temperature 0 --samples 1".split()


def test_an_embedded_task_brings_policy_data_and_reward(tmp_path, spec_file):
    made = ray_study(spec_file(task="commands", flags="--vllm.num_engines 1", test=""), tmp_path)
    made.check(tmp_path / "short.yaml")
    words = made.words(all_runs(made.spec, {})[0])
    assert words[words.index("--actor.model_name_or_path") + 1] == str(
        tmp_path / "base" / "trainer-commands" / "model"
    )
    assert words[words.index("--reward.remote_url") + 1].endswith("experiments/tiny_task/tiny_reward_func.py")


STARTER = """
import sys
from pathlib import Path
from openrlhf_cov.experiments.study import ray_runs
sys.executable = sys.argv[2]
ray_runs.call(["evaluate"], Path(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_no_training_outlives_what_started_it(tmp_path, signum):
    log, trainer = tmp_path / "log.txt", tmp_path / "trainer"
    trainer.write_text("#!/bin/sh\necho $$\nexec sleep 60\n")
    trainer.chmod(0o755)
    with subprocess.Popen([sys.executable, "-c", STARTER, str(log), str(trainer)]) as starter:
        while not (log.exists() and log.read_text().strip()):
            assert starter.poll() is None
            time.sleep(0.05)
        training = int(log.read_text())
        os.kill(starter.pid, signum)
    deadline = time.monotonic() + 30
    while psutil.pid_exists(training) and psutil.Process(training).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("name", "trainings"),
    [("test.json", 1), ("validation.jsonl", 1), ("result.json", 1), ("metrics.jsonl", 2), ("trained.json", 1)],
)
@pytest.mark.parametrize("content", ["", '{"step": 1}\n'])
def test_what_is_damaged_is_looked_at_or_trained_again(tmp_path, spec_file, trainer, name, trainings, content):
    made = ray_study(spec_file(), tmp_path)
    run = all_runs(made.spec, {})[0]
    made.train(run)
    (made.output / run.folder / name).write_text(content)
    again = ray_study(spec_file(), tmp_path)
    assert (again.score(run) is None) == (name != "trained.json")
    again.train(run)
    assert again.score(run).last == 0.5
    assert len(trainer.calls) == trainings


def test_a_training_without_a_step_has_failed(tmp_path, spec_file, monkeypatch):
    made = ray_study(spec_file(), tmp_path)
    empty = lambda words, log, environment: (log.parent / "metrics.jsonl").write_text("")  # noqa: E731
    monkeypatch.setattr(ray_runs, "call", empty)
    with pytest.raises(RunStopped, match=r"metrics\.jsonl has no step"):
        made.train(all_runs(made.spec, {})[0])


@pytest.mark.parametrize("rays", [{"192.0.2.2:20001"}, {"127.0.0.1:20002"}], ids=["there", "ended"])
def test_a_training_starts_its_own_ray_where_the_shared_one_has_ended(tmp_path, spec_file, monkeypatch, trainer, rays):
    made = ray_study(spec_file(), tmp_path)
    made.environment = {"RAY_ADDRESS": "127.0.0.1:20001", KEEP_ENGINES: "1"}
    monkeypatch.setattr(ray_here, "rays_of_this_host", lambda: frozenset(rays))
    made.train(all_runs(made.spec, {})[0])
    assert trainer.environments == [made.environment if "192.0.2.2:20001" in rays else {}]


@pytest.mark.parametrize(
    ("address", "jobs", "of_host", "on_cpus", "most", "shared"),
    [
        ("local", 1, "127.0.0.1:6379", True, 99, True),
        ("", 1, None, True, 99, True),
        ("", 1, "127.0.0.1:6379", True, 99, False),  # the trainings join that one
        ("10.0.0.1:6379", 1, None, True, 99, False),
        ("local", 2, None, True, 99, False),
        ("local", 1, None, False, 99, False),
        ("local", 1, None, True, 2, False),  # a training refuses so many
    ],
)
def test_runs_one_after_another_share_a_ray_of_their_own(
    tmp_path, spec_file, monkeypatch, address, jobs, of_host, on_cpus, most, shared
):
    asked = []

    @contextmanager
    def local_ray(num_gpus, num_cpus, log):
        asked.append((num_gpus, num_cpus))
        yield SimpleNamespace(gcs="127.0.0.1:20001", token={"RAY_AUTH_TOKEN": "secret"})

    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr(ray_runs, "local_ray", local_ray)
    monkeypatch.setattr(ray_runs, "ray_of_this_host", lambda: of_host)
    monkeypatch.setattr(ray_runs.cpu_host, "is_cpu_host", lambda: on_cpus)
    monkeypatch.setattr(ray_runs, "most_processes", lambda: most)
    path = spec_file(arms=[{"name": "GRPO"}, {"name": "two", "flags": "--actor.num_gpus_per_node 2"}])
    one = ray_study(path, tmp_path)
    with one.running(jobs):
        expected = {"RAY_ADDRESS": "127.0.0.1:20001", KEEP_ENGINES: "1", "RAY_AUTH_TOKEN": "secret"}
        assert dict(one.environment) == (expected if shared else {})
    # an engine and, with the second method, two ranks of the policy; beside them the controllers of upstream
    assert asked == ([(one.slots, one.slots + 4)] if shared else [])
    assert one.slots >= 3
    assert not one.environment


def test_a_dry_run_tells_time_from_what_is_finished(tmp_path, spec_file, trainer, capsys):
    path, output = spec_file(seeds=[0, 1, 2]), tmp_path / "out"
    words = [str(path), "--output", str(output), "--dry_run"]
    assert study.main(words) == 0
    none, one = capsys.readouterr().out.splitlines()[-1], ray_study(path, tmp_path)
    one.train(all_runs(one.spec, {})[0])
    assert study.main(words) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert none != last
    assert "0.4 min" in last  # two runs are left, and the finished one took 3 + 4 + 5 seconds: 24 s
