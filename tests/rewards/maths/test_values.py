"""Values of formulas: exact ones, those by mpmath, and the points at which formulas are compared."""

from fractions import Fraction

import mpmath
import pytest

from openrlhf_cov.rewards.maths.latex import parse_formula
from openrlhf_cov.rewards.maths.normalization import clean
from openrlhf_cov.rewards.maths.values import NoValue, Undecided, difference, exact_value, numeric_value, points


def formula(text):
    return parse_formula(clean(text))


EXACT = [
    ("1+2-4", -1),
    ("2/3", Fraction(2, 3)),
    ("0.1+0.2", Fraction(3, 10)),  # not as floats
    ("2^{10}", 1024),
    ("2^{-2}", Fraction(1, 4)),
    ("0^0", 1),
    ("(-2)^3", -8),
    (r"\sqrt{16}", 4),
    (r"\sqrt{\frac{9}{4}}", Fraction(3, 2)),
    (r"\sqrt[3]{-27}", -3),
    ("5!", 120),
    ("0!", 1),
    ("25!", 15511210043330985984000000),
    (r"\binom{5}{2}", 10),
    (r"\binom{34}{9}", 52451256),
    (r"\binom{2}{5}", 0),
    ("|-5|", 5),
    (r"\lfloor -\frac{1}{2} \rfloor", -1),
    (r"\lceil -\frac{1}{2} \rceil", 0),
    (r"\gcd(12, 18)", 6),
    (r"\operatorname{lcm}(4, 6)", 12),
    (r"\max(1, \frac{3}{2})", Fraction(3, 2)),
    ("1^{999999999}", 1),
]
NOT_EXACT = [
    "x", r"\pi", r"\sqrt{2}", r"\sin 0", "2^{1/2}", "1/0", "0^{-1}", r"\sqrt{-4}", "(-1)!",
    r"(\frac12)!",
    r"\gcd(\frac12, 1)", "9^{9^9}", "(10^9)!", "2^{10^6}", "10^{10^{10}}", r"\binom{10^6}{5}",
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), EXACT)
def test_exact_value(text, value):
    assert exact_value(formula(text)) == value


@pytest.mark.parametrize("text", NOT_EXACT)
def test_no_exact_value(text):
    assert exact_value(formula(text)) is None


def test_exact_value_with_names():
    # 2 · 3² + 1/3 = 55/3
    assert exact_value(formula("2x^2 + 1/x"), {"x": Fraction(3)}) == Fraction(55, 3)
    assert exact_value(formula("x+y"), {"x": Fraction(3)}) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"\sqrt{2}", "1.41421356237309504880168872420969807856967187537694"),
        (r"\pi", "3.14159265358979323846264338327950288419716939937510"),
        ("e", "2.71828182845904523536028747135266249775724709369995"),
        (r"\sin 30^\circ", "0.5"),
        (r"\log_2 8", "3"),
        (r"\arctan 1 \cdot 4", "3.14159265358979323846264338327950288419716939937510"),
        (r"\tan^{-1} 1 \cdot 4", "3.14159265358979323846264338327950288419716939937510"),
        (r"\sqrt[3]{-8}", "-2"),
        ("(-8)^{1/3}", "-2"),
        ("(-8)^{2/3}", "4"),
        (r"\lfloor \pi \rfloor", "3"),
        (r"\cosh 0", "1"),
    ],
)
def test_numeric_value(text, value):
    with mpmath.workdps(60):
        assert abs(numeric_value(formula(text)).number - mpmath.mpf(value)) < mpmath.mpf(10) ** -49


@pytest.mark.parametrize(
    "text",
    [
        r"e^{i\pi} + 1",
        r"\sqrt{5+2\sqrt{6}} - \sqrt{2} - \sqrt{3}",  # the square of the last two is 5 + 2√6
        r"\sin\pi", r"\sin(10^6\pi)", r"\cos\frac{\pi}{2}", r"\arccos(\sin^2 1+\cos^2 1)", r"\log(\sin^2 1+\cos^2 1)",
        r"\arctan 1-\frac{\pi}{4}", r"\sqrt[3]{2+\sqrt5}+\sqrt[3]{2-\sqrt5}-1",
        r"\cosh^2 300-\sinh^2 300-1",  # 1 beside terms of 865 bits
    ],
)  # fmt: skip
def test_zero_is_exactly_zero(text):
    assert numeric_value(formula(text)).number == 0


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        (r"(2^{2024}+\pi)-2^{2024}", 2),  # π has 2 bits before the point
        (r"\sqrt{10^{200}+1}-10^{100}", -332),  # 1 / (2 · 10^100) = 2^-333.2
        (r"\sqrt[4]{10^{400}+1}-10^{100}", -998),  # 1 / (4 · 10^300) = 2^-998.6
        (r"\log(1+10^{-700})", -2325),  # 10^-700 = 2^-2325.3
        (r"e^{2000}+1-e^{2000}", 1),
        (r"\sin(10^{-400})", -1328),
        (r"\tanh(10^{-400})", -1328),
        (r"\frac{1}{2^{2024}+\pi}-\frac{1}{2^{2024}}", -4046),  # π / 2^4048
        ("\\frac{1" + "0" * 399 + "1}{1" + "0" * 400 + "}-1+0\\pi", -1328),  # 10^-400
    ],
)
def test_what_is_small_beside_its_terms_is_found(text, bits):
    assert int(mpmath.mag(numeric_value(formula(text)).number)) in (bits, bits - 1, bits + 1)


def test_complex_values():
    # (1 + i)² = 2i
    assert numeric_value(formula("(1+i)^2")).number == mpmath.mpc(0, 2)
    assert numeric_value(formula("10^{-500}i+5")).number.imag != 0


def test_real_values_come_from_real_steps():
    assert numeric_value(formula(r"\sqrt{x}"), {"x": Fraction(2)}).real
    assert not numeric_value(formula(r"\sqrt{x}^2"), {"x": Fraction(-2)}).real
    assert numeric_value(formula("x^{1/3}"), {"x": Fraction(-2)}).real


@pytest.mark.parametrize(("text", "value"), [("x!", "1.32934038817913702"), (r"\binom{x}{2}", "0.375")])
def test_factorials_between_whole_numbers(text, value):
    # 1.5! = Γ(2.5) = 3√π/4; 1.5 · 0.5 / 2
    assert abs(numeric_value(formula(text), {"x": Fraction(3, 2)}).number - mpmath.mpf(value)) < 1e-14


def test_equal_products_of_any_size_have_no_difference():
    assert difference(formula(r"2e^{10^6}\pi"), formula(r"\pi e^{10^6}\cdot 2")).number == 0
    assert difference(formula(r"2e^{10^6}\pi"), formula(r"3e^{10^6}\pi")).number != 0


@pytest.mark.parametrize(
    "text",
    [
        r"\frac{1}{0}", r"\log 0", "0^{-1}", "(-1)!", r"(\frac{2007}{2008})! + \pi", r"\tan\frac{\pi}{2}",
        r"\frac{1}{\sqrt{5+2\sqrt{6}} - \sqrt{2} - \sqrt{3}}", r"\max(i, 2)", r"i!",
        r"\lfloor i \rfloor", r"\gcd(\frac12, 3)", r"\tan^{-1} i",
    ],
)  # fmt: skip
def test_no_value(text):
    with pytest.raises(NoValue):
        numeric_value(formula(text))


@pytest.mark.parametrize(
    "text",
    [
        "9^{9^{9^9}}", "10^{10^{10}}", r"e^{e^{e^{e^e}}}", r"\sin(10^{10})", "((10^9)!)!", r"\binom{10^{20}}{5}",
        r"10^{10^6}+\pi", r"\pi+10^{-10^6}",
    ],
)  # fmt: skip
def test_what_takes_too_many_digits_is_undecided(text):
    with pytest.raises(Undecided):
        numeric_value(formula(text))


def test_rounding_is_not_upset_by_the_last_digits():
    # (√2)² is a little more or less than 2 at any precision; its floor is 2
    assert numeric_value(formula(r"\lfloor (\sqrt{2})^2 + 0\pi \rfloor")).number == 2
    assert numeric_value(formula(r"\lceil (\sqrt{3})^2 + 0\pi \rceil")).number == 3
    assert numeric_value(formula(r"\lceil (\sqrt{3})^2 + 10^{-300} \rceil")).number == 4


@pytest.mark.parametrize(
    ("a", "b", "whole"),
    [
        ("2n", "n^2", {"n"}),  # a letter for whole numbers
        ("x+k", "k", {"k"}),
        (r"\gcd(x,12)", "x", {"x"}),  # a divisor is whole
        (r"\lfloor x\rfloor", "x", set()),  # a letter for any number
    ],
)
def test_names_that_are_whole(a, b, whole):
    for point in points(*(formula(text) for text in (a, b))):
        assert {name for name, value in point.items() if value.denominator == 1} == whole
