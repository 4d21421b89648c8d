"""Every exhibit of the paper as commands, each of which would run; two run whole in tests/e2e."""

import functools
import json
import os
import shlex
import signal
import threading
from pathlib import Path

import pytest
from processes import wait_until
from texts import missing

from openrlhf_cov.cli import reproduce
from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.data.templates import FOR_PROGRAMS
from openrlhf_cov.errors import UsageError
from openrlhf_cov.evaluation.benchmarks import BENCHMARKS, GROUPS
from openrlhf_cov.experiments.reproduction import paper_commands
from openrlhf_cov.experiments.reproduction.exhibits import FIGURES, TABLES
from openrlhf_cov.experiments.reproduction.reproduction_plan import Command
from openrlhf_cov.utils.terminal import command_name

ALL = [*(("--figure", n) for n in FIGURES), *(("--table", n) for n in TABLES)]
TINY = [(kind, n) for kind, n in ALL if not (FIGURES if kind == "--figure" else TABLES)[n].not_tiny]
cpu_host.install()


def exhibit_of(kind, number):
    return (FIGURES if kind == "--figure" else TABLES)[number]


def words_of(printed: str) -> list[list[str]]:
    return [shlex.split(line) for line in printed.splitlines() if not line.startswith("#")]


def problem(n: int) -> dict[str, str]:
    return {"answer": str(n + 1), "source": "math"}


def program(n: int) -> dict[str, str]:
    return {"answer": json.dumps({"stdin": [[f"{n}\n", f"{n + 1}\n"]]}), "source": "code/made up"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Training sets and benchmarks, made up."""
    folder = tmp_path_factory.mktemp("data")
    for kind, number in ALL:
        for run in exhibit_of(kind, number).runs:
            if run.recipe:
                path = paper_commands.prepared(folder, run.recipe)
                path.mkdir(exist_ok=True)
                (path / "manifest.json").write_text('{"openrlhf_cov": "0"}')
                made = program if run.recipe.template in FOR_PROGRAMS else problem
                rows = [{"prompt": f"What is {n} + 1?", **made(n)} for n in range(600)]
                (path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "eurus-difficult.jsonl").write_text(json.dumps({"problem": "1 + 1?", "answer": "2"}) + "\n")
    (folder / "eval").mkdir()
    for name in {*GROUPS["paper"], *GROUPS["law"], "code"}:
        count = BENCHMARKS[name].rows if name in BENCHMARKS else 2
        made = program if name == "code" else problem
        rows = [{"id": str(n), "problem": f"{n} + 1?", **made(n)} for n in range(count)]
        (folder / "eval" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "number"), ALL)
def test_a_command_for_every_run_and_a_report_of_them(capsys, monkeypatch, tmp_path, kind, number):
    monkeypatch.chdir(tmp_path)  # relative folders are made absolute, as a job of Ray runs in another one
    assert reproduce.main([kind, str(number), "--output", ".", "--data_dir", "data"]) == 0
    lines = words_of(capsys.readouterr().out)
    trained = [words for words in lines if "openrlhf_cov.cli.train_ppo_ray" in words]
    names = [run.name for run in exhibit_of(kind, number).runs if run.recipe]
    assert all(words[:3] == ["ray", "job", "submit"] for words in trained)
    assert [words[words.index("--ckpt.output_dir") + 1] for words in trained] == [str(tmp_path / n) for n in names]
    report = [*command_name(), "report"]
    count = len(report)
    assert lines[-1][:count] == report
    reports = [words for words in lines if words[:count] == report]
    reported = [word for words in reports for word in words[count : words.index("--output")]]
    assert reported == [str(tmp_path / name) for name in names]


@pytest.mark.slow
def test_two_names_are_two_runs(capsys, tmp_path):
    """The last value of a flag counts; folders and what is logged there make no other run."""
    names = {}
    for kind, number in ALL:
        reproduce.main([kind, str(number), "--output", str(tmp_path)])
        for words in words_of(capsys.readouterr().out):
            if "openrlhf_cov.cli.train_ppo_ray" in words:
                flags, place = {}, None
                for word in words[words.index("--") + 1 :]:
                    place = word if word.startswith("--") else place
                    flags[place] = (*flags.get(place, ()), word) if word != place else ()
                name = flags.pop("--ckpt.output_dir")
                settings = frozenset(item for item in flags.items() if str(tmp_path) not in str(item))
                assert names.setdefault(settings, name) == name
    assert len(names) > 50


def plan_of(kind, number, *flags):
    return reproduce.plan_of(reproduce.build_parser().parse_args([kind, str(number), *map(str, flags)]))


@functools.cache  # the recipes are run to print their commands
def first_uses():
    """Return, for each exhibit, the places of its commands that no earlier exhibit has, as exhibits share runs."""
    found, seen = {}, set()
    for kind, number in ALL:
        commands = [tuple(command.words) for command in plan_of(kind, number).commands()]
        found[kind, number] = [place for place, words in enumerate(commands) if words not in seen]
        seen.update(commands)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "number"), ALL)
def test_every_command_would_run(tmp_path, data, kind, number):
    plan = plan_of(kind, number, "--data_dir", data, "--output", tmp_path / "out")
    commands = list(plan.commands())
    for place in first_uses()[kind, number]:
        assert reproduce.faults_of(commands[place], plan) == [], commands[place].words


@pytest.mark.parametrize(("kind", "number"), TINY)
def test_every_command_of_the_tiny_scale_would_run(capsys, tmp_path, kind, number):
    assert reproduce.main([kind, str(number), "--scale", "tiny", "--dry_run", "--output", str(tmp_path)]) == 0
    assert "would not" not in capsys.readouterr().out


def test_data_that_an_earlier_command_makes_may_be_missing(capsys, tmp_path):
    flags = ["--figure", "8", "--dry_run", "--data_dir", str(tmp_path), "--output", str(tmp_path)]
    assert reproduce.main(flags) == 2
    printed = capsys.readouterr()
    # no command makes this one
    (error,) = printed.err.splitlines()
    assert missing(error, "openrlhf-cov reproduce: error: ", f"{tmp_path}/eval/omni_math.jsonl") == []
    after = {"evaluate": [], "prepare": ["evaluate"], "qwen2.5_7b_on_policy": ["prepare", "evaluate"], "report": []}
    for line, (stage, stages_before) in zip(printed.out.splitlines()[1:], after.items(), strict=True):
        assert missing(line, f"{stage}: it would run", *stages_before) == []


def test_a_dry_run_names_what_would_not_run(capsys, tmp_path):
    folder = tmp_path / "dapo-math-17k-qwen-boxed"
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"question": "1 + 1?", "answer": "2"}\n')  # data that is there and wrong
    assert reproduce.main(["--figure", "8", "--dry_run", "--data_dir", str(tmp_path), "--output", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert "qwen2.5_7b_on_policy: it would not run" in printed.out
    assert "--data.input_key" in printed.err


@pytest.mark.slow
def test_a_dry_run_looks_at_data_and_folders_of_what_does_not_train(capsys, tmp_path):
    """Figure 13 reads a file that the reader brings; the report writes to a folder, and so does what is prepared."""
    (tmp_path / "figure13").touch()
    (tmp_path / "gsm8k-qwen-boxed").mkdir()
    (tmp_path / "gsm8k-qwen-boxed" / "notes").touch()
    reproduce.main(["--figure", "13", "--dry_run", "--data_dir", str(tmp_path), "--output", str(tmp_path)])
    faults = capsys.readouterr().err
    assert f"prepare: --dataset {tmp_path / 'eurus-difficult.jsonl'}: no such file" in faults
    assert "no *.jsonl files there" not in faults  # an earlier command writes them
    assert f"--output {tmp_path / 'gsm8k-qwen-boxed'} is not empty and holds no manifest.json" in faults
    assert f"report: --output {tmp_path / 'figure13'}: {tmp_path / 'figure13'} is a file; give a folder" in faults


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--figure 8", "is not empty and does not hold this run"),  # it holds another one
        ("--figure 6 --steps 129", "--steps 129 is more than the task"),  # 4,096 problems are 128 steps of 32
    ],
)
def test_a_dry_run_says_what_would_not_run_at_the_tiny_scale(run_command, tmp_path, flags, said):
    path = tmp_path / "200-steps" / "on_policy" / "lab.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"steps": 7}')
    words = (*flags.split(), "--scale", "tiny", "--dry_run", "--output", tmp_path)
    status, _, error = run_command("reproduce", *words)
    assert status == 2
    assert said in error


@pytest.mark.slow
@pytest.mark.parametrize("number", [4, 13, 1])
def test_files_that_no_command_makes_are_named(capsys, tmp_path, number):
    reproduce.main(["--figure", str(number), "--data_dir", str(tmp_path)])
    printed = capsys.readouterr().out
    brought = [Path(line.rpartition(" ")[2]) for line in printed.splitlines() if line.startswith("# yours to bring")]
    omni = "eval/omni_math.jsonl"
    expected = {4: ["eval/code.jsonl"], 13: ["eurus-difficult.jsonl", omni], 1: [omni]}
    assert brought == [tmp_path / name for name in expected[number]]


RUN = next(run for run in FIGURES[8].runs if run.recipe)
SUBMITTED = ["ray", "job", "submit", "--", "python", "-m", "openrlhf_cov.cli.train_ppo_ray"]


@pytest.mark.parametrize(
    ("files", "due"),
    [
        ((), SUBMITTED),
        (("metrics.jsonl", "state/_actor/latest"), [*SUBMITTED, "--ckpt.load_enable"]),
        (("config.json", "model.safetensors", "metrics.jsonl", "state/_actor/latest"), None),
        (("metrics.jsonl",), UsageError),  # a run of one step
        (("metrics.jsonl", "config.json"), UsageError),
    ],
)
def test_a_run_is_over_when_its_model_is_there_and_goes_on_from_its_checkpoint(tmp_path, files, due):
    for file in files:
        path = tmp_path / RUN.name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    plan = plan_of("--figure", 8, "--output", tmp_path)
    command = Command(words=SUBMITTED, run=RUN)
    if due is UsageError:
        with pytest.raises(UsageError, match="broke off and has no checkpoint to go on from; remove it"):
            plan.due(command)
    else:
        assert plan.due(command) == due


@pytest.mark.slow
def test_pictures_and_numbers_are_copied_with_the_name_of_the_exhibit(python, run_command, tmp_path):
    """Figure 8 draws two pictures; one of them was left out, as the report says."""
    python("exit 0")
    made = tmp_path / "out" / "3-steps" / "figure8"
    (made / "figures").mkdir(parents=True)
    (made / "figures" / "entropy_fall.svg").write_text("drawn")
    (made / "law.json").write_text("{}")
    flags = ["--figure", "8", "--scale", "tiny", "--steps", "3", "--run", "--output", tmp_path / "out"]
    assert run_command("reproduce", *flags, "--collect", tmp_path / "docs")[0] == 0
    copied = sorted(path.name for path in (tmp_path / "docs").iterdir())
    assert copied == ["figure8_entropy_fall.svg", "figure8_law.json"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "status", "said"),
    [("exit 3", 1, "status 3 of: "), ("exit 0", 2, "ray is neither beside ")],
)
def test_a_command_that_fails_or_is_missing_ends_the_reproduction(python, run_command, tmp_path, script, status, said):
    python(script)
    ended, _, error = run_command("reproduce", "--figure", 8, "--run", "--output", tmp_path, "--data_dir", tmp_path)
    assert ended == status
    assert said in error


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_command_is_stopped(python, run_command, tmp_path, number, status):
    started = tmp_path / "pid"
    # The child is known to its parent by the time that it writes its file.
    python(f"sleep 0.2\necho $$ > {started}\nexec sleep 60")

    def interrupt():
        wait_until(lambda: started.exists() and started.read_text().strip(), "the command runs")
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=interrupt)
    thread.start()
    flags = ("--figure", 8, "--run", "--output", tmp_path / "out", "--data_dir", tmp_path)
    assert run_command("reproduce", *flags)[0] == status
    thread.join()
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)
