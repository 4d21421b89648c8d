import pytest

from openrlhf_cov.rewards.maths.names import MAX_NAME, name_of
from openrlhf_cov.rewards.maths.normalization import clean

NAMES = [
    ("x", "x"), ("x_{12}", "x_12"), ("y'", "y'"), (r"\hat{p}", r"\hatp"), (r"x_{\max}", r"x_\max"), ("x^2", "x^2"),
    ("f(x)", "f"), ("f(2)", "f(2)"), ("f^{-1}(2)", "f^-1(2)"), (r"(f\circ g)(2)", r"(f\circg)(2)"),
    ("P(A)", "P(A)"), (r"\mathbb{E}[X]", r"\mathbbE[X]"), (r"\Pr(X > 2)", r"\Pr(X>2)"),
    ("AB", "AB"), (r"\overline{AB}", "AB"), (r"\left|AB\right|", "AB"), ("AB^2", "AB^2"), ("[ABC]", "[ABC]"),
    (r"m\angle ABC", r"\angleABC"), (r"\angle{ABC}", r"\angleABC"), (r"\cos 2\theta", r"\cos2\theta"),
    (r"\frac{AB}{CD}", r"\fracABCD"), ("a/b", "a/b"), ("S_1:S_2", "S_1:S_2"), ("(x, y)", "(x,y)"),
    (r"\text{Anna}", "Anna"), ("Anna", "Anna"), ("area", "area"), (r"\text{Area of } ABC", "AreaofABC"),
    (r"\lim_{x\to 0} f(x)", r"\lim_x\to0f"), (r"\gcd(a,b)", r"\gcd"), (r"\Delta x", r"\Deltax"),
]  # fmt: skip
NO_NAMES = [
    "", "5", "2x", "xy", "x+y", "-x", "(5)", "[5]", "(x)", "|x|", r"\frac{x}{2}", r"\sqrt{x}", r"\log_2 x", "e^2",
    "e^x", "2^x", "x^y", "x^{n}", "f(0)+f(1)", "n!", "sin", r"\text{not}", r"\text{wrong answer}", r"\text{guess}", 
    "f(2", "f)2(",
    "x" * (MAX_NAME + 1), "(1, 2)", "[1, 2]",
]  # fmt: skip


@pytest.mark.parametrize(("text", "key"), NAMES)
def test_a_name_has_one_spelling(text, key):
    assert name_of(clean(text)) == key


@pytest.mark.parametrize("text", NO_NAMES)
def test_formulas_numbers_and_doubts_name_nothing(text):
    assert name_of(clean(text)) is None
