import math
import os
import resource
import signal
from pathlib import Path

import pytest

from openrlhf_cov.errors import UsageError
from openrlhf_cov.utils.json_lines import (
    json_number,
    parse_json,
    parse_object,
    read_json,
    read_rows,
    replacing,
    valid_text,
    write_json,
    write_lines,
)


@pytest.mark.parametrize(
    ("value", "expected"), [(1.5, 1.5), (0, 0), (math.nan, None), (math.inf, None), (-math.inf, None)]
)
def test_numbers_that_json_does_not_have_are_none(value, expected):
    assert json_number(value) == expected


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "step_4.jsonl"
    write_lines(path, ["é", "b"])
    assert path.read_text(encoding="utf-8") == "é\nb\n"

    def broken():
        yield "c"
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_lines(path, broken())
    assert path.read_text(encoding="utf-8") == "é\nb\n"
    write_lines(path, ["d"])
    assert path.read_text(encoding="utf-8") == "d\n"
    assert [file.name for file in tmp_path.iterdir()] == ["step_4.jsonl"]


def test_of_two_writers_at_once_the_last_wins_and_nothing_is_mixed(tmp_path):
    path = tmp_path / "scores.json"
    first, last = replacing(path), replacing(path)
    first.__enter__().write(b"of the first")
    file = last.__enter__()
    file.write(b"of the ")
    with pytest.raises(FileExistsError) as found:
        first.__exit__(None, None, None)
    assert found.value.filename == str(path)
    assert not path.exists()
    file.write(b"last")
    last.__exit__(None, None, None)
    assert path.read_bytes() == b"of the last"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("planted", ["link", "dangling link", "file"])
def test_what_is_planted_under_the_name_of_the_unfinished_file_is_not_written_to(tmp_path, planted):
    victim, folder = tmp_path / "victim", tmp_path / "run"
    folder.mkdir()
    unfinished = folder / ".run.json.tmp"
    if planted == "file":
        unfinished.write_text("left by a kill")
    else:
        unfinished.symlink_to(victim)
    if planted == "link":
        victim.write_text("mine")
    write_lines(folder / "run.json", ["new"])
    assert (folder / "run.json").read_text() == "new\n"
    assert not (folder / "run.json").is_symlink()
    assert victim.exists() is (planted == "link")
    assert planted != "link" or victim.read_text() == "mine"
    assert [path.name for path in folder.iterdir()] == ["run.json"]


@pytest.mark.parametrize(("private", "mode"), [(True, 0o600), (False, 0o640)])
def test_who_may_read(tmp_path, private, mode):
    before = os.umask(0o027)
    try:
        write_lines(tmp_path / "file", ["a"], private=private)
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode


def test_a_full_disk_leaves_nothing_behind_and_is_told_by_the_name_of_the_file(tmp_path):
    with pytest.raises(FileNotFoundError) as refused:
        write_lines(tmp_path / "none" / "file", ["a"])
    assert refused.value.filename == str(tmp_path / "none" / "file")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    heard = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10**5, before[1]))
        with pytest.raises(OSError, match="File too large"):
            write_lines(tmp_path / "file", ["a" * 1000] * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, heard)
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_is_written_to(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_lines(tmp_path / "pipe", ["a"])
    assert os.read(reader, 10) == b"a\n"
    os.close(reader)
    write_lines(Path("/dev/null"), ["a"])
    assert not Path("/dev/null").is_file()


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b'\xef\xbb\xbf{"a": 1}', {"a": 1}),
        (b"[1e999, -1e999]", [math.inf, -math.inf]),
        (b"1" * 5000, math.inf),
        (b"123456789012345678901234567890", 123456789012345678901234567890),
    ],
)
def test_odd_json_is_read(content, value):
    assert parse_json(content) == value


@pytest.mark.parametrize("content", [b"[" * 10**6, b"\xff", b"", b"{", b"[1] [2]", '{"a": 1}'.encode("utf-16")])
def test_what_is_no_json_is_one_line(content):
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        parse_json(content)


@pytest.mark.parametrize("content", [b"null", b"1", b'"a"', b"[{}]"])
def test_an_object_is_one(content):
    assert parse_object(b'{"a": null}') == {"a": None}
    with pytest.raises(ValueError, match="not a JSON object"):
        parse_object(content)


def test_halves_of_surrogate_pairs_are_replaced():
    assert valid_text("a\ud83d\ude00b\ud83d\udc80"[:4]) == "a\U0001f600b"
    assert valid_text("a\ud83d b\ude00") == "a\ufffd b\ufffd"
    # a half alone, as a key too; a whole pair, numbers and an escaped backslash before "ud83d" stay as they are
    content = rb'{"\uDE00": ["a\ud83d", "\ud83d\ude00", "\\ud83d", 10000000000000000000001, 1.5, null]}'
    texts = ["a\ufffd", "\U0001f600", "\\ud83d"]
    assert parse_json(content) == {"\ufffd": [*texts, 10**22 + 1, 1.5, None]}


def test_a_value_is_written_and_read(tmp_path):
    path = tmp_path / "x.json"
    for value in ({"a": [1, "ü"]}, []):
        write_json(path, value)
        assert read_json(path) == value
    assert [each.name for each in tmp_path.iterdir()] == ["x.json"]


def test_rows_are_numbered_and_what_cannot_be_read_names_its_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n\n[2]\n{"b"')
    assert list(read_rows(path, may_be_cut=True)) == [(1, {"a": 1}), (3, [2])]
    with pytest.raises(UsageError, match=r"rows\.jsonl, line 4: not JSON"):
        list(read_rows(path))
    with pytest.raises(UsageError, match=r"rows\.jsonl, line 3: it is not a JSON object"):
        list(read_rows(path, parse_object, may_be_cut=True))
    with pytest.raises(UsageError, match=r"none\.jsonl cannot be read: No such file"):
        list(read_rows(tmp_path / "none.jsonl"))
