import json
import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from texts import missing

from openrlhf_cov.analysis.json_rows import JsonRows
from openrlhf_cov.analysis.table import Table

LINES = [
    f'{{"step": {s}, "time": {10.0 * s}, "reward": {s / 10}, "entropy/mean": {1 / s}, "x": null}}' for s in range(1, 9)
]


def read(path, columns=None):
    rows = JsonRows(path, columns)
    rows.read()
    return rows


@pytest.fixture
def file(tmp_path):
    def write(content, mode="w"):
        path = tmp_path / "metrics.jsonl"
        text = content if isinstance(content, str) else "".join(line + "\n" for line in content)
        with path.open(mode) as out:
            out.write(text)
        return path

    return write


def same(table, other):
    assert table.steps.tolist() == other.steps.tolist()
    assert set(table.columns) == set(other.columns)
    for name, values in table.columns.items():
        np.testing.assert_array_equal(values, other.column(name))


# --- broken files give the same figures

BROKEN = {
    "cut at the end": [*LINES, LINES[0][:30]],
    "cut in the middle": [*LINES[:3], '{"step": 99, "rew', *LINES[3:]],
    "cut, and the next line behind it": [*LINES[:3], '{"step": 99, "rew' + LINES[3], *LINES[4:]],
    "empty lines": [*LINES[:3], "", "   ", *LINES[3:]],
    "no object": [*LINES[:3], "[1, 2]", "7", "null", *LINES[3:]],
    "no step": [*LINES[:3], '{"reward": 5}', '{"step": null}', *LINES[3:]],
    "a step that is none": [*LINES[:3], '{"step": "x", "reward": 5}', '{"step": 1.5}', *LINES[3:]],
    "repeated lines": [LINES[0], *LINES, LINES[2]],
    "out of order": LINES[::-1],
    "no newline at the end": "\n".join(LINES),
    "windows": "\r\n".join(LINES) + "\r\n",
    "nested": [*LINES[:3], '{"step": {"a": 1}}', *LINES[3:]],
    "too deep": [*LINES[:3], "[" * 100_000, *LINES[3:]],
}


@pytest.mark.parametrize("columns", [None, ["reward", "entropy/mean", "time"]], ids=["all", "chosen"])
@pytest.mark.parametrize("name", BROKEN)
def test_broken_files(file, name, columns):
    expected = read(file(LINES), columns).table
    found = read(file(BROKEN[name]), columns)
    same(found.table, expected)
    assert bool(found.warnings) == (name not in ("empty lines", "out of order", "no newline at the end", "windows"))


def test_warnings_name_what_is_wrong(file):
    content = [*LINES[:2], "{broken", *LINES[1:], '{"step": 9, "reward": NaN, "x": "text", "y": Infinity}']
    found = read(file("\n".join(content) + "\n" + '{"step": 10'))
    facts = [("written again", "1"), ("cannot be read", "1: 3"), ("not finite", "3"), ("last line",)]
    for warning, of_line in zip(found.warnings, facts, strict=True):
        assert missing(warning, "metrics.jsonl: ", *of_line) == []
    assert np.isnan(found.table.column("reward")[8])


def test_bytes_that_are_no_text(file, tmp_path):
    path = file(LINES)
    path.write_bytes(path.read_bytes() + b'{"step": 9, "\xff\xfe": 1}\n\x00\x00\n')
    found = read(path)
    assert len(found.table) == 8
    assert [missing(warning, "metrics.jsonl: ", "cannot be read", "2: 9, 10") for warning in found.warnings] == [[]]


numbers = st.one_of(st.none(), st.floats(), st.integers(-(10**20), 10**20), st.booleans(), st.text(max_size=3))
lines = st.dictionaries(st.sampled_from(["reward", "entropy/mean", "é", "time"]), numbers)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(lines, max_size=6), st.binary(max_size=20))
def test_chosen_columns_are_those_of_all(tmp_path, written, rubbish):
    path = tmp_path / "metrics.jsonl"
    content = [json.dumps({"step": step, **line}).encode() for step, line in enumerate(written)]
    path.write_bytes(b"\n".join([*content, rubbish.replace(b"\n", b"")]))
    whole, names = read(path).table, ("reward", "é")
    chosen = {name: values for name, values in whole.columns.items() if name in names}
    same(read(path, names).table, Table(whole.steps, chosen))


# --- files that grow


def test_following_a_file(file, monkeypatch):
    rows = JsonRows(file(""))
    assert not rows.read()
    file(LINES[:2], "a")
    assert rows.read()
    assert not rows.read()
    file(LINES[2] + "\n" + LINES[3][:20], "a")
    assert rows.read()
    assert rows.table.steps.tolist() == [1, 2, 3]
    assert "still being written" in rows.warnings[0]
    assert not rows.read()
    file(LINES[3][20:] + "\n", "a")
    assert rows.read()
    assert (rows.table.steps.tolist(), rows.warnings) == ([1, 2, 3, 4], [])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(0, 700), max_size=6))
def test_reading_in_pieces_is_reading_at_once(tmp_path, cuts):
    path, data = tmp_path / "metrics.jsonl", "\n".join(LINES).encode()
    path.unlink(missing_ok=True)
    rows, written = JsonRows(path), 0
    for cut in [*sorted(cuts), len(data)]:
        with path.open("ab") as file:
            file.write(data[written:cut])
        written = max(written, cut)
        rows.read()
    assert rows.table.steps.tolist() == list(range(1, 9))
    np.testing.assert_array_equal(rows.table.column("reward"), np.arange(1, 9) / 10)
    assert rows.warnings == []


@pytest.mark.slow
def test_a_replaced_file_is_read_anew(file, tmp_path):
    path = file(LINES)
    rows = read(path)
    other = tmp_path / "other"
    other.write_text("".join(line.replace("0.1", "7") + "\n" for line in [*LINES[:2], *LINES]))  # longer than before
    os.replace(other, path)
    assert rows.read()
    assert len(rows.table) == 8
    assert rows.table.column("reward")[0] == 7
    path.write_text(LINES[0] + "\n")  # cut
    assert rows.read()
    assert len(rows.table) == 1


def test_a_file_written_anew_in_its_place_is_read_anew(file):
    path = file(LINES[:3])
    rows, inode = read(path), path.stat().st_ino
    file([line.replace('"reward": 0', '"reward": 7') for line in LINES])  # same file, longer, other content
    assert path.stat().st_ino == inode
    assert rows.read()
    np.testing.assert_allclose(rows.table.column("reward"), 7 + np.arange(1, 9) / 10, rtol=1e-12)
    assert rows.warnings == []


@pytest.mark.parametrize("content", ["", '{"step": 1, "rew'], ids=["empty", "half a line"])
def test_a_file_that_lost_all_its_rows_is_news_once(file, content):
    rows = read(file(LINES))
    file(content)
    assert rows.read()
    assert len(rows.table) == 0
    assert not rows.read()


def test_broken_lines_have_their_numbers(file):
    path = file([*LINES[:3], "{broken", *LINES[3:6]])
    rows = JsonRows(path)
    assert rows.read()
    with path.open("a") as stream:
        stream.write("\n".join([*LINES[6:], "", "{broken", '{"step": 9}']) + "\n")
    assert rows.read()
    # the fourth line; then three, the last two of LINES and an empty one
    assert [missing(warning, "metrics.jsonl: ", "cannot be read", "2: 4, 11") for warning in rows.warnings] == [[]]
