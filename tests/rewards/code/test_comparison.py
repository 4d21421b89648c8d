"""Which outputs and values are the ones that a test expects."""

import math
from collections import Counter, namedtuple
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_cov.rewards.code.comparison import Unlike, compare_outputs, read_value, same_value
from openrlhf_cov.rewards.code.inside import wire


@pytest.mark.parametrize(
    ("output", "expected", "likeness"),
    [
        ("3\n", "3", "same"),
        ("3", "3\n\n", "same"),
        ("  3  \r\n", "3\n", "same"),
        ("1 2\n3\n", "1 2  \n3", "same"),
        ("1  2\n", "1 2\n", "presentation"),
        ("1\n2\n", "1 2\n", "presentation"),
        ("1\n\n2\n", "1\n2\n", "presentation"),
        ("3.0\n", "3\n", "different"),
        ("Yes\n", "YES\n", "different"),
        ("", "\n", "same"),
        ("", "0\n", "different"),
        ("2\n1\n", "1\n2\n", "different"),
    ],
)
def test_outputs(output, expected, likeness):
    assert compare_outputs(output, expected) == likeness


@pytest.mark.parametrize(
    ("output", "expected", "likeness"),
    [
        ("0.3333333", "0.33333334", "same"),
        ("1000000.4", "1000000.5", "same"),  # 1e-7 of it
        ("0.334", "0.333", "different"),
        ("x 1.0000001", "x 1", "same"),
        ("y 1", "x 1", "different"),
        ("nan", "1", "different"),
        ("inf", "1e308", "different"),
        ("1e400", "2e400", "different"),
        ("1_0", "10", "different"),
    ],
)
def test_outputs_with_a_tolerance(output, expected, likeness):
    assert compare_outputs(output, expected, tolerance=1e-6) == likeness


def test_outputs_in_any_order():
    assert compare_outputs("b\na\n", "a\nb\n", unordered=True) == "same"
    assert compare_outputs("a\na\nb\n", "a\nb\nb\n", unordered=True) == "different"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, 3),
        ((1, [2, (3,)]), [1, [2, [3]]]),
        (True, 1),
        (2.0, 2),
        (Decimal("1.5"), 1.5),
        (Fraction(1, 2), 0.5),
        (math.nan, math.nan),
        (None, None),
        ("x", "x"),
    ],
)
def test_values_that_are_the_same(value, expected):
    assert same_value(value, expected)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, 4),
        ("3", 3),
        ([1, 2], [2, 1]),
        ([1], [1, 1]),
        ({1, 2}, [1, 2]),
        (None, 0),
        ([], None),
        (math.nan, 1.0),
        ({"a": 1}, {}),
        (Decimal("sNaN"), 1.0),
        (Decimal("1e999999999"), 1.0),
    ],
)
def test_values_that_are_not(value, expected):
    assert not same_value(value, expected)


def test_values_in_any_order_and_with_a_tolerance():
    assert same_value([[2], [1]], [[1], [2]], unordered=True)
    assert not same_value([1, 1, 2], [1, 2, 2], unordered=True)
    assert same_value([0.1 + 0.2], [0.3], tolerance=1e-9)
    assert not same_value([0.1 + 0.2], [0.3])
    assert not same_value(10**400, 1.0, tolerance=1e-6)  # beyond any float


def test_a_value_that_is_too_deep_is_none():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    assert not same_value(deep, [])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({1: "a", None: 2, False: 3, 1.5: 4}, {"1": "a", "null": 2, "false": 3, "1.5": 4}),
        (Counter("aab"), {"a": 2, "b": 1}),
        ((1, (2,)), [1, [2]]),
        (namedtuple("Point", "x y")(1, 2), [1, 2]),
        (2**70, 2**70),
    ],
)
def test_values_as_json_has_them(value, expected):
    assert same_value(read_value(wire.dump(value)), expected)


@pytest.mark.parametrize("value", [{1, 2}, frozenset([1]), b"a", range(3), 1j, {1: 2, "1": 3}, Fraction(1, 10**9999)])
def test_values_that_no_json_has(value):
    assert isinstance(read_value(wire.dump(value)), Unlike)


@pytest.mark.slow
def test_keys_that_collide_take_no_time():
    colliding = [(2**61 - 1) * each for each in range(200_000)]  # all of hash 0
    packed = [wire.dump(each) for each in colliding]
    assert isinstance(read_value({"set": packed}), Unlike)
    assert len(read_value({"dict": [part for each in packed for part in (each, 0)]})) == 200_000


@pytest.mark.slow
def test_many_values_in_any_order():
    values = [[each, each + 1] for each in range(100_000)]
    assert same_value(values[::-1], values, unordered=True)
    assert not same_value([[-1, -1], *values[1:]], values, unordered=True)
    assert same_value([each + 1e-9 for each in range(5000)], list(range(5000))[::-1], tolerance=1e-6, unordered=True)


plain = st.recursive(
    st.integers() | st.text() | st.none() | st.booleans(), lambda inner: st.lists(inner), max_leaves=8
)


@given(plain)
def test_everything_is_itself(value):
    assert same_value(value, value)


@given(st.text(), st.text())
def test_likeness_is_symmetric(one, other):
    assert compare_outputs(one, other) == compare_outputs(other, one)
