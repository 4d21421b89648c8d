"""What is said of content that is not a record: one line with the place, the value and what it must be."""

import json
import re
from dataclasses import dataclass, field
from typing import Annotated

import pytest

from openrlhf_cov.utils.record_checks import (
    OPEN,
    STRICT,
    StopsAtFirstError,
    checked,
    checked_value,
    find_record,
    short,
)


@dataclass
class Inner:
    __pydantic_config__ = STRICT

    count: int
    shares: dict[str, float] = field(default_factory=dict)


@dataclass
class Outer:
    __pydantic_config__ = STRICT

    name: str
    inner: list[Inner] | None = None
    many: Annotated[list[int], StopsAtFirstError()] = field(default_factory=list)


def test_a_record_is_read_with_and_without_a_byte_order_mark():
    content = b'{"name": "a", "inner": [{"count": 1, "shares": {"x": 0.5}}]}'
    expected = Outer("a", [Inner(1, {"x": 0.5})])
    assert checked(Outer, content) == checked(Outer, b"\xef\xbb\xbf" + content) == expected


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({}, "name: this field is missing; add it"),
        ([], "must have the fields name, inner, many; got []"),
        ({"name": 1}, "name: must be a valid string; got 1"),
        # the misspelt field is named rather than the one that is missing because of it
        ({"nane": "a"}, "nane: no such field; did you mean name?"),
        ({"name": "a", "inner": [{"coumt": 1}]}, "inner[0].coumt: no such field; did you mean count?"),
        ({"name": "a", "xyz": 1}, "xyz: no such field; choose from name, inner, many"),
        ({"name": "a", "inner": [7]}, "inner[0]: must have the fields count, shares; got 7"),
        ({"name": "a", "inner": [{"count": True}]}, "inner[0].count: must be a valid integer; got True"),
        ({"name": "a", "inner": [{"count": 1, "shares": {"a\nb": ""}}]}, "inner[0].shares.'a\\nb': must be a valid"),
        ({"name": ["x" * 10**6]}, "name: must be a valid string; got ['xxx"),
        # a list stops at its first error; in another place a thousand errors are too many to name
        ({"name": "a", "many": [1, *["x"] * 5000]}, "many[1]: must be a valid integer; got 'x'"),
        ({"name": "a", "inner": [{}] * 1001}, "1,001 of its values are not what they must be"),
    ],
)
def test_content_that_is_no_record_is_refused_in_one_line(value, said):
    with pytest.raises(ValueError, match=f"^{re.escape(said)}") as refused:
        checked(Outer, json.dumps(value).encode())
    assert len(str(refused.value)) < 300
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000, b'{"name": NaN}', b'{"name": ' + b"9" * 9000])
def test_content_that_is_no_json_is_refused_in_one_line(content):
    with pytest.raises(ValueError, match=r"\S") as refused:
        checked(Outer, content)
    assert len(str(refused.value)) < 300
    assert str(refused.value).isprintable()


def test_a_quoted_value_is_short():
    assert short("a") == "'a'"
    assert len(short("x" * 10**6)) < 110
    assert short(9**5000) == "a number of more than 300 digits"


@dataclass(frozen=True)
class Flat:
    __pydantic_config__ = OPEN

    name: str
    count: int = 0

    def __post_init__(self):
        if self.count > 9:
            raise ValueError("count: must be at most 9")


def test_a_mapping_is_a_record_whose_further_fields_are_ignored():
    assert checked_value(Flat, {"name": "a", "count": 2, "more": 1}) == Flat("a", 2)
    with pytest.raises(ValueError, match=r"^more: no such field"):
        checked_value(Inner, {"count": 1, "more": 1})


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"name": b"a"}, "name: must be a valid string; got b'a'"),
        ({"name": "a", "count": "1"}, "count: must be a valid integer; got '1'"),
        ({"name": "a", "count": 10}, "count: must be at most 9"),
        ({}, "name: this field is missing; add it"),
        (7, "must have the fields name, count; got 7"),
    ],
)
def test_a_value_that_is_no_record_is_refused_in_one_line(value, said):
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        checked_value(Flat, value)


def test_a_file_without_a_record_gives_none(tmp_path):
    path = tmp_path / "flat.json"
    assert find_record(Flat, path) is None
    for content in ("{", "[]", '{"name": 1}'):
        path.write_text(content)
        assert find_record(Flat, path) is None
    path.write_text('{"name": "a"}')
    assert find_record(Flat, path) == Flat("a")
    assert find_record(dict[str, int], path) is None
