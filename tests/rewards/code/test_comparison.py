"""Which outputs and values are the ones that a test expects."""

import math
import time
from collections import Counter, namedtuple
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_cov.rewards.code.comparison import JUDGES, Unlike, compare_outputs, read_value, same_value
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


def accepting(output, expected):
    """The judges that take the output for the expected one."""
    return {judge for judge in JUDGES if compare_outputs(output, expected, judge=judge) == "same"}


ALL = {"exact", "plain", "livecodebench", "apps", "prime"}
BY_NUMBER = ALL - {"exact"}
NEAR = {"apps", "prime"}


@pytest.mark.parametrize(
    ("output", "expected", "judges"),
    [
        ("3\n", "3", ALL),
        ("3.0", "3", BY_NUMBER),
        ("0.50", "0.5", BY_NUMBER),
        ("1  2", "1 2", BY_NUMBER),
        ("+3 -0 1e3 .5 2.", "3 0 1000 0.5 2", BY_NUMBER),
        ("007", "7", BY_NUMBER),
        ("a  b", "a b", BY_NUMBER - {"livecodebench"}),  # a line with words is a text to that judge
        ("Case 1: 0.50", "Case 1: 0.5", BY_NUMBER - {"livecodebench"}),
        ("1\n\n2", "1\n2", NEAR),  # empty lines
        ("0.333333", "0.333334", NEAR),
        ("1e-9", "0", NEAR),  # within 1e-8
        ("5.0000001", "5", NEAR),
        ("2.00001", "2", NEAR),
        # 1e-5 of an expected whole number is too much: it can be guessed by its first digits
        ("1000000.9", "1000000", set()),
        ("1000001", "1000000", set()),
        ("123456.7", "123457", set()),
        ("1000000.9", "1000000.5", NEAR),
        ("0.0004", "0.0", set()),  # three decimals are not enough
        ("50000000000000000", "50000000000000001", set()),
        ("2 1", "1 2", set()),  # APPS compares sets of words in the end
        ("1 1 2", "1 2", set()),
        ("3\n3", "3", set()),
        ("3 4", "3", set()),
        ("", "3", set()),
        ("Yes", "YES", set()),
        ("1\n2", "1 2", set()),
        # what is no number in ASCII digits equals its own spelling alone
        ("nan", "nan", ALL),
        ("nan", "3", set()),
        ("NaN", "nan", set()),
        ("inf", "1e308", set()),
        ("1e400", "inf", set()),
        ("Infinity", "inf", BY_NUMBER),  # Python prints inf, Java and the decimal module Infinity
        ("-inf", "-Infinity", BY_NUMBER),
        ("-inf", "inf", set()),
        ("1e999999999", "1e999999998", set()),
        ("1_0", "10", set()),
        ("３", "3", set()),
        ("0x3", "3", set()),
        ("1e400", "2e400", set()),
        ("True", "1", set()),
    ],
)
def test_outputs_by_the_rule_of_each_judge(output, expected, judges):
    assert accepting(output, expected) == judges


@given(st.decimals(allow_nan=False, allow_infinity=False), st.decimals(allow_nan=False, allow_infinity=False))
def test_numbers_are_equal_to_the_judges_where_python_says_so(one, other):
    for judge in ("plain", "livecodebench"):
        # exponents of more than six digits are no numbers to us
        if all(abs(each.as_tuple().exponent) < 10**5 for each in (one, other)):
            assert (compare_outputs(f"{one}", f"{other}", judge=judge) == "same") == (one == other)
        assert compare_outputs(f"{one:f}" if abs(one.adjusted()) < 50 else f"{one}", f"{one}", judge=judge) == "same"


@pytest.mark.slow
@pytest.mark.parametrize("judge", JUDGES)
@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("9" * 4_000_000, "9" * 3_999_999 + "8"),
        ("1e999999 " * 100_000, "2e999999 " * 100_000),
        ("1 " * 1_000_000, "2 " * 1_000_000),
        ("0." + "0" * 2_000_000 + "1", "0"),
        ("1\n" * 1_000_000, "1.0\n" * 999_999),
        ("9" * 4_000_000 + "x", "9"),
    ],
    ids=["digits", "exponents", "words", "zeros", "lines", "no number"],
)
def test_huge_outputs_take_little_time(judge, output, expected):
    started = time.process_time()
    compare_outputs(output, expected, judge=judge)
    assert time.process_time() - started < 10.0


def test_judges_with_the_other_options():
    assert compare_outputs("2.0\n1\n", "1\n2\n", unordered=True, judge="plain") == "same"
    assert compare_outputs("0.3334", "0.3333", tolerance=1e-3, judge="livecodebench") == "same"
    assert compare_outputs("0.3334", "0.3333", judge="livecodebench") == "different"
    assert compare_outputs("1 2", "1\n2", judge="apps") == "presentation"


def test_outputs_in_any_order():
    assert compare_outputs("b\na\n", "a\nb\n", unordered=True) == "same"
    assert compare_outputs("a\na\nb\n", "a\nb\nb\n", unordered=True) == "different"
    # Numbers have the order of their values: "11" is before "9.9999999" as a text, and ".5" before "0.7".
    assert compare_outputs("11\n9.9999999\n", "10\n11\n", tolerance=1e-6, unordered=True) == "same"
    assert compare_outputs("11\n9.9\n", "10\n11\n", tolerance=1e-6, unordered=True) == "different"
    assert compare_outputs(".5\n0.7\n", "0.5\n.7\n", unordered=True, judge="plain") == "same"
    assert compare_outputs("b 10\nb 9.0\na x\n", "a x\nb 9\nb 10\n", unordered=True, judge="plain") == "same"


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
