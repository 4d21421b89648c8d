"""Studies that search the value of a setting up to which a method learns, with several base policies."""

import json
import shlex

import pytest
import yaml

from openrlhf_cov.cli import study
from openrlhf_cov.errors import UsageError
from openrlhf_cov.experiments.study.lab_runs import LabStudy
from openrlhf_cov.experiments.study.run_plan import all_runs
from openrlhf_cov.experiments.study.spec_file import read_spec

FLAGS = (
    "--steps 1 --updates 1 --rollout.batch_size 256 --rollout.n_samples_per_prompt 2 --eval.n_samples_per_prompt 1 "
    "--test_samples 1 --stop_early"
)


@pytest.fixture
def spec_file(tmp_path):
    """Function (changes) -> a bisection of three learning rates with two seeds and two base policies, in a file."""

    def write(**changes):
        content = {
            "title": "t",
            "task": "two_peaks",
            "flags": FLAGS,
            "seeds": [0, 1],
            "base_policies": 2,
            "learned": 0.5,
            "sweep": {"grid": {"--actor.adam.lr": [1e-3, 1e-2, 1e-1]}, "bisect": True},
            "arms": [{"name": "GRPO"}],
        }
        path = tmp_path / "sweep.yaml"
        path.write_text(yaml.safe_dump(content | changes))
        return path

    return write


def test_a_seed_has_the_base_policy_of_its_remainder(tmp_path, spec_file):
    made = LabStudy(read_spec(spec_file(seeds=[0, 1, 5])), tmp_path / "out", tmp_path / "base")
    flags = {run.seed: made.flags(run) for run in all_runs(made.spec, {})}
    assert {seed: words[-2:] for seed, words in flags.items()} == {
        0: ["--base_seed", "0"],
        1: ["--base_seed", "1"],
        5: ["--base_seed", "1"],
    }
    assert all("--actor.adam.lr 0.01" in shlex.join(words) for words in flags.values())
    one = LabStudy(read_spec(spec_file(base_policies=1)), tmp_path / "out", tmp_path / "base")
    assert "--base_seed" not in one.flags(all_runs(one.spec, {})[0])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"flags": f"{FLAGS} --base_seed 1"}, "flags: --base_seed is what the study sets itself"),
        (
            {"sweep": {"grid": {"--actor.adam.lr": [0.1, 1, 2]}, "bisect": True}},
            "--actor.adam.lr 2.0: must be above 0",
        ),
        ({"sweep": {"grid": {"--train.seed": [1, 2, 3]}}}, "sweep: --train.seed is what the study sets itself"),
    ],
)
def test_a_sweep_that_cannot_run_is_refused_first(tmp_path, spec_file, changes, said):
    path = spec_file(**changes)
    with pytest.raises(UsageError, match=said):
        LabStudy(read_spec(path), tmp_path / "out", tmp_path / "base").check(path)


def test_the_trainer_has_neither_sweeps_nor_several_base_policies(tmp_path, spec_file, capsys):
    assert study.main([str(spec_file()), "--engine", "ray", "--output", str(tmp_path / "out")]) == 2
    assert "has base_policies or sweep, which only the lab supports" in capsys.readouterr().err
    spec = spec_file(base_policies=1, sweep=None)
    assert study.main([str(spec), "--engine", "ray", "--output", str(tmp_path / "out")]) == 2
    assert "--task two_peaks exists in the lab only" in capsys.readouterr().err


@pytest.mark.e2e
def test_a_bisection_runs_and_resumes(tmp_path, spec_file, capsys):
    words = [str(spec_file()), "--output", str(tmp_path / "out"), "--base_policies", str(tmp_path / "base")]
    assert study.main([*words, "--jobs", "1"]) == 0
    # After one step nothing is learned: each seed tries the middle value, and then the first one.
    folders = sorted(path.parent.relative_to(tmp_path / "out" / "report" / "GRPO") for path in out(tmp_path))
    assert [str(folder) for folder in folders] == [
        *(f"actor.adam.lr_0.001/seed-{seed}" for seed in (0, 1)),
        *(f"actor.adam.lr_0.01/seed-{seed}" for seed in (0, 1)),
    ]
    assert "below 0.001" in (tmp_path / "out" / "study.md").read_text()
    assert (tmp_path / "base" / "two_peaks-1").is_dir()
    record = json.loads((tmp_path / "out" / "report" / "GRPO" / folders[1] / "lab.json").read_text())
    assert record["base_seed"] == record["seed"] == 1
    # One run is lost: the same command makes it again, and only that one.
    lost = tmp_path / "out" / "report" / "GRPO" / folders[0] / "result.json"
    before = {path: path.stat().st_mtime_ns for path in out(tmp_path) if path != lost}
    lost.unlink()
    capsys.readouterr()
    assert study.main([*words, "--jobs", "1"]) == 0
    assert "3 of 4 runs are finished" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in out(tmp_path) if path != lost} == before
    # Published runs count on another machine.
    assert study.main([*words, "--page", "--pack", str(tmp_path / "all.jsonl.xz")]) == 0
    elsewhere = [words[0], "--output", str(tmp_path / "new"), *words[3:], "--unpack", str(tmp_path / "all.jsonl.xz")]
    assert study.main([*elsewhere, "--page"]) == 0
    assert "4 of 4 runs" in capsys.readouterr().out


def out(tmp_path):
    """The files that finished runs leave last."""
    return list((tmp_path / "out").rglob("result.json"))
