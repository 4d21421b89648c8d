import json
import multiprocessing
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from openrlhf_cov.cli import lab, study
from openrlhf_cov.errors import RunStopped
from openrlhf_cov.experiments.lab import request
from openrlhf_cov.experiments.study.campaign import HOPELESS
from openrlhf_cov.experiments.study.lab_runs import LabStudy
from openrlhf_cov.experiments.study.run_plan import Score, all_runs, number_of_runs
from openrlhf_cov.experiments.study.run_results import unpack
from openrlhf_cov.experiments.study.spec_file import read_spec
from openrlhf_cov.utils.terminal import command_name

STUDIES = Path(__file__).resolve().parents[2] / "studies"
SHORT = (
    "--steps 2 --updates 2 --rollout.batch_size 4 --rollout.n_samples_per_prompt 2 --eval.n_samples_per_prompt 2 "
    "--test_samples 2"
)


@pytest.fixture
def base_policies(tmp_path):
    """A folder with a policy that nothing has trained, kept as the one that runs begin with."""
    from dataclasses import asdict, replace

    from openrlhf_cov.cluster import cpu_host

    cpu_host.install()
    import torch

    from openrlhf_cov.experiments.lab.tasks import COMMANDS_POLICY
    from openrlhf_cov.experiments.tiny_task import commands
    from openrlhf_cov.experiments.tiny_task.base_policy import build_model
    from openrlhf_cov.experiments.tiny_task.tokenizer import build_tokenizer

    folder = tmp_path / "base" / "commands-0"
    tokenizer = build_tokenizer(COMMANDS_POLICY.max_length, commands.CHARACTERS)
    torch.manual_seed(0)
    for part in (build_model(replace(COMMANDS_POLICY, layers=1, hidden_size=16), tokenizer), tokenizer):
        part.save_pretrained(folder)
    (folder / "lab.json").write_text(json.dumps({"task": "commands", "seed": 0, **asdict(COMMANDS_POLICY)}))
    return folder.parent


@pytest.fixture
def spec_file(tmp_path):
    """Function (changes) -> a study of four runs in a file."""

    def write(**changes):
        arms = [{"name": "GRPO"}, {"name": "KL-Cov", "flags": "--cov_type kl_cov"}]
        path = tmp_path / "short.yaml"
        path.write_text(
            yaml.safe_dump({"title": "t", "task": "commands", "flags": SHORT, "seeds": [0, 1], "arms": arms} | changes)
        )
        return path

    return write


@pytest.mark.e2e
def test_a_study_is_cut_off_and_goes_on(tmp_path, base_policies, spec_file, capsys):
    spec, output = spec_file(flags=f"{SHORT} --steps 30"), tmp_path / "out"
    words = [str(spec), "--output", str(output), "--base_policies", str(base_policies), "--jobs", "1"]
    command = [sys.executable, "-m", "openrlhf_cov.cli.study", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True) as first:
        lines = iter(first.stdout.readline, b"")
        assert any(line.startswith(b"1/4 ") for line in lines)
        time.sleep(0.5)  # the second run is under way
        os.kill(first.pid, signal.SIGKILL)
    finished = list(output.rglob("result.json"))
    assert 1 <= len(finished) < 4
    before = {path: path.stat().st_mtime_ns for path in finished}
    assert study.main(words) == 0
    said = capsys.readouterr().out
    assert f"{len(finished)} of 4 runs are finished" in said
    assert {path: path.stat().st_mtime_ns for path in finished} == before
    for folder in (path.parent for path in output.rglob("result.json")):
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == list(range(1, 31))
    assert len(list(output.rglob("result.json"))) == 4
    # again: nothing to do but the page
    assert study.main([*words, "--pack", str(tmp_path / "all.jsonl.xz")]) == 0
    assert "4 of 4 runs are finished" in capsys.readouterr().out
    assert len(list(unpack(tmp_path / "all.jsonl.xz"))) == 4
    assert {"study.html", "study.md", "figures"} <= {path.name for path in output.iterdir()}
    assert "4 of 4 runs are finished" in (output / "study.md").read_text()
    # on another machine: what was published counts, an arm more is all that is left
    arms = [{"name": name, "flags": flags} for name, flags in (("GRPO", ""), ("KL-Cov", "--cov_type kl_cov"))]
    more = spec_file(flags=f"{SHORT} --steps 30", arms=[*arms, {"name": "CISPO", "flags": "--method cispo"}])
    elsewhere = [str(more), "--output", str(tmp_path / "new"), *words[3:], "--unpack", str(tmp_path / "all.jsonl.xz")]
    assert study.main(elsewhere) == 0
    assert "4 of 6 runs are finished" in capsys.readouterr().out
    assert {path.parts[-4] for path in (tmp_path / "new").rglob("result.json")} == {"CISPO"}
    assert "6 of 6 runs are finished" in (tmp_path / "new" / "study.md").read_text()
    assert study.main([str(spec_file(task="addition")), *elsewhere[1:]]) == 2
    # other settings in the same place
    spec_file(flags=f"{SHORT} --steps 31")
    assert study.main(words) == 2
    assert "holds a run of other settings" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "flags", "said"),
    [
        ({"flags": "--steps 0"}, [], "arm GRPO: --steps 0: must be at least 1"),
        ({"flags": "--stepps 3"}, [], "arm GRPO: --stepps 3: unknown flag; did you mean --steps?"),
        ({"task": "sums"}, [], "arm GRPO: --task sums: must be one of commands, "),
        ({"arms": [{"name": "x", "flags": "--cov_type kl_cov --kl_cov_ratio 0.5"}]}, [], "arm x: --kl_cov_ratio 0.5"),
        ({"colour": 1}, [], "colour: no such field; choose from title"),
        ({}, ["--jobs", "0"], "--jobs 0: must be at least 1"),
        ({"flags": "--outp elsewhere"}, [], "flags: --outp is what the study sets itself"),
        ({"flags": "--train.seed=3"}, [], "flags: --train.seed is what the study sets itself"),
        ({"arms": [{"name": "x", "grid": {"--task": ["code"]}}]}, [], "arm x: --task is what the study sets itself"),
        *(
            ({"arms": [{"name": "x", "flags": f"{flag} 3"}]}, [], f"arm x: {flag} is the same for all arms")
            for flag in ("--steps", "--base_seed")
        ),
        ({"arms": [{"name": "x", "grid": {"--steps": [3]}}]}, [], "arm x: --steps is the same for all arms"),
        *(({"flags": f}, [], f"flags: {f} is what the study sets itself") for f in ("--h", "-hx")),
        ({"flags": "--base_seed=--"}, [], "arm GRPO: --base_seed: give a value"),
        ({"test": "--samples 4"}, [], "test has no effect"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(tmp_path, capsys, spec_file, changes, flags, said):
    assert study.main([str(spec_file(**changes)), "--output", str(tmp_path / "out"), *flags]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(STUDIES.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_specs_of_the_repository_can_run(path, tmp_path, capsys):
    spec = read_spec(path)
    lacking = [flag for flag in spec.needs if flag not in lab.build_parser().format_help().split()]
    if lacking:
        assert study.main([str(path), "--dry_run"]) == 2
        assert f"needs {lacking[0]}, which the lab" in capsys.readouterr().err
    elif spec.engine == "lab":
        LabStudy(spec, tmp_path, tmp_path).check(path)
        assert len(all_runs(spec, {})) <= number_of_runs(spec)
    else:
        assert study.main([str(path), "--output", str(tmp_path / "out"), "--dry_run"]) == 0
        commands = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("# ")]
        assert len(commands) == len(set(commands)) == len(all_runs(spec, {}))
        assert all(line.startswith(f"{shlex.join(command_name())} train --") for line in commands)


@pytest.mark.slow
def test_a_used_worker_makes_the_run_of_a_fresh_one(tmp_path, base_policies, spec_file, capfd):
    numbers = {}
    for name, seeds in (("fresh", [1]), ("used", [0, 1])):
        path, output = spec_file(seeds=seeds), tmp_path / name
        words = [str(path), "--output", str(output), "--base_policies", str(base_policies), "--jobs", "1"]
        assert study.main(words) == 0
        for file in output.rglob("seed-1/metrics.jsonl"):
            lines = map(json.loads, file.read_text().splitlines())
            kept = [{k: v for k, v in line.items() if k != "time" and "timing/" not in k} for line in lines]
            numbers.setdefault(file.parts[-4], []).append(kept)
    assert "Traceback" not in capfd.readouterr().err  # workers end in silence
    assert set(numbers) == {"GRPO", "KL-Cov"}
    for fresh, used in numbers.values():
        assert fresh == used


def break_run(made, run):
    """Put a folder where the run wants a file."""
    folder = made.output / run.folder
    (folder / "metrics.jsonl").mkdir(parents=True)
    (folder / request.RUN_FILE).write_text(json.dumps(made.request(run).record))


@pytest.mark.slow
def test_a_run_that_fails_holds_no_other_up(tmp_path, base_policies, spec_file, capsys):
    arms = [{"name": "GRPO"}, {"name": "fails"}, {"name": "KL-Cov", "flags": "--cov_type kl_cov"}]
    path, output = spec_file(arms=arms, seeds=[0]), tmp_path / "out"
    made = LabStudy(read_spec(path), output, base_policies)
    break_run(made, next(run for run in all_runs(made.spec, {}) if run.arm == "fails"))
    words = [str(path), "--output", str(output), "--base_policies", str(base_policies), "--jobs", "1"]
    assert study.main(words) == 1
    said = capsys.readouterr()
    assert "1 of the runs failed" in said.err
    assert said.err.splitlines()[-1].endswith("metrics.jsonl'")  # with its own reason, not another run's
    assert {file.parts[-4] for file in output.rglob("result.json")} == {"GRPO", "KL-Cov"}
    assert "2 of 3 runs are finished" in (output / "study.md").read_text()


@pytest.mark.slow
def test_a_study_without_hope_ends(tmp_path, base_policies, spec_file, capsys):
    path = spec_file(seeds=list(range(9)))
    made = LabStudy(read_spec(path), tmp_path / "out", base_policies)
    for run in all_runs(made.spec, {}):
        break_run(made, run)
    words = [str(path), "--output", str(made.output), "--base_policies", str(base_policies), "--jobs", "1"]
    assert study.main(words) == 1
    assert f"{HOPELESS} of the runs failed" in capsys.readouterr().err


class Killed(LabStudy):
    """The run of KL-Cov with seed 1 is killed as the system does for lack of memory; the others work."""

    def prepare(self, run):
        self.output.mkdir(parents=True, exist_ok=True)

    def train(self, run):
        with (self.output / f"{run.arm}-{run.seed}").open("a") as tries:
            tries.write("x")
        if (run.arm, run.seed) == ("KL-Cov", 1):
            os.kill(os.getpid(), signal.SIGKILL)

    def score(self, run):
        return Score(0.5, 0.5) if (self.output / f"{run.arm}-{run.seed}").exists() else None


class KilledAtOnce(Killed):
    """What makes the base policy is killed."""

    def prepare(self, run):
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_base_policy_whose_process_is_killed_is_named(tmp_path, spec_file, monkeypatch):
    forked = multiprocessing.get_context("fork")
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: forked)
    with pytest.raises(RunStopped, match="what makes the base policy was killed"):
        study.Campaign(KilledAtOnce(read_spec(spec_file()), tmp_path / "out", tmp_path), 2).run()


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_killed_process_is_one_run_that_failed(tmp_path, spec_file, capsys, monkeypatch, jobs):
    forked = multiprocessing.get_context("fork")  # knows the class above
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: forked)
    made = Killed(read_spec(spec_file(seeds=[0, 1, 2])), tmp_path / "out", tmp_path)
    reason = study.Campaign(made, jobs).run()
    tries = {path.name: len(path.read_text()) for path in (tmp_path / "out").iterdir()}
    assert set(tries) == {f"{arm}-{seed}" for arm in ("GRPO", "KL-Cov") for seed in range(3)}
    # alone it is the cause; beside another one it may be, and is tried alone
    assert 1 <= tries["KL-Cov-1"] <= jobs
    assert reason.startswith("1 of the runs failed")
    failures = [line for line in capsys.readouterr().err.splitlines() if line.startswith("failed: ")]
    assert len(failures) == 1
    assert "KL-Cov/point/seed-1" in failures[0]
