"""Damaged files, and names that others chose, in every command that takes any: one line, and no control characters."""

import gzip
import json
import os
import unicodedata

import pytest

from openrlhf_cov.cli import compare, evaluate, grade, main, prepare_data, report, watch
from openrlhf_cov.utils.metrics_log import MetricsLog

DAMAGED = {
    "empty": b"",
    "gzip": gzip.compress(b'{"step": 1}\n' * 50),
    "binary": bytes(range(128, 256)) * 20,
    "zeros": b"\0" * 3000,
    "lists": b"[1, 2]\n[3]\n",
    "one long line": b"a" * 300_000,
    "cut": b'{"step": 1, "rew',
    "keys that are no text": b'{"\\ud800": "\\ud800"}\n',
}


@pytest.fixture
def commands(tmp_path, make_evaluation):
    """{name: (main, words, the damaged file)}"""
    run, other = (make_evaluation({"math": ["1 2", "1 1"]}).write(tmp_path / name) for name in ("one", "two"))
    file, log = tmp_path / "rows.jsonl", tmp_path / "run" / "metrics.jsonl"
    log.parent.mkdir()
    out = tmp_path / "out"
    return {
        "grade": (grade.main, [file], file),
        "prepare": (prepare_data.main, ["--dataset", file, "--output", out], file),
        "report": (report.main, [log.parent, "--export", "-"], log),
        "watch": (watch.main, [log.parent, "--once"], log),
        "compare": (compare.main, [run, other], other / "run.json"),
        "regrade": (evaluate.main, ["--regrade", "--output", other], other / "problems.jsonl"),
        "write_data": (evaluate.main, ["--write_data", out, "--benchmarks", file], file),
    }


NAMES = ("grade", "prepare", "report", "watch", "compare", "regrade", "write_data")


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_file_is_one_line(commands, capsys, name, content):
    main, words, file = commands[name]
    file.write_bytes(content)
    status = main([str(word) for word in words])
    _, error = capsys.readouterr()
    assert "Traceback" not in error
    if name == "watch":  # waits for a first step, and shows what is odd
        assert status == 0
        return
    assert status == 2
    last = error.replace("\r", "\n").splitlines()[-1]
    assert str(file.parent) in last or file.name in last
    assert ": error: " in last
    assert file.read_bytes() == content


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_in_place_of_a_file_is_one_line(commands, capsys, name):
    main, words, file = commands[name]
    if file.exists():
        file.unlink()
    file.mkdir()
    assert main([str(word) for word in words]) == 2
    assert str(file.parent) in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("name", ["report", "watch"])
def test_a_log_that_is_a_pipe_is_not_waited_for(commands, capsys, name):
    main, words, file = commands[name]
    os.mkfifo(file)
    assert main([str(word) for word in words]) == 2
    assert f"{file} cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    "row", [{"response": r"\boxed{\ud800}"}, {"answer": "\ud800"}, {"source": "\ud800"}, {"answer": 10**250}]
)
def test_a_row_that_is_odd_but_whole_is_graded(tmp_path, row):
    file, output = tmp_path / "rows.jsonl", tmp_path / "grades.jsonl"
    file.write_text(json.dumps({"response": r"\boxed{1}", "answer": "1"} | row) + "\n")
    for _ in range(2):  # its own output may be replaced
        assert grade.main([str(file), "--output", str(output)]) == 0
    assert json.loads(output.read_text())["line"] == 1


@pytest.mark.slow
def test_its_own_comparison_and_report_are_replaced(commands, tmp_path):
    main, words, _ = commands["compare"]
    _, _, log = commands["report"]
    log.write_text("".join(f'{{"step": {n}, "reward": {n / 40}, "entropy/mean": {1 / n}}}\n' for n in range(1, 31)))
    written = ["--output", tmp_path / "page", "--export", tmp_path / "law.json", "--formats", "svg"]
    for _ in range(2):
        assert main([str(word) for word in (*words, "--json", tmp_path / "c.json")]) == 0
        assert report.main([str(word) for word in (log.parent, *written)]) == 0


# Names, answers and errors never reach the terminal as control characters.

# Part of a name: colours, the title of the window, a cleared screen, a turned direction, no width.
ESC = "x\x1b[31m\x1b]0;owned\x07\x9b2J\u202eb\u200b"


@pytest.fixture
def said(capsys):
    """Function (main, arguments...) -> exit status, having looked at all that was printed."""

    def run(command, *arguments):
        try:
            status = command([str(each) for each in arguments])
        except SystemExit as stop:
            status = stop.code
        for text in capsys.readouterr():
            bad = {each for each in text if unicodedata.category(each) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")}
            assert bad <= {"\n", "\r"}, text  # a progress bar goes back to the start of its line
        return status

    return run


@pytest.fixture
def run_folder(tmp_path):
    folder = tmp_path / f"run {ESC}"
    log = MetricsLog(folder / "metrics.jsonl")
    for step in range(1, 30):
        log.write(step, {"reward": step / 40, "entropy/mean": 1 / step, ESC: 1.0})
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": "' + ESC.replace("\x1b", "\\u001b") + '"}\n')
    MetricsLog(folder / "eval.jsonl").write(5, {ESC: 0.5})
    (folder / "command.txt").write_text(f"train_ppo_ray --cov_type '{ESC}' --data.max_samples '{ESC}'\n")
    return folder


def test_watch(said, run_folder):
    assert said(watch.main, run_folder, "--once") == 0
    assert said(watch.main, run_folder / ESC, "--once") == 2


def test_report(said, run_folder, tmp_path):
    assert said(report.main, run_folder, "--export", "-") == 0
    assert said(report.main, run_folder, "--export", tmp_path / "out.json", "--metric", ESC) == 0
    assert said(report.main, run_folder, "--export", "-", "--metric", f"no {ESC}") == 2
    assert said(report.main, run_folder, "--size", f"{ESC}=7", "--export", "-") == 2
    assert said(report.main, run_folder, f"--{ESC}") == 2


def test_evaluate_and_compare(said, make_evaluation, tmp_path):
    how = {"model": f"models/{ESC}\n\nsecond line", "template_text": ESC}
    first = make_evaluation({f"set{ESC}": ["1 2", "1 1"]}, **how).write(tmp_path / f"first {ESC}")
    second = make_evaluation({f"set{ESC}": ["1 1", "1 1"]}, **how).write(tmp_path / f"second {ESC}")
    assert said(compare.main, first, second) == 0
    assert said(compare.main, first, tmp_path / ESC) == 2
    assert said(evaluate.main, "--regrade", "--output", tmp_path / ESC) == 2
    assert said(evaluate.main, "--model", ESC, "--benchmarks", ESC, "--output", tmp_path / "new") == 2


def test_grade(said, tmp_path):
    path = tmp_path / f"{ESC}.jsonl"
    path.write_text(json.dumps({"response": rf"\boxed{{{ESC}}}", "answer": "1"}) + "\n")
    assert said(grade.main, path) == 0
    path.write_text(json.dumps({"response": "1", "answer": f"\\frac{{{ESC}"}) + "\n")
    assert said(grade.main, path) == 2


def test_prepare(said, tmp_path):
    path = tmp_path / f"{ESC}.jsonl"
    path.write_text(json.dumps({"problem": f"What is {ESC}?", "answer": "1", "id": ESC}) + "\n")
    assert said(prepare_data.main, "--dataset", path, "--output", tmp_path / f"out {ESC}") == 0
    path.write_text(json.dumps({ESC: 1}) + "\n")
    assert said(prepare_data.main, "--dataset", path, "--output", tmp_path / "other") == 2


def test_the_command_itself(said, monkeypatch):
    monkeypatch.setattr("sys.argv", ["openrlhf-cov", ESC])
    assert said(lambda _: main.main()) == 2
