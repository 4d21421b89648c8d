import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from openrlhf_cov.cli import report


def law(steps=100, seed=0):
    """Entropy and reward of R = -0.3 exp(H) + 0.9 with noise of 0.01."""
    entropy = 0.05 + np.exp(-6 * np.arange(steps) / steps)
    return entropy, 0.9 - 0.3 * np.exp(entropy) + 0.01 * np.random.default_rng(seed).standard_normal(steps)


def write_folder(folder, seed=0, more="", flags=""):
    folder.mkdir(parents=True)
    lines = [
        json.dumps({"step": step, "entropy/mean": h, "reward": r}) + "\n"
        for step, (h, r) in enumerate(zip(*law(seed=seed), strict=True), start=1)
    ]
    (folder / "metrics.jsonl").write_text("".join(lines) + more)
    (folder / "command.txt").write_text(f"train {flags}")
    return str(folder)


@pytest.fixture
def run(tmp_path):
    return write_folder(tmp_path / "run")


def exported(path):
    def refuse(constant):
        raise AssertionError(constant)

    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


@pytest.mark.slow
def test_table_figures_page_and_export(run, tmp_path, capsys):
    out = tmp_path / "out"
    second = write_folder(tmp_path / "second", seed=1, flags="--cov_type kl_cov")
    assert report.main([run, second, "--output", str(out), "--export", str(tmp_path / "law.json")]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    lines = captured.out.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["run", "run", "second"]
    assert "second: the law does not apply." in lines
    assert "no figure" not in captured.out
    assert lines[-1] == str(out / "report.html")
    assert (out / "report.html").stat().st_size > 100_000
    written = exported(tmp_path / "law.json")
    assert [each["law"]["applies"] for each in written["runs"]] == [True, False]
    ceiling = written["runs"][0]["law"]["fit"]["ceiling"]
    assert ceiling["low"] < 0.6 < ceiling["high"]
    assert f"{ceiling['estimate']:.3f} [{ceiling['low']:.3f}, {ceiling['high']:.3f}]" in captured.out
    figures = sorted((out / "figures").iterdir())
    assert lines[-2] == f"{len(figures)} figures in {out / 'figures'}"
    assert {path.stem for path in figures} == {"reward_and_entropy", "law", "coefficients"}


@pytest.mark.slow
def test_an_export_into_the_folder_that_is_made(run, tmp_path):
    out = tmp_path / "new"
    assert report.main([run, "--output", str(out), "--export", str(out / "law.json"), "--no_page"]) == 0
    assert exported(out / "law.json")["runs"]


def test_export_to_stdout_is_json_alone(run, capsys):
    before = sorted(Path(run).parent.rglob("*"))
    assert report.main([run, "--export", "-"]) == 0
    assert sorted(Path(run).parent.rglob("*")) == before  # nothing else is written
    captured = capsys.readouterr()
    assert json.loads(captured.out)["runs"][0]["steps"] == 100
    assert captured.err.startswith("run ")


def test_flags_of_the_law(run, tmp_path):
    path = tmp_path / "law.json"
    flags = ["--robust", "--forecast", "0.5", "--reward_max", "0.4", "--metric", "reward", "--export", str(path)]
    assert report.main([run, *flags]) == 0
    written = exported(path)
    options = {"metric": "reward", "method": "huber", "forecast_share": 0.5, "highest_reward": 0.4, "level": 0.95}
    assert written["options"] == options | {"entropy": "entropy/mean"}
    assert written["runs"][0]["law"]["forecast"]["fit"]["points"] == 50
    assert "above --reward_max 0.4" in written["notes"][0]


def test_a_csv_with_names_of_its_own(tmp_path):
    path = tmp_path / "law.json"
    rows = [f"{step},{h},{r}\n" for step, (h, r) in enumerate(zip(*law(), strict=True), start=1)]
    (tmp_path / "their.csv").write_text("step,policy/H,score/mean\n" + "".join(rows))
    flags = ["--mapping", "entropy=policy/H", "reward=score/mean", "--export", str(path)]
    assert report.main([str(tmp_path / "their.csv"), *flags]) == 0
    (their,) = exported(path)["runs"]
    assert (their["name"], their["law"]["points"], their["law"]["applies"]) == ("their", 100, True)


def test_a_file_cut_within_a_line_is_read_with_a_warning(tmp_path, capsys):
    run = write_folder(tmp_path / "run", more='{"step": 101, "entr')
    path = tmp_path / "law.json"
    assert report.main([run, "--export", str(path)]) == 0
    warning = "metrics.jsonl: the last line is cut, or is still being written"
    assert capsys.readouterr().err == f"report: run: {warning}\n"
    assert exported(path)["runs"][0]["warnings"] == [warning]
    assert exported(path)["runs"][0]["law"]["points"] == 100


@pytest.mark.slow
@pytest.mark.parametrize("name", ["", "metrics.jsonl"])
def test_without_output_the_report_of_a_run_is_in_its_folder(run, name, capsys):
    assert report.main([str(Path(run, name)), "--formats", "svg"]) == 0
    page = Path(run, "report", "report.html")
    assert page.is_file()
    assert capsys.readouterr().out.splitlines()[-1] == str(page)
    assert report.main([run, "--formats", "svg"]) == 0  # once more, over its own files


@pytest.mark.slow
def test_without_output_several_runs_have_their_report_beside_them(run, tmp_path):
    assert report.main([run, write_folder(tmp_path / "second", seed=1), "--formats", "svg"]) == 0
    assert (tmp_path / "report" / "report.html").is_file()


@pytest.mark.e2e
@pytest.mark.long  # 20 seconds for 20,000 steps; no other test limits the memory of a report
def test_many_steps_are_read_and_drawn():
    benchmark = Path(__file__).parents[2] / "benchmarks" / "report_size.py"
    done = subprocess.run([sys.executable, benchmark], capture_output=True, text=True, check=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("|") and "MB" in line]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert [name for name, *_ in rows] == ["numbers alone", "figures", "figures and page"]
    for *_, memory in rows:
        assert float(memory.removesuffix(" MB")) < 500
