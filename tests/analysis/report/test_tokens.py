import ast
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from texts import missing

from openrlhf_cov.analysis.report import token_view as module
from openrlhf_cov.analysis.report.token_view import (
    FEWEST_TOKENS,
    LONGEST_TEXT,
    TOKEN_BUDGET,
    Token,
    chosen_files,
    find_token_files,
    passages,
    read_tokens,
    run_tokens,
    text_between,
    tokens_per_step,
)
from openrlhf_cov.errors import UsageError
from openrlhf_cov.utils.json_lines import write_lines


def test_files_in_the_order_of_their_steps(tmp_path):
    folder = tmp_path / "cov_tokens"
    folder.mkdir()
    for name in ("step_20.jsonl", "step_3.jsonl", "step_4.tmp", "notes.txt"):
        (folder / name).write_text("")
    assert [(file.step, file.path.name) for file in find_token_files(tmp_path)] == [
        (3, "step_3.jsonl"),
        (20, "step_20.jsonl"),
    ]
    assert find_token_files(tmp_path / "nowhere") == ()


def test_what_the_training_writes_can_be_read(tmp_path):
    records = [{"token": " né\n", "cov": 3.5, "before": "a\u2028b"}, {"token": "", "cov": -1.0, "before": "\r"}]
    path = tmp_path / "step_1.jsonl"
    # as openrlhf_cov/trainer/metrics/token_dump.py does
    lines = [json.dumps(record, ensure_ascii=False) for record in records]
    write_lines(path, lines)
    assert read_tokens(path) == [Token(**record) for record in records]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"token": "a", "cov"', "Invalid JSON"),
        ("[1]", "must have the fields token, cov, "),
        ('{"token": "a"}', "cov: this field is missing"),
        ('{"cov": 1.0}', "token: this field is missing"),
        ('{"token": null, "cov": 1.0}', "token: must be a valid string; got None"),
        ('{"token": "a", "cov": NaN}', "cov: must be a finite number"),
        ('{"token": "a", "cov": 1e309}', "cov: must be a finite number"),
        ('{"token": "a", "cov": 1.0, "entropy": true}', "entropy: must be a valid number; got True"),
        ('{"token": "a", "cov": 1.0, "selected": 1}', "selected: must be a valid boolean; got 1"),
        ('{"token": "a", "cov": 1.0, "position": -1}', "position: must be at least 0; got -1"),
        ('{"token": "a", "cov": 1.0, "sample_id": 9007199254740992}', "sample_id: must be less than "),
    ],
)
def test_a_broken_file_is_refused(tmp_path, line, said):
    path = tmp_path / "step_1.jsonl"
    path.write_text(json.dumps({"token": "a", "cov": 1.0}) + "\n" + line + "\n")
    with pytest.raises(UsageError, match=rf"step_1\.jsonl, line 2: {said}"):
        read_tokens(path)


@pytest.fixture
def report_of(make_contents, make_report_run, tmp_path):
    """Function () -> the report of a run in ``tmp_path``."""

    def make():
        return make_contents(make_report_run("run", path=tmp_path)).runs[0]

    return make


def spelt(parts, tokens):
    return "".join(part if isinstance(part, str) else tokens[part].token for part in parts)


def test_the_passage_of_the_largest_absolute_covariance_is_first(token_records):
    tokens = [Token(**record) for record in token_records()]
    tokens[3] = replace(tokens[3], cov=-5.0)
    tokens[1] = replace(tokens[1], cov=4.5)
    assert [parts[1] for parts in passages(tokens)] == [0, 1]
    tokens[3] = replace(tokens[3], cov=0.0)
    assert [parts[1] for parts in passages(tokens)] == [1, 0]


def token(text, position, before, after, sample=1):
    return Token(token=text, position=position, sample_id=sample, cov=1.0, before=before, after=after)


def test_text_that_does_not_agree_is_not_joined():
    first = token("a", 3, "", "xbz")
    assert text_between("a", first, token("b", 5, "ax", "z")) == "x"
    assert text_between("a", first, token("b", 5, "ay", "z")) is None  # other text before
    assert text_between("a", first, token("b", 5, "ax", "w")) is None  # other text after
    assert text_between("a", first, token("c", 5, "ax", "z")) is None  # not in the text
    assert text_between("a", first, token("b", 24, "ax", "z")) is None  # 21 tokens later is not in the text after
    assert text_between("a", first, token("b", 3, "ax", "z")) is None  # the same place


@given(
    words=st.lists(st.text("ab\n", max_size=2), min_size=1, max_size=60),
    chosen=st.sets(st.integers(0, 59), min_size=1),
)
def test_passages_hold_every_token_once_in_true_text(words, chosen):
    # tokens of a real text, empty and repeated ones among them: each passage is a piece of it
    places = [place for place in sorted(chosen) if place < len(words)]
    context = module.CONTEXT
    tokens = [
        token(words[p], p, "".join(words[max(0, p - context) : p]), "".join(words[p + 1 : p + 1 + context]))
        for p in places
    ]
    found = passages(tokens)
    assert sorted(part for parts in found for part in parts if isinstance(part, int)) == list(range(len(places)))
    text = "".join(words)
    for parts in found:
        assert spelt(parts, tokens) in text
        inside = [place for place in parts if isinstance(place, int)]
        assert inside == sorted(inside)
    near = [b - a <= context for a, b in pairwise(places)]
    assert len(found) == (1 + near.count(False) if places else 0)


def test_context_is_that_of_the_trainer():
    # read, not imported: the trainer needs upstream
    source = Path(module.__file__).parents[2] / "trainer" / "metrics" / "token_dump.py"
    (value,) = [
        ast.literal_eval(node.value)
        for node in ast.parse(source.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CONTEXT"
    ]
    assert value == module.CONTEXT


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("cov", 1.23456789, 1.2346),
        ("cov", -1.797693e308, -1e300),  # with five digits it is -1.7977e308, which no float holds
        ("entropy", None, None),
        ("token", "x" * 1000, "x" * LONGEST_TEXT),
    ],
)
def test_numbers_are_rounded_and_texts_cut(report_of, tmp_path, write_tokens, token_records, field, value, expected):
    write_tokens(tmp_path, 1, [token_records()[0] | {field: value}])
    (step,) = run_tokens(report_of().token_files, 1)["steps"]
    assert step["tokens"][0][field] == expected


def test_the_text_around_a_token_is_cut_at_its_far_ends(report_of, tmp_path, write_tokens, token_records):
    around = {"before": "<" + "x" * LONGEST_TEXT, "after": "y" * LONGEST_TEXT + ">"}
    write_tokens(tmp_path, 1, [token_records()[0] | around])
    (step,) = run_tokens(report_of().token_files, 1)["steps"]
    assert step["passages"] == [["x" * LONGEST_TEXT, 0, "y" * LONGEST_TEXT]]


def test_steps_of_a_run(report_of, tmp_path, write_tokens, token_records):
    write_tokens(tmp_path, 20, token_records())
    write_tokens(tmp_path, 3, [token_records()[1] | {"cov": -9.0}])
    found = run_tokens(report_of().token_files, 100)
    assert [step["step"] for step in found["steps"]] == [3, 20]
    assert (found["scale"], found["notes"]) == (9.0, [])
    assert found["steps"][1]["tokens"][0] == {
        "token": " a", "selected": True, "cov": 4.0, "entropy": 1.5, "advantage": -0.5, "log_prob": -2.0,
        "position": 5, "sample_id": 8, "prompt_id": 1, "token_id": 7,
    }  # fmt: skip
    assert [len(step["passages"]) for step in found["steps"]] == [1, 2]
    json.dumps(found, allow_nan=False)


def test_the_most_extreme_tokens_are_kept(report_of, tmp_path, write_tokens, token_records):
    write_tokens(tmp_path, 1, [token_records()[0] | {"cov": cov} for cov in (1.0, -3.0, 2.0, 0.5)])
    (step,) = run_tokens(report_of().token_files, 2)["steps"]
    assert [each["cov"] for each in step["tokens"]] == [-3.0, 2.0]
    assert step["of"] == 4


def test_files_are_spread_over_the_run(report_of, tmp_path, write_tokens, token_records):
    for step in range(1, 16):
        write_tokens(tmp_path, step, token_records())
    found = run_tokens(report_of().token_files, 9)
    assert [step["step"] for step in found["steps"]] == [1, 3, 5, 7, 9, 11, 13, 15]
    assert [missing(note, "8 of the 15 files") for note in found["notes"]] == [[]]


@pytest.mark.parametrize("content", [b"{", b"[1]\n", b'{"token": "a"}\n', b"\xff\n"])
def test_a_broken_file_is_named_and_the_others_shown(report_of, tmp_path, write_tokens, token_records, content):
    write_tokens(tmp_path, 1, token_records())
    write_tokens(tmp_path, 2, []).write_bytes(content)
    found = run_tokens(report_of().token_files, 9)
    assert [step["step"] for step in found["steps"]] == [1]
    (note,) = found["notes"]
    assert note.startswith("The tokens of step 2 cannot be read: ")


@pytest.mark.parametrize(
    ("files", "expected"),
    [([0], TOKEN_BUDGET), ([3], 2000), ([8, 0, 4], 500), ([100], 750), ([8] * 60, FEWEST_TOKENS)],
)
def test_the_budget_is_shared_by_all_files(files, expected):
    file = module.TokenFile(1, Path("step_1.jsonl"))
    runs = [(file,) * count for count in files]
    assert tokens_per_step(runs) == expected  # 6000 / 12 = 500; of 100 files 8 are shown
    assert all(len(chosen_files(each)) <= 8 for each in runs if each)
