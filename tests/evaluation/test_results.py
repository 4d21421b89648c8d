import pytest

from openrlhf_cov.errors import UsageError
from openrlhf_cov.evaluation.results import write_results
from openrlhf_cov.evaluation.summary import read_summary


def test_a_finished_run_gets_its_three_files(make_evaluation, tmp_path):
    folder = make_evaluation({"aime24": ["1 2"]}).write(tmp_path)
    records = {path.name: path.read_bytes() for path in folder.iterdir()}
    summary = write_results(folder)
    assert summary == read_summary(folder)
    assert "| aime24 | 1 | 2 | 50.0 |" in (folder / "summary.md").read_text()
    assert (folder / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert {path.name for path in folder.iterdir()} == {*records, "summary.json", "summary.md", "report.html"}
    assert {name: (folder / name).read_bytes() for name in records} == records


def test_an_unfinished_run_gets_none(make_evaluation, tmp_path):
    folder = make_evaluation({"aime24": ["1 2"]}).write(tmp_path)
    lines = (folder / "responses.jsonl").read_text().splitlines()
    (folder / "responses.jsonl").write_text(lines[0] + "\n")
    with pytest.raises(UsageError, match="1 of 2 responses are missing"):
        write_results(folder)
    assert not list(folder.glob("summary*")) + list(folder.glob("report*"))
