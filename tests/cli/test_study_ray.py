"""Studies of the whole trainer; what they start is played here, and is real in tests/e2e/test_study_ray.py."""

import json

import pytest
import yaml

from openrlhf_cov.cli import study, study_ray
from openrlhf_cov.cli.study_ray import RayStudy
from openrlhf_cov.errors import RunStopped, UsageError
from openrlhf_cov.study.plan import all_runs
from openrlhf_cov.study.results import read_result
from openrlhf_cov.study.spec import read_spec

FLAGS = "--actor.model_name_or_path m --data.prompt_dataset d --reward.remote_url r --vllm.num_engines 1"
TEST = {"kinds": ["easy", "hard"], "samples": 4, "greedy": [1, 0], "right": [4, 1]}


@pytest.fixture
def spec_file(tmp_path):
    """Function (changes) -> a study of two runs in a file."""

    def write(**changes):
        path = tmp_path / "short.yaml"
        content = {"title": "t", "task": "math", "engine": "ray", "flags": FLAGS, "test": "--samples 4"}
        path.write_text(yaml.safe_dump(content | {"seeds": [0, 1], "arms": [{"name": "GRPO"}]} | changes))
        return path

    return write


class Trainer:
    """Plays the commands that a study starts: a training that may break off after its first step."""

    def __init__(self, monkeypatch) -> None:
        self.calls: list[list[str]] = []
        self.breaks_off = False
        monkeypatch.setattr(study_ray, "call", self)
        monkeypatch.setattr(study_ray, "seen_by_evaluate", lambda *_: ({3: {"greedy": 0.5}}, TEST))

    def __call__(self, words, log):
        self.calls.append(list(words))
        folder = log.parent
        (folder / "metrics.jsonl").write_text("".join(
            json.dumps({"step": step, "time": 0.0, "reward": 0.1, "timing/step_total": 2.0 + step}) + "\n"
            for step in ((1,) if self.breaks_off else (1, 2, 3))
        ))  # fmt: skip
        if self.breaks_off:
            raise RunStopped("broken off")
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(b"")


def ray_study(path, tmp_path):
    return RayStudy(read_spec(path), tmp_path / "out", tmp_path / "base")


def test_a_run_is_trained_looked_at_and_read(tmp_path, spec_file, monkeypatch):
    trainer, made = Trainer(monkeypatch), ray_study(spec_file(), tmp_path)
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
    assert call[0] == "train_ppo_ray"
    assert call[call.index("--train.seed") + 1] == "0"
    assert call[call.index("--ckpt.output_dir") + 1] == str(made.output / first.folder)
    assert made.score(second) is None
    study.write(made, tmp_path / "all.jsonl.xz")
    assert "1 of 2 runs" in (made.output / "study.md").read_text()
    other = ray_study(spec_file(), tmp_path / "elsewhere")
    other.take(tmp_path / "all.jsonl.xz")
    assert other.score(first).last == 0.5


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_a_training_that_broke_off_goes_on_where_it_can(tmp_path, spec_file, monkeypatch, has_checkpoint):
    trainer, made = Trainer(monkeypatch), ray_study(spec_file(), tmp_path)
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


def test_a_trained_model_is_not_trained_again(tmp_path, spec_file, monkeypatch):
    trainer, made = Trainer(monkeypatch), ray_study(spec_file(), tmp_path)
    run = all_runs(made.spec, {})[0]
    made.train(run)
    (made.output / run.folder / "result.json").unlink()  # killed while it was looked at
    made.train(run)
    assert len(trainer.calls) == 1
    assert made.score(run).last == 0.5


def test_a_run_of_other_flags_is_left_alone(tmp_path, spec_file, monkeypatch):
    Trainer(monkeypatch)
    made = ray_study(spec_file(), tmp_path)
    made.train(all_runs(made.spec, {})[0])
    other = ray_study(spec_file(flags=FLAGS + " --actor.adam.lr 1e-7"), tmp_path)
    with pytest.raises(UsageError, match="other settings"):
        other.scores()


def test_commands_that_tuning_has_named_are_said_too(tmp_path, spec_file, monkeypatch, capsys):
    Trainer(monkeypatch)
    tuning = {"seeds": [10], "grid": {"--actor.adam.lr": ["1e-7", "2e-7"]}}
    made = ray_study(spec_file(tuning=tuning, validation="--limit 8"), tmp_path)
    made.say_commands()
    assert capsys.readouterr().out.count("python -m") == 2
    for run in all_runs(made.spec, {}):
        made.train(run)
    made.say_commands()
    assert capsys.readouterr().out.count("python -m") == 4  # and the point with two seeds


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"arms": [{"name": "x", "flags": "--cov_type kl_cov --kl_cov_ratio 2"}]}, "arm x: --kl_cov_ratio is a fract"),
        ({"test": "--limit 3"}, "test has flags of openrlhf-cov evaluate, with --samples"),
        ({"tuning": {"seeds": [9], "grid": {"--actor.adam.lr": ["1e-7", "2e-7"]}}}, "validation has the flags"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(tmp_path, capsys, spec_file, changes, said):
    assert study.main([str(spec_file(**changes)), "--output", str(tmp_path / "out"), "--dry_run"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_what_a_command_said_is_in_its_log(tmp_path):
    log = tmp_path / "log.txt"
    with pytest.raises(RunStopped, match=r"evaluate ended with status 2: .*no_such_model"):
        study_ray.call(
            ["evaluate", "--model", "no_such_model", "--benchmarks", "x.jsonl", "--output", str(tmp_path)], log
        )
    assert "no_such_model" in log.read_text()


def test_an_embedded_task_brings_policy_data_and_reward(tmp_path, spec_file):
    made = ray_study(spec_file(task="commands", flags="--vllm.num_engines 1", test=""), tmp_path)
    made.check(tmp_path / "short.yaml")
    words = made.words(all_runs(made.spec, {})[0])
    assert words[words.index("--actor.model_name_or_path") + 1] == str(
        tmp_path / "base" / "trainer-commands" / "model"
    )
    assert words[words.index("--reward.remote_url") + 1].endswith("tiny_task/reward_func.py")
