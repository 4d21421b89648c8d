"""The command of studies: what it refuses, how it goes on after an end of any kind, and what it packs."""

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
from played_trainer import ASKED, FLAGS, Trainer, ray_study, write_spec
from texts import missing

from openrlhf_cov.cli import lab, study
from openrlhf_cov.errors import RunStopped
from openrlhf_cov.experiments.lab import request
from openrlhf_cov.experiments.study.campaign import HOPELESS
from openrlhf_cov.experiments.study.lab_runs import LabStudy
from openrlhf_cov.experiments.study.ray_runs import RayStudy
from openrlhf_cov.experiments.study.run_plan import Score, all_runs, number_of_runs
from openrlhf_cov.experiments.study.run_results import unpack
from openrlhf_cov.experiments.study.spec_file import read_spec
from openrlhf_cov.utils.terminal import command_name

STUDIES = Path(__file__).resolve().parents[2] / "studies"
SHORT = (
    "--steps 2 --updates 2 --rollout.batch_size 4 --rollout.n_samples_per_prompt 2 --eval.n_samples_per_prompt 2 "
    "--test_samples 2"
)
# Specs of the lab, of the trainer, and of a search for the learning rate up to which a method learns.
METHODS = [{"name": "GRPO"}, {"name": "KL-Cov", "flags": "--cov_type kl_cov"}]
LAB = {"title": "t", "task": "commands", "flags": SHORT, "seeds": [0, 1], "arms": METHODS}
RAY = {"task": "math", "engine": "ray", "flags": FLAGS, "test": ASKED, "arms": METHODS[:1]}
RATES = {"grid": {"--actor.adam.lr": [1e-3, 1e-2, 1e-1]}, "bisect": True}
LEARNS = (
    "--steps 1 --updates 1 --rollout.batch_size 256 --rollout.n_samples_per_prompt 2 --eval.n_samples_per_prompt 1 "
    "--test_samples 1 --stop_early"
)
SWEEP = {"task": "two_peaks", "flags": LEARNS, "base_policies": 2, "learned": 0.5, "sweep": RATES, "arms": METHODS[:1]}


@pytest.fixture
def spec_file(tmp_path):
    """Function (changes) -> a study of four runs of the lab, with these changes, in a file."""

    def write(**changes):
        path = tmp_path / "short.yaml"
        path.write_text(yaml.safe_dump(LAB | changes))
        return path

    return write


def of_method(flags="", **more):
    return {"arms": [{"name": "x", "flags": flags, **more}]}


# The study with its changes, words behind the command, and what the one line contains; {} is the test's folder.
LONG = "n" * 300
TWO_RATES = {"--actor.adam.lr": ["1e-7", "2e-7"]}
REFUSED = [
    (LAB, {"flags": "--steps 0"}, "", "method GRPO: --steps 0: must be at least 1"),
    (LAB, {"flags": "--stepps 3"}, "", "method GRPO: --stepps 3: unknown flag; did you mean --steps?"),
    (LAB, {"flags": "--base_seed=--"}, "", "method GRPO: --base_seed: give a value"),
    (LAB, {"task": "sums"}, "", "method GRPO: --task sums: must be one of commands, "),
    (LAB, of_method("--cov_type kl_cov --kl_cov_ratio 0.5"), "", "method x: --kl_cov_ratio 0.5"),
    (LAB, {"colour": 1}, "", "colour: no such field; choose from title"),
    (LAB, {"test": "--samples 4"}, "", "test has no effect"),
    (LAB, {}, "--jobs 0", "--jobs 0: must be at least 1"),
    # Finalists run again with seeds of their own.
    (LAB, {"tuning": {"seeds": [9], "finalists": 2}}, "", "tuning.finalists: 2 has no effect"),
    # What the study sets itself, in any spelling.
    (LAB, {"flags": "--outp elsewhere"}, "", "flags: --outp is what the study sets itself"),
    (LAB, {"flags": "--train.seed=3"}, "", "flags: --train.seed is what the study sets itself"),
    (LAB, {"flags": "--h"}, "", "flags: --h is what the study sets itself"),
    (LAB, {"flags": "-hx"}, "", "flags: -hx is what the study sets itself"),
    (LAB, of_method(grid={"--task": ["code"]}), "", "method x: --task is what the study sets itself"),
    (LAB, of_method("--base_seed 3"), "", "method x: --base_seed is the same for all methods"),
    (LAB, of_method(grid={"--steps": [3]}), "", "method x: --steps is the same for all methods"),
    (SWEEP, of_method("--stop_early"), "", "method x: --stop_early is the same for all methods"),
    # Means over the steps of runs of different lengths would say nothing.
    (LAB, {"flags": f"{SHORT} --stop"}, "", "flags: --stop would give the runs different lengths"),
    (SWEEP, {"flags": f"{LEARNS} --base_seed 1"}, "", "flags: --base_seed is what the study sets itself"),
    (SWEEP, {"sweep": {"grid": {"--train.seed": [1, 2, 3]}}}, "", "sweep: --train.seed is what the study sets itself"),
    (SWEEP, {"sweep": {"grid": {"--actor.adam.lr": [0.1, 1, 2]}}}, "", "--actor.adam.lr 2.0: must be above 0"),
    # The trainer has less, and a spec of the trainer does not run in the lab.
    (SWEEP, {}, "--engine ray", "has base_policies or sweep, which only the lab supports"),
    (LAB, {"task": "two_peaks"}, "--engine ray", "--task two_peaks exists in the lab only"),
    (RAY, {}, "--engine lab", "--engine lab: {}/short.yaml has flags of the trainer"),
    (RAY, of_method("--cov_type kl_cov --kl_cov_ratio 2"), "", "method x: --kl_cov_ratio 2.0: must be a fract"),
    (RAY, of_method("--train.batch_size 100"), "", "method x: --train.batch_size 100 is no multiple"),
    (RAY, {"flags": f"{FLAGS} -h"}, "", "flags: -h is what the study sets itself"),
    (RAY, {"needs": "--entropy_target"}, "", "needs is about the lab"),
    (RAY, {"task": "commands"}, "", "test has no effect: task commands has splits of its own"),
    (RAY, {"test": "--benchmarks aime24 --limit 3"}, "", "test has flags of openrlhf-cov evaluate, with --samples"),
    (RAY, {"test": "--samples 4"}, "", "test: --benchmarks is missing"),
    (RAY, {"test": "--benchmarks nonsense --samples 4"}, "", "test: --benchmarks nonsense"),
    (RAY, {"test": f"{ASKED} --mod=m"}, "", "test: --mod is the study's own"),
    (RAY, {"test": f"{ASKED} -h"}, "", "test: -h is the study's own"),
    (RAY, {"test": f"{ASKED} --temperature 0"}, "", "test: aime24: --samples 4 with --temperature 0"),
    (RAY, {"test": f"{ASKED} --limit 0"}, "", "test: --limit 0: must be at least 1"),
    (RAY, {"test": f"{ASKED} --reward_timeout nan"}, "", "test: --reward_timeout"),
    (RAY, {"validation": "--benchmarks amc23 --samples=0"}, "", "validation: amc23: --samples 0: must be at least 1"),
    (RAY, {"validation": "--bench_marks x"}, "", "validation: --bench_marks x: unknown flag; did you mean --bench"),
    (RAY, {"tuning": {"seeds": [9], "grid": TWO_RATES}}, "", "validation must have the flags"),
    # Places.
    (RAY, {}, "--output {}/short.yaml", "--output {}/short.yaml: {}/short.yaml is a file"),
    (RAY, {}, "--output {}/short.yaml/x", "--output {}/short.yaml/x: {}/short.yaml is a file"),
    (RAY, {}, f"--output {{}}/{LONG}", f"--output {{}}/{LONG}"),
    (RAY, {}, f"--base_policies {{}}/{LONG}", f"--base_policies {{}}/{LONG}"),
    (RAY, {}, "--pack {}", "--pack {} is a folder"),
    (RAY, {}, "--pack {}/short.yaml", "{}/short.yaml"),
    (RAY, {}, "--pack {}/short.yaml/x", "{}/short.yaml is a file"),
    (RAY, {}, f"--pack {{}}/{LONG}", f"{{}}/{LONG}"),
    (RAY, {}, "--unpack {}", "{}"),
    (RAY, {}, "--unpack {}/short.yaml", "{}/short.yaml"),
    (RAY, {}, "--unpack {}/fifo", "{}/fifo"),
]


@pytest.mark.parametrize(("spec", "changes", "words", "said"), REFUSED)
def test_a_refused_request_is_one_line_and_writes_nothing(
    tmp_path, spec_file, run_command, spec, changes, words, said
):
    os.mkfifo(tmp_path / "fifo")
    path = spec_file(**(spec | changes))
    before = path.read_bytes()
    more = [word.replace("{}", str(tmp_path)) for word in shlex.split(words)]
    status, out, error = run_command("study", path, "--output", tmp_path / "out", "--dry_run", *more)
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert error.startswith("openrlhf-cov study: error: ")
    assert said.replace("{}", str(tmp_path)) in error
    assert {each.name for each in tmp_path.iterdir()} == {"short.yaml", "fifo"}
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("study.html", "mine", "study.html is there and not of this command"),
        ("study.md", "# Notes", "study.md is there and not of this command"),
        ("study.html", "<title>Study: A &amp; B</title>", "study.html is of the study 'A & B'; choose another folder"),
    ],
)
def test_a_page_of_something_else_is_kept(tmp_path, spec_file, run_command, name, content, said):
    output = tmp_path / "out"
    output.mkdir()
    (output / name).write_text(content)
    status, out, error = run_command("study", spec_file(**LAB), "--output", output, "--page")
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert said in error
    assert {path.name: path.read_text() for path in output.iterdir()} == {name: content}


@pytest.mark.slow
def test_a_page_needs_a_finished_run(tmp_path, spec_file, run_command):
    spec = spec_file(**(LAB | {"title": 'A < B & "C"'}))
    output = tmp_path / "out"
    status, out, error = run_command("study", spec, "--output", output, "--page")
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert missing(error, "--page", str(output), "no finished run") == []
    assert not output.exists()
    # Nor is it refused as the page of another study.
    study.write(LabStudy(read_spec(spec), output, tmp_path / "base"))
    assert "no finished run" in run_command("study", spec, "--output", output, "--page")[2]


@pytest.mark.parametrize("kind", ["folder", "fifo", "missing", "huge"])
def test_a_spec_that_is_no_file_is_refused(tmp_path, run_command, kind):
    path = tmp_path / "x.yaml"
    if kind == "folder":
        path.mkdir()
    if kind == "fifo":
        os.mkfifo(path)
    if kind == "huge":
        with path.open("wb") as file:
            file.truncate(2**40)
    status, _, error = run_command("study", path, "--dry_run")
    assert (status, error.count("\n")) == (2, 1)
    assert str(path) in error


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
    assert f"{len(finished)} of 4 runs are finished" in capsys.readouterr().out
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
    # on another machine: what was published counts, so only the additional method is left
    more = spec_file(flags=f"{SHORT} --steps 30", arms=[*METHODS, {"name": "CISPO", "flags": "--method cispo"}])
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


def numbers_of_seed_1(output):
    """Return the metrics of the runs with seed 1 by method, without those of the clock."""
    found = {}
    for file in output.rglob("seed-1/metrics.jsonl"):
        lines = map(json.loads, file.read_text().splitlines())
        found[file.parts[-4]] = [
            {name: value for name, value in line.items() if name != "time" and "timing/" not in name} for line in lines
        ]
    return found


def break_run(made, run):
    """Put a folder where the run wants a file."""
    folder = made.output / run.folder
    (folder / "metrics.jsonl").mkdir(parents=True)
    (folder / request.RUN_FILE).write_text(json.dumps(made.request(run).record))


@pytest.mark.e2e
@pytest.mark.long  # eight runs; other tests below have workers that fail, but do not compare the runs that follow
def test_a_run_that_fails_holds_no_other_up_and_changes_none(tmp_path, base_policies, spec_file, capfd):
    """A worker that has made other runs, and failed at one, makes the run of a fresh worker."""
    words = ["--base_policies", str(base_policies), "--jobs", "1"]
    fresh = tmp_path / "fresh"
    assert study.main([str(spec_file(seeds=[1])), "--output", str(fresh), *words]) == 0
    assert "Traceback" not in capfd.readouterr().err  # workers end in silence

    path = spec_file(arms=[METHODS[0], {"name": "fails"}, METHODS[1]])
    used = tmp_path / "used"
    made = LabStudy(read_spec(path), used, base_policies)
    break_run(made, next(run for run in all_runs(made.spec, {}) if (run.method, run.seed) == ("fails", 0)))
    assert study.main([str(path), "--output", str(used), *words]) == 1
    said = capfd.readouterr()
    assert "1 of the runs failed" in said.err
    assert said.err.splitlines()[-1].endswith("metrics.jsonl'")  # with its own reason, not another run's
    finished = {file.parts[-4:-1:2] for file in used.rglob("result.json")}
    methods = ("GRPO", "KL-Cov", "fails")
    assert finished == {(method, f"seed-{seed}") for method in methods for seed in (0, 1)} - {("fails", "seed-0")}
    assert "5 of 6 runs are finished" in (used / "study.md").read_text()
    expected = numbers_of_seed_1(fresh)
    assert expected.keys() == {"GRPO", "KL-Cov"}
    found = numbers_of_seed_1(used)
    assert {method: found[method] for method in expected} == expected


@pytest.mark.slow
def test_a_study_without_hope_ends(tmp_path, base_policies, spec_file, capsys, monkeypatch):
    forked = multiprocessing.get_context("fork")  # starts without importing
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: forked)
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
        with (self.output / f"{run.method}-{run.seed}").open("a") as tries:
            tries.write("x")
        if (run.method, run.seed) == ("KL-Cov", 1):
            os.kill(os.getpid(), signal.SIGKILL)

    def score(self, run):
        return Score(0.5, 0.5) if (self.output / f"{run.method}-{run.seed}").exists() else None


class KilledAtOnce(Killed):
    """What makes the base policy is killed."""

    def prepare(self, run):
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_base_policy_whose_process_is_killed_is_named(tmp_path, spec_file, monkeypatch):
    forked = multiprocessing.get_context("fork")
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: forked)
    with pytest.raises(RunStopped, match="what makes the base policy was killed"):
        study.Campaign(KilledAtOnce(read_spec(spec_file()), tmp_path / "out", tmp_path), 2).run()


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_killed_process_is_one_run_that_failed(tmp_path, spec_file, capsys, monkeypatch, jobs):
    forked = multiprocessing.get_context("fork")  # knows the class above
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: forked)
    made = Killed(read_spec(spec_file(seeds=[0, 1, 2])), tmp_path / "out", tmp_path)
    reason = study.Campaign(made, jobs).run()
    tries = {path.name: len(path.read_text()) for path in (tmp_path / "out").iterdir()}
    assert set(tries) == {f"{method}-{seed}" for method in ("GRPO", "KL-Cov") for seed in range(3)}
    # alone it is the cause; beside another one it may be, and is tried alone
    assert 1 <= tries["KL-Cov-1"] <= jobs
    assert reason.startswith("1 of the runs failed")
    failures = [line for line in capsys.readouterr().err.splitlines() if line.startswith("failed: ")]
    assert len(failures) == 1
    assert "KL-Cov/point/seed-1" in failures[0]


@pytest.fixture
def fuller(tmp_path, monkeypatch, capsys):
    """A packed file of both runs of a study of the trainer, and the study with one of them in another folder."""
    Trainer(monkeypatch)
    made = ray_study(write_spec(tmp_path), tmp_path)
    for run in all_runs(made.spec, {}):
        made.train(run)
    study.write(made, tmp_path / "all.jsonl.xz")
    poorer = RayStudy(made.spec, tmp_path / "new", tmp_path / "base")
    poorer.train(all_runs(made.spec, {})[1])
    return tmp_path / "all.jsonl.xz", poorer


@pytest.mark.slow
def test_a_fuller_packed_file_is_not_replaced(tmp_path, fuller, run_command):
    path, poorer = fuller
    content = path.read_bytes()
    words = ["study", write_spec(tmp_path), "--output", poorer.output, "--page", "--pack", path]
    status, _, error = run_command(*words)
    assert (status, error.count("\n")) == (1, 1)
    assert str(path) in error
    assert path.read_bytes() == content
    assert run_command(*words, "--unpack", path)[0] == 0
    assert len(list(unpack(path))) == 2


@pytest.mark.slow
def test_what_another_study_packed_is_not_replaced(tmp_path, fuller, run_command):
    path, _ = fuller
    content = path.read_bytes()
    other = write_spec(tmp_path, flags=FLAGS + " --actor.adam.lr 1e-7")
    status, _, error = run_command("study", other, "--output", tmp_path / "other", "--page", "--pack", path)
    assert status == 2
    assert str(path) in error
    assert not (tmp_path / "other").exists()
    assert path.read_bytes() == content


def test_a_seed_has_the_base_policy_of_its_remainder(tmp_path, spec_file):
    made = LabStudy(read_spec(spec_file(**SWEEP, seeds=[0, 1, 5])), tmp_path / "out", tmp_path / "base")
    flags = {run.seed: made.flags(run) for run in all_runs(made.spec, {})}
    assert {seed: words[-2:] for seed, words in flags.items()} == {
        0: ["--base_seed", "0"],
        1: ["--base_seed", "1"],
        5: ["--base_seed", "1"],
    }
    assert all("--actor.adam.lr 0.01" in shlex.join(words) for words in flags.values())
    one = LabStudy(read_spec(spec_file(**SWEEP | {"base_policies": 1})), tmp_path / "out", tmp_path / "base")
    assert "--base_seed" not in one.flags(all_runs(one.spec, {})[0])


@pytest.mark.e2e
@pytest.mark.long  # test_sweeps.py has the choice of the values; the test that cuts a study off has the resume
def test_a_bisection_runs_and_resumes(tmp_path, spec_file, capsys):
    words = [str(spec_file(**SWEEP)), "--output", str(tmp_path / "out"), "--base_policies", str(tmp_path / "base")]
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
