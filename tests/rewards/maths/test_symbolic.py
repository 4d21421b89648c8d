import pytest

from openrlhf_cov.rewards.maths.latex import parse_formula
from openrlhf_cov.rewards.maths.normalization import clean
from openrlhf_cov.rewards.maths.symbolic import compare_texts, formulas_equal

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
    # with names: the same ones, and equal values
    ("(x+1)^2", "x^2+2x+1", True),
    ("(x+1)^2", "x^2+1", False),
    ("x", "y", False),
    ("x-x", "0", False),  # other names
    (r"\frac{x^2-1}{x-1}", "x+1", True),
    (r"\sin^2 x", r"1-\cos^2 x", True),
    (r"\binom{n}{2}", r"\frac{n(n-1)}{2}", True),
    (r"\frac{(2n)!}{n!n!}", r"\binom{2n}{n}", True),
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
    ("answer", "gold", "equal"),
    [
        ("2x-y+3=0", "y=2x+3", True),
        ("y=2x+3", "2x-y+3=0", True),
        ("2y=4x+6", "y=2x+3", True),  # a constant factor
        ("y-3=2x", "y=2x+3", True),
        ("y=2x", "y=2x+3", False),
        ("x=2y+3", "y=2x+3", False),
        ("xy=2x^2+3x", "y=2x+3", False),  # the factor x is none
        ("xy=1", r"\frac{1}{x}=y", True),  # the label has the denominator
        ("x^2+y^2=2", "x^2+y^2=4", False),
        ("x^2=4-y^2", "x^2+y^2=4", True),
        ("y=|x|", "y=x", False),
        ("2y<2x", "y<x", True),
        ("-y<-x", "y<x", False),
        ("x>y", "y<x", True),
        (r"\sqrt{8}, 1", r"1, 2\sqrt{2}", True),
        (r"(1, \sqrt{8})", r"(2\sqrt{2}, 1)", False),
        (r"\pm \sqrt{8}", r"2\sqrt{2}, -2\sqrt{2}", True),
        (r"x = \sqrt{8}", r"2\sqrt{2}", True),
        (r"9 \frac{1}{11}\%", r"\frac{1}{11}", True),
        (r"\int f", r"\sqrt{2}", None),
        (r"\int f, 5", r"\sqrt{2}, 6", False),  # 5 has no partner, whatever the integral is
    ],
)
def test_compare_texts(answer, gold, equal):
    assert compare_texts(clean(answer), clean(gold)) is equal


@pytest.mark.parametrize(
    ("answer", "gold", "prompt", "equal"),
    [
        ("y=Ae^x", "y=Ce^x", "Solve $y'=y$.", True),  # another name for a constant that the problem does not have
        ("y=kx", "y=cx", "Find all $f$ with $f(x)=x f(1)$.", True),
        ("y=Ae^x", "y=Ce^x", "", False),  # it is not known which names the problem has
        ("y=Ae^t", "y=Ce^x", "Solve $y'=y$ for $t$ and $x$.", False),
        ("f(x)=2x+1", "y=2x+1", "Find the line.", True),
        ("g(x)=2x+1", "f(x)=2x+1", "Find $f$, if $g$ is given.", False),
        ("{}_5C_2 x", r"\binom{5}{2}x", "", True),
        (r"\lg 2", r"\log_{10} 2", "", True),
        (r"\lg 2", r"\ln 2", "", False),
    ],
)
def test_names_and_notations(answer, gold, prompt, equal):
    assert compare_texts(clean(answer), gold, prompt) is equal
