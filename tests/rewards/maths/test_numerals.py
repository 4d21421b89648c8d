from fractions import Fraction

import pytest

from openrlhf_cov.rewards.maths.numerals import MAX_DIGITS, Number, numbers_equal, parse_number

EXACT = [
    ("0", 0),
    ("025", 25),
    ("-7", -7),
    ("- 7", -7),
    ("+7", 7),
    ("27.0", 27),  # only zeros after the point: an integer
    ("5.", 5),
    ("1,234,567", 1234567),
    ("1 000", 1000),
    ("12 345 678", 12345678),
    ("{5}", 5),
    ("3/4", Fraction(3, 4)),
    ("-3/4", Fraction(-3, 4)),
    ("(3)/(4)", Fraction(3, 4)),
    (r"\frac{3}{4}", Fraction(3, 4)),
    (r"\frac34", Fraction(3, 4)),
    (r"\frac{-3}{4}", Fraction(-3, 4)),
    (r"\frac{6}{-8}", Fraction(-3, 4)),
    ("1 3/4", Fraction(7, 4)),
    (r"1\frac{3}{4}", Fraction(7, 4)),
    (r"-1 \frac34", Fraction(-7, 4)),
    (r"0.\overline{3}", Fraction(1, 3)),
    (r"0.1\overline{6}", Fraction(1, 6)),  # 1/10 + 6/90 = 15/90
    (r"2.\overline{142857}", Fraction(15, 7)),  # 2 + 1/7
]
INEXACT = [
    ("0.5", Fraction(1, 2)),
    (".5", Fraction(1, 2)),
    ("1,234.5", Fraction(2469, 2)),
    ("1.5e3", 1500),
    ("1.5E-3", Fraction(3, 2000)),
    (r"1.5 \times 10^{3}", 1500),
    (r"5 \cdot 10^{-3}", Fraction(1, 200)),
    ("2*10^6", 2000000),
]
NONE = [
    "", "x", "5x", "5 6", "1 00", "1 0000", "1,23", "1,2345", "1/0", r"\frac{1}{0}", "1/2/3", "5!", "2^3", r"\sqrt{4}",
    "1e9999999", "e5", "5e", ".", "-", "nan", "inf", r"\infty", r"1 \frac{5}{3}", r"1\frac{-1}{2}", "1..2", "1.2.3",
    "0x10", "1_000", "{5", "5}", r"1.5\frac12", "9" * (MAX_DIGITS + 1),
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), EXACT)
def test_integers_and_fractions_are_exact(text, value):
    assert parse_number(text) == Number(Fraction(value), exact=True)


@pytest.mark.parametrize(("text", "value"), INEXACT)
def test_decimals_are_not(text, value):
    assert parse_number(text) == Number(Fraction(value), exact=False)


@pytest.mark.parametrize("text", NONE)
def test_what_has_to_be_computed_is_no_number(text):
    assert parse_number(text) is None


def test_the_longest_number():
    assert parse_number("9" * MAX_DIGITS) == Number(Fraction(10**MAX_DIGITS - 1))


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        ("1/3", "2/6", True),
        ("1/3", "0.333333", True),  # off by 3.3e-7, which is 1e-6 of the value
        ("1/3", "0.33333", False),  # 3.3e-6
        ("2/3", "0.666667", True),
        ("166667/500000", "0.333333", False),  # 0.333334: a whole unit more is not cut off
        ("3.14159", "3.141594", True),  # half a unit of the sixth digit is 5e-6
        ("3.14159", "3.141596", False),
        ("0.00000123456", "0.00000123457", False),  # relative, so tiny numbers are not all zero
        ("0.0000012345612", "0.0000012345614", False),
        ("0.0000001", "0", False),
        ("1000000", "1000000.4", False),  # an integer is exact
        ("5", "5.0000000001", False),  # however near
        ("5", "5.00000001", False),
        ("1000001", "1000000", False),
        ("123456789/7", "123456790/7", False),
        ("1000000.5", "1000000.9", False),  # 4e-7 apart, relatively, but one digit after the point is meant
        ("1000000.55", "1000000.552", True),
        ("123456.4", "123456.3", False),
        ("12345678.5", "12345680.5", False),
        ("1234567.301", "1234567.31", False),  # 0.009 apart, and half a cent is 0.005
        ("1234567.309", "1234567.30", False),  # the zero is a digit
        ("1234567.301", "1234567.30", True),
        ("98765.4", "98765.432", True),  # half of 0.1 is 0.05
        ("123456.7", "123456.71", True),  # amounts of money
        ("100000e0", "10000004e-2", True),  # half a unit of the last digit is 0.5
        ("1234567.30", "1234567.31", False),
        ("12345680", "12345678.5", False),
        ("6.02214e23", "6.02214076e23", True),  # all six digits that the one has
        ("6.02214e23", "6.02215e23", False),
    ],
)
def test_numbers_equal(a, b, equal):
    """A number equals a label that is less precise, or a label that is exact; here in one order or the other."""
    first, second = parse_number(a), parse_number(b)
    assert (numbers_equal(first, second) or numbers_equal(second, first)) is equal


@pytest.mark.parametrize(
    ("answer", "label", "equal"),
    [
        ("3.141594", "3.14159", True),  # half a unit of the last digit of the label is 5e-6
        ("3.14159", "3.141594", False),  # as near to 3.141592: one answer for two labels
        ("3.14159", "3.141592", False),
        ("1/7", "0.142857", True),
        ("0.142857", "1/7", True),
        ("0.14286", "1/7", False),  # five digits
        ("0.142857", "0.1428571", False),
        ("0.1428571", "0.142857", True),
    ],
)
def test_a_decimal_label_is_rounded_by_the_answer_and_not_the_other_way(answer, label, equal):
    assert numbers_equal(parse_number(answer), parse_number(label)) is equal


def test_percent():
    assert Number(Fraction(50)).hundredth == Number(Fraction(1, 2))
