import json
from dataclasses import asdict, replace

import pytest

from openrlhf_cov.errors import UsageError
from openrlhf_cov.evaluation.results import write_results


@pytest.mark.slow
def test_a_finished_run_gets_its_three_files(make_evaluation, tmp_path):
    folder = make_evaluation({"aime24": ["1 2"]}).write(tmp_path)
    records = {path.name: path.read_bytes() for path in folder.iterdir()}
    summary = write_results(folder)
    assert json.loads((folder / "summary.json").read_text()) == json.loads(json.dumps(asdict(summary)))
    assert "| aime24 | 1 | 2 | 50.0 |" in (folder / "summary.md").read_text()
    assert (folder / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert {path.name for path in folder.iterdir()} == {*records, "summary.json", "summary.md", "report.html"}
    assert {name: (folder / name).read_bytes() for name in records} == records


@pytest.mark.slow
def test_responses_on_which_the_graders_differ_are_listed(make_evaluation, tmp_path):
    run = make_evaluation({"aime24": ["1 2 3", "2 2 1"]})
    both = run.having(lambda response: replace(response, published=response.answer != "3"))
    folder = both.write(tmp_path)
    write_results(folder)
    # answer 2 is wrong by strict and right by published, 1 and 3 are the same by both
    differences = [json.loads(line) for line in (folder / "differences.jsonl").read_text().splitlines()]
    assert [(each["id"], each["sample"], each["answer"]) for each in differences] == [
        *[("aime24-0", 1, "2"), ("aime24-1", 0, "2"), ("aime24-1", 1, "2")]
    ]
    first = {name: differences[0][name] for name in ("text", "gold", "strict", "published")}
    assert first == {"text": r"So \boxed{2}.", "gold": "1", "strict": False, "published": True}
    assert '<th scope="col">differ</th>' in (folder / "report.html").read_text()
    write_results(run.write(tmp_path))  # graded again, by strict alone
    assert not (folder / "differences.jsonl").exists()
    assert '<th scope="col">differ</th>' not in (folder / "report.html").read_text()


def test_an_unfinished_run_gets_none(make_evaluation, tmp_path):
    folder = make_evaluation({"aime24": ["1 2"]}).write(tmp_path)
    lines = (folder / "responses.jsonl").read_text().splitlines()
    (folder / "responses.jsonl").write_text(lines[0] + "\n")
    with pytest.raises(UsageError, match="1 of 2 responses are missing"):
        write_results(folder)
    assert not list(folder.glob("summary*")) + list(folder.glob("report*"))
