from fractions import Fraction

import pytest

from openrlhf_cov.rewards.maths.latex import parse_formula
from openrlhf_cov.rewards.maths.normalization import clean
from openrlhf_cov.rewards.maths.values import exact_value


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
    r"(\frac12)!", r"\binom{2}{5}",
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
