import os

import numpy as np
import pytest

from openrlhf_cov.analysis import json_rows, line_decoder
from openrlhf_cov.analysis.json_rows import JsonRows
from openrlhf_cov.analysis.line_decoder import decode_file

COLUMNS = ("reward", "x")
LINES = [
    f'{{"step": {s}, "reward": {s / 1000}, "other": {{"a": 1}}, "x": {"null" if s % 3 else s}}}' for s in range(1, 900)
]


@pytest.fixture
def file(tmp_path):
    def write(lines, end="\n"):
        path = tmp_path / "metrics.jsonl"
        path.write_text("\n".join(lines) + end, encoding="utf-8")
        return path

    return write


def pieces(path, chunk=2000):
    return list(decode_file(path, COLUMNS, chunk, 2))


def test_pieces_are_the_lines_of_the_file_in_their_order(file):
    path = file(LINES)
    found = pieces(path)
    assert [start for start, _, _ in found] == [0, *(end for _, end, _ in found[:-1])]
    assert found[-1][1] == path.stat().st_size
    # a line is 56 to 61 bytes with its end: a piece ends with the line that is in its 2,000th byte
    assert all(2000 <= end - start < 2062 for start, end, _ in found[:-1])
    steps = np.concatenate([rows.steps for _, _, rows in found])
    assert steps.tolist() == list(range(1, 900))
    x = np.concatenate([rows.columns["x"] for _, _, rows in found])
    np.testing.assert_array_equal(x, [np.nan if s % 3 else s for s in range(1, 900)])


def test_a_line_longer_than_a_piece_and_than_what_is_looked_through(file, monkeypatch):
    monkeypatch.setattr(line_decoder, "LINE", 100)
    long = '{"step": 900, "reward": 1, "text": "' + "y" * 5000 + '"}'
    found = pieces(file([*LINES[:10], long, *LINES[10:20]]), chunk=600)
    assert np.concatenate([rows.steps for _, _, rows in found]).tolist() == [*range(1, 11), 900, *range(11, 21)]


def test_an_unfinished_line_is_left_out(file):
    assert pieces(file(['{"step": 1'], end="")) == []
    path = file([*LINES, '{"step": 900'], end="")
    found = pieces(path)
    assert found[-1][1] <= path.stat().st_size - len('{"step": 900')
    assert found[-1][1] > path.stat().st_size - 2100


def test_a_piece_with_a_broken_line_is_left_to_the_caller(file):
    found = pieces(file([*LINES[:100], "{broken", *LINES[100:]]))
    assert [rows is None for _, _, rows in found].count(True) == 1


# --- a large file is read by several processes, and gives what one process reads


def read(path, **how):
    rows = JsonRows(path, COLUMNS, chunk=1000, **how)
    rows.read()
    return rows


@pytest.fixture
def started(monkeypatch):
    """How often pieces were decoded by processes of their own, with the pieces that were taken."""
    calls = []

    def counted(*args):
        calls.append(0)
        for piece in decode_file(*args):
            calls[-1] += 1
            yield piece

    monkeypatch.setattr(json_rows, "decode_file", counted)
    return calls


def same(one, other):
    assert one.warnings == other.warnings
    assert one.table.steps.tolist() == other.table.steps.tolist()
    assert set(one.table.columns) == set(other.table.columns)
    for name, values in one.table.columns.items():
        np.testing.assert_array_equal(values, other.table.column(name))


CONTENTS = {
    "whole": LINES,
    "broken lines": [
        *LINES[:400],
        "{broken",
        *LINES[400:],
        '{"step": 901, "reward": NaN}',
        "",
        '{"step": 5}{"step": 905}',
    ],
    "a cut end": [*LINES, '{"step": 901, "rew'],
    "resumed": [*LINES[:700], *LINES[600:]],
}


@pytest.mark.parametrize("name", CONTENTS)
def test_together_as_alone(file, started, name):
    path = file(CONTENTS[name], end="" if name == "a cut end" else "\n")
    same(read(path, processes=2), read(path))
    assert started == [pytest.approx(len("\n".join(CONTENTS[name])) / 1030, rel=0.05)]


def test_a_small_file_is_read_by_one(file, started):
    assert len(read(file(LINES[:500]), processes=2).table) == 500  # about 60 bytes each; the limit is 32 chunks
    assert started == []


def test_reading_goes_on_after_the_pieces(file, started):
    path = file(LINES)
    rows = read(path, processes=2)
    assert not rows.read()
    with path.open("a") as out:
        out.write('{"step": 900, "reward": 2}\n')
    assert rows.read()
    assert rows.table.steps[-1] == 900
    assert len(started) == 1
    path.write_text('{"step": 1, "reward": 3}\n')
    assert rows.read()
    assert rows.table.steps.tolist() == [1]


def test_without_its_processes_it_is_read_alone(file, started, monkeypatch):
    path = file(LINES)
    monkeypatch.setattr(line_decoder, "_decode_piece", _die)
    same(read(path, processes=2), read(path))
    assert started == [0]


def _die(*_):
    os._exit(9)


def test_without_msgspec_it_is_read_alone(file, started, monkeypatch):
    path = file(LINES)
    monkeypatch.setattr(json_rows, "decoder_of", lambda columns: None)
    same(read(path, processes=2), read(path))
    assert started == []
