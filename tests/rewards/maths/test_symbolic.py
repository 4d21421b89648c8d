import pytest

from openrlhf_cov.rewards.maths.latex import parse_formula
from openrlhf_cov.rewards.maths.normalization import clean
from openrlhf_cov.rewards.maths.structure import parse_answer
from openrlhf_cov.rewards.maths.symbolic import compare_texts, equations_equal, formulas_equal

FORMULAS = [
    # without names: exact, or to 600 digits
    ("2/4", "1/2", True),
    (r"\sqrt{8}", r"2\sqrt{2}", True),
    (r"\sqrt{5+2\sqrt{6}}", r"\sqrt{2}+\sqrt{3}", True),  # the square of the right side is 5 + 2√6
    (r"\frac{2}{\sqrt{3}}", r"\frac{2\sqrt{3}}{3}", True),
    (r"\cos 40^\circ", r"\sin 50^\circ", True),
    (r"\sqrt{2}", r"\sqrt{3}", False),
    ("e^{100}+1", "e^{100}", False),
    (r"\sqrt{2}+10^{-50}", r"\sqrt{2}", False),
    ("2^{100}+1", "2^{100}", False),
    ("4^{50}", "2^{100}", True),
    # a decimal: 6 digits
    (r"\sqrt{2}", "1.41421", True),
    (r"\sqrt{2}", "1.4142", False),
    (r"\pi", "22/7", False),
    # a value or the way to it
    ("1024", "2^{10}", True),
    ("1023", "2^{10}-1", True),
    ("3072", r"3\cdot 2^{10}", True),
    ("120", "5!", True),
    ("5", "2+3", False),
    ("1591", r"37\cdot 43", False),
    ("1591", r"37\cdot 43\cdot 0!", False),
    ("1591", r"(37\cdot 43)^1", False),
    ("25", "(2+3)^2", False),
    ("25", "0!+24", False),
    ("4", r"\sqrt{16}", False),
    ("3", r"\log_2 8", False),
    ("5", r"\max(3,5)", False),
    # with names: the same ones, and equal values
    ("(x+1)^2", "x^2+2x+1", True),
    ("(x+1)^2", "x^2+1", False),
    ("x", "y", False),
    ("x-x", "0", False),  # other names
    (r"\frac{x^2-1}{x-1}", "x+1", True),
    (r"\sin^2 x", r"1-\cos^2 x", True),
    (r"\binom{n}{2}", r"\frac{n(n-1)}{2}", True),
    (r"\frac{(2n)!}{n!n!}", r"\binom{2n}{n}", True),
    (r"\frac{x}{3}", "0.333333x", True),
    (r"\frac{x}{3}", "0.33x", False),
    (r"\sqrt{x^2}", "|x|", True),
    (r"\sqrt{x^2}", "x", False),
    # what small or whole points alone would not show
    (r"\lfloor x \rfloor", "x", False),
    (r"\lceil \frac{n}{2} \rceil", r"\lfloor \frac{n+1}{2} \rfloor", True),  # n is whole by its name
    (r"\lceil \frac{x}{2} \rceil", r"\lfloor \frac{x+1}{2} \rfloor", False),
    (r"n+\lfloor \frac{n}{100} \rfloor", "n", False),
    (r"n+\lfloor \frac{1}{n} \rfloor", "n", False),
    (r"n!+\lfloor \frac{n}{30} \rfloor", "n!", False),
    (r"\min(n,100)", "n", False),
    ("|x+100|-100", "x", False),
    # no value anywhere is equal to nothing
    (r"\frac{x}{0}", r"\frac{2x}{0}", False),
    (r"\frac{1}{x-x}", r"\frac{2}{x-x}", False),
    ("x^{x^{x^x}}", "x^{x^{x^x}}+1", False),
]


@pytest.mark.parametrize(("a", "b", "equal"), FORMULAS)
def test_formulas_equal(a, b, equal):
    first, second = (parse_formula(clean(text)) for text in (a, b))
    assert formulas_equal(first, second) is equal
    assert formulas_equal(second, first) is equal


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        ("y=2x+3", "2x-y+3=0", True),
        ("y=2x+3", "2y=4x+6", True),  # a constant factor
        ("y=2x+3", "y-3=2x", True),
        ("y=2x+3", "y=2x", False),
        ("y=2x+3", "x=2y+3", False),
        ("y=2x+3", "xy=2x^2+3x", False),  # the factor x is none
        ("y=y", "x=x", False),
        ("y=y", "y=2", False),
        ("0=0", "1=1", False),
        ("x^2+y^2=4", "x^2+y^2=2", False),
        ("y=|x|", "y=x", False),
        (r"\sum=1", r"\sum=1", None),
    ],
)
def test_equations_equal(a, b, equal):
    first, second = parse_answer(a), parse_answer(b)
    assert equations_equal(first, second) is equal
    assert equations_equal(second, first) is equal


@pytest.mark.parametrize(
    ("answer", "gold", "equal"),
    [
        (r"\sqrt{8}, 1", r"1, 2\sqrt{2}", True),
        (r"(1, \sqrt{8})", r"(2\sqrt{2}, 1)", False),
        (r"\pm \sqrt{8}", r"2\sqrt{2}, -2\sqrt{2}", True),
        (r"x = \sqrt{8}", r"2\sqrt{2}", True),
        (r"9 \frac{1}{11}\%", r"\frac{1}{11}", True),
        (r"\sqrt{4}\%", r"\frac{\sqrt{4}}{100}", True),
        (r"\int f", r"\sqrt{2}", None),
        (r"\int f, 5", r"\sqrt{2}, 6", False),  # 5 has no partner, whatever the integral is
    ],
)
def test_compare_texts(answer, gold, equal):
    assert compare_texts(clean(answer), clean(gold)) is equal
    assert compare_texts(clean(gold), clean(answer)) is equal
