"""Runs and packed files that somebody or a disk has damaged: never a traceback, never counted."""

import json
import lzma
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openrlhf_cov.errors import UsageError
from openrlhf_cov.experiments.study.run_plan import REPORT, StudyRun
from openrlhf_cov.experiments.study.run_results import pack, read_run, unpack

TEST = {"kinds": ["", "a"], "samples": 4, "greedy": [1, 0], "right": [4, 1]}
DAMAGES = {
    "emptied": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "zeros": lambda content: bytes(len(content)),
    "another form": lambda content: b'[{"greedy": 7}]',
    "an object": lambda content: b'{"step": "x"}',
    "nested": lambda content: b"[" * 9000,
    "not text": lambda content: b"\xff\xfe" + content,
}


def log(steps, **values):
    return "".join(json.dumps({"step": step, "time": 0.0, **values}) + "\n" for step in steps)


@pytest.fixture
def run(tmp_path):
    """The folder of a run of four steps."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text(log(range(1, 5), reward=0.5))
    (folder / "eval.jsonl").write_text(log((0, 1, 4), greedy=0.5))
    (folder / "test.json").write_text(json.dumps(TEST))
    (folder / "result.json").write_text('{"greedy": 0.5}')
    return folder


def test_a_whole_run_is_read(run):
    result = read_run(run, evaluated=(0, 1, 4))
    assert result.metrics.column("reward").tolist() == [0.5] * 4


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("name", ["metrics.jsonl", "eval.jsonl", "test.json", "result.json"])
def test_a_damaged_file_is_said_in_one_line(run, name, damage):
    (run / name).write_bytes(damage((run / name).read_bytes()))
    with pytest.raises(ValueError, match="is damaged") as refused:
        read_run(run, evaluated=(0, 1, 4))
    assert str(run) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: os.mkfifo(path)])
@pytest.mark.parametrize("name", ["metrics.jsonl", "eval.jsonl", "test.json"])
def test_what_is_no_file_is_not_waited_for(run, name, make):
    (run / name).unlink()
    make(run / name)
    with pytest.raises(ValueError, match="is damaged"):
        read_run(run)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("metrics.jsonl", log((1, 2, 4))),
        ("metrics.jsonl", log((1, 2, 3))),
        ("metrics.jsonl", log((1, 2, 3, 4, 5))),
        ("metrics.jsonl", log((1, 2, 2, 3, 4))),
        ("metrics.jsonl", log((1, 2, 3, 4), reward=[1])),
        ("eval.jsonl", log((0, 4), greedy=0.5)),
        ("eval.jsonl", log((0, 1, 4), greedy=None)),
        ("eval.jsonl", log((0, 1, 4), entropy=0.5)),
        ("eval.jsonl", log((4, 1, 0), greedy=0.5)),
    ],
)
def test_a_log_that_lacks_what_was_asked_for_is_not_complete(run, name, content):
    (run / name).write_text(content)
    with pytest.raises(ValueError, match="is damaged"):
        read_run(run, evaluated=(0, 1, 4))


odd = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=6,
)
keep_fixtures = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@keep_fixtures
@given(field=st.sampled_from(sorted(TEST)), value=odd)
def test_a_test_of_another_form_is_refused(run, field, value):
    (run / "test.json").write_text(json.dumps(TEST | {field: value}))
    try:
        result = read_run(run)
    except ValueError as error:
        assert "is damaged" in str(error)  # noqa: PT017
    else:
        assert len(result.kinds) == len(result.greedy) == len(result.right) == 2


@pytest.fixture
def record(tmp_path, make_result):
    """A line of a packed file."""
    pack([make_result(StudyRun("GRPO", REPORT, ("--x", "1"), 0), 0.5)], tmp_path / "one.xz", lambda run: ["--x"])
    return json.loads(lzma.open(tmp_path / "one.xz").read())


@keep_fixtures
@given(data=st.data(), value=odd)
def test_a_packed_file_with_anything_in_a_field_is_taken_or_refused(tmp_path, record, data, value):
    record = json.loads(json.dumps(record))
    place = record
    while isinstance(place, dict):
        parent, key = place, data.draw(st.sampled_from(sorted(place)))
        place = place[key]
    parent[key] = value
    path = tmp_path / "odd.jsonl.xz"
    path.write_bytes(lzma.compress(json.dumps(record).encode(), preset=0))
    try:
        (result,) = unpack(path)
    except UsageError as error:
        assert str(path) in str(error)  # noqa: PT017
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert result.sampled.shape == (10, record["test"]["samples"])
        hash(result.run)


@pytest.mark.parametrize("cut", [0, 1, 10, 100, -100, -40, -13, -12, -1])
def test_a_packed_file_that_is_cut_anywhere_is_refused(tmp_path, make_result, cut):
    path = tmp_path / "x.jsonl.xz"
    pack([make_result(StudyRun("GRPO", REPORT, (), seed), 0.5) for seed in range(3)], path, lambda run: [])
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(UsageError, match=r"x\.jsonl\.xz"):
        list(unpack(path))
