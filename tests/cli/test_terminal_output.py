"""Names, answers and errors that others chose never reach the terminal as control characters, in any command."""

import json
import unicodedata

import pytest

from openrlhf_cov.cli import compare, evaluate, grade, main, prepare_data, report, watch
from openrlhf_cov.utils.metrics_log import MetricsLog

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
