"""Damaged files and outputs that are another's, in every command that takes any: one line that names the file."""

import gzip
import json
import os

import pytest

from openrlhf_cov.cli import compare, evaluate, grade, prepare_data, report, watch

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


@pytest.mark.parametrize("source", [3, [1], {"a": 1}, True, "\ud800"])
def test_a_source_that_is_no_text_is_refused(tmp_path, capsys, source):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"response": r"\boxed{1}", "answer": "1", "source": source}) + "\n")
    assert grade.main([str(file), "--reward_source", "row"]) == 2
    assert f"{file}, line 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    "row", [{"response": r"\boxed{\ud800}"}, {"answer": "\ud800"}, {"source": "\ud800"}, {"answer": 10**250}]
)
def test_a_row_that_is_odd_but_whole_is_graded(tmp_path, row):
    file, output = tmp_path / "rows.jsonl", tmp_path / "grades.jsonl"
    file.write_text(json.dumps({"response": r"\boxed{1}", "answer": "1"} | row) + "\n")
    for _ in range(2):  # its own output may be replaced
        assert grade.main([str(file), "--output", str(output)]) == 0
    assert json.loads(output.read_text())["line"] == 1


def row(step, **other):
    return {"step": step, "time": 1.7e9 + step, "reward": step / 40, "entropy/mean": 1 / (1 + step)} | other


def dumped(record):
    """JSON of a record, with whole numbers of thousands of digits."""
    long = {name: value for name, value in record.items() if isinstance(value, int) and value >= 10**4000}
    text = json.dumps(record | dict.fromkeys(long, "LONG"))
    return text.replace('"LONG"', "1" + "0" * 5000)


MINE = b"# Notes\nmine\n"


@pytest.mark.parametrize(
    ("name", "file", "words"),
    [
        ("grade", "x.jsonl", ["--output", "{file}"]),
        ("report", "README.md", ["--export", "{file}"]),
        ("report", "report.html", ["--output", "{folder}"]),
        ("compare", "README.md", ["--json", "{file}"]),
        ("prepare", "manifest.json", ["--output", "{folder}"]),
        ("prepare", "README.md", ["--output", "{folder}"]),
        ("write_data", "README.md", ["--write_data", "{file}"]),
    ],
)
def test_a_file_of_others_is_not_replaced(commands, tmp_path, capsys, name, file, words):
    main, before, _ = commands[name]
    place = tmp_path / "theirs" / file
    place.parent.mkdir()
    place.write_bytes(MINE)
    words = [word.format(file=place, folder=place.parent) for word in words]
    assert main([str(word) for word in before] + words) == 2
    error = capsys.readouterr().err
    assert words[0] in error
    assert str(place.parent) in error
    assert [each.name for each in place.parent.iterdir()] == [file]
    assert place.read_bytes() == MINE


def test_its_own_comparison_and_report_are_replaced(commands, tmp_path):
    main, words, _ = commands["compare"]
    _, _, log = commands["report"]
    log.write_text("".join(f"{dumped(row(step))}\n" for step in range(1, 31)))
    written = [str(tmp_path / "page"), "--export", str(tmp_path / "law.json"), "--formats", "svg"]
    for _ in range(2):
        assert main([str(word) for word in [*words, "--json", tmp_path / "c.json"]]) == 0
        assert report.main([str(log.parent), "--output", *written]) == 0
