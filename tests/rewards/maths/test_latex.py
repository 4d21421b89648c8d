from fractions import Fraction

import pytest

from openrlhf_cov.rewards.maths.latex import (
    MAX_DEPTH,
    MAX_LENGTH,
    FormulaKeys,
    Node,
    Refused,
    is_number,
    parse_formula,
    tokenize,
)
from openrlhf_cov.rewards.maths.normalization import clean


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("2x+1", ["2", "x", "+", "1"]),
        ("1,234.5", ["1,234.5"]),
        ("max(1,2)", [r"\max", "(", "1", ",", "2", ")"]),
        ("x**2", ["x", "^", "2"]),
        (r"\frac {1}{2}", [r"\frac", "{", "1", "}", "{", "2", "}"]),
        ("sinx", ["s", "i", "n", "x"]),
        ("sin x", [r"\sin", "x"]),
        ("2pi", ["2", r"\pi"]),
        (r"\text{sin}(x)", [r"\sin", "(", "x", ")"]),
        (r"\text{x}", ["x"]),
        (r"\text{Area}", ["name:Area"]),
        ("", []),
    ],
)
def test_tokens(text, tokens):
    assert tokenize(text) == tokens


@pytest.mark.parametrize(
    "text", ["x;y", "x<1", "1:2", "5%", "`5`", '"5"', "x@y", "#", "&", "é", "\x00", "\ud800", "\\"]
)
def test_signs_that_are_not_on_the_list_are_refused(text):
    with pytest.raises(Refused, match="unexpected"):
        tokenize(text)


def test_is_number():
    assert [is_number(token) for token in ("5", ".5", "x", r"\pi", None)] == [True, True, False, False, False]


def show(node):
    """A formula as nested lists of its operations."""
    if node.kind in ("num", "decimal"):
        return node.value
    if node.kind == "sym":
        return node.name
    return (node.kind, *map(show, node.args)) if node.args else node.kind


FORMULAS = [
    ("1+2-3", ("add", ("add", 1, 2), ("neg", 3))),
    ("2x", ("mul", 2, "x")),
    ("-x^2", ("neg", ("pow", "x", 2))),  # the power binds more tightly than the sign
    ("2^-1", ("pow", 2, ("neg", 1))),
    ("2^{3^2}", ("pow", 2, ("pow", 3, 2))),
    ("x^12", ("pow", "x", 12)),  # as typed
    ("a/b c", ("mul", ("div", "a", "b"), "c")),
    ("a/bc", ("mul", ("div", "a", "b"), "c")),
    (r"\frac12", ("div", 1, 2)),
    (r"\frac123", ("mul", ("div", 1, 2), 3)),
    (r"\frac\pi2", ("div", "pi", 2)),
    (r"2\frac13", Fraction(7, 3)),  # a mixed number
    (r"2\frac43", ("mul", 2, ("div", 4, 3))),  # is none
    (r"x\frac13", ("mul", "x", ("div", 1, 3))),
    (r"\sqrt2", ("root", 2, 2)),
    (r"\sqrt[3]{x}", ("root", "x", 3)),
    (r"10 \div 2", ("mul", 10, ("div", 1, 2))),
    (r"\sin x", ("sin", "x")),
    (r"\sin 2x + 1", ("add", ("sin", ("mul", 2, "x")), 1)),
    (r"\sin x \cos y", ("mul", ("sin", "x"), ("cos", "y"))),
    (r"\sin^2 x", ("pow", ("sin", "x"), 2)),
    (r"\sin^{-1} x", ("asin", "x")),
    (r"\arcsin x", ("asin", "x")),
    (r"\log_2 8", ("div", ("log", 8), ("log", 2))),
    (r"\ln x", ("log", "x")),
    (r"\sin 30^\circ", ("sin", ("degrees", 30))),
    ("|x|", ("abs", "x")),
    ("|x|y|z|", ("mul", ("mul", ("abs", "x"), "y"), ("abs", "z"))),
    (r"\lfloor x \rfloor", ("floor", "x")),
    (r"\lceil x \rceil", ("ceil", "x")),
    ("5!", ("factorial", 5)),
    (r"\binom{5}{2}", ("binom", 5, 2)),
    (r"\gcd(4, 6)", ("gcd", 4, 6)),
    ("x_1 + x_{12}", ("add", "x_1", "x_12")),
    ("f'", "f'"),
    ("e^{i\\pi}", ("pow", "e", ("mul", "i", "pi"))),  # to be computed, as are powers of i
    ("e^{i x}", ("pow", "e", ("mul", "i", "x"))),
    (r"\cos(x)^2", ("pow", ("cos", "x"), 2)),
    (r"\operatorname{arsinh} x", ("asinh", "x")),
    (r"\sinh^{-1} x", ("asinh", "x")),
    (r"\hat{x} + 1", ("add", "hat x", 1)),
    (r"i^6", ("pow", "i", 6)),
    # the variable of a sum or an integral has no name of its own
    (r"\sum_{k=1}^{n} k x", ("sum", 1, "n", ("mul", "bound 0", "x"))),
    (r"\prod_{i=1}^n a_{i+1}", ("prod", 1, "n", "a_bound 0+1")),
    (r"\int_0^x t^2\,dt", ("int", 0, "x", ("pow", "bound 0", 2))),
    (r"\lim_{x\to\infty} f", ("lim", "infty", 0, "f")),
    (r"\alpha", r"\alpha"),
    (r"\text{Area}", "name:Area"),
    ("0.5", Fraction(1, 2)),
]


@pytest.mark.parametrize(("text", "expected"), FORMULAS)
def test_formula(text, expected):
    assert show(parse_formula(clean(text))) == expected


def test_a_decimal_is_marked():
    assert parse_formula("0.5") == Node("decimal", value=Fraction(1, 2))
    assert parse_formula("2.0") == Node("num", value=Fraction(2))


REFUSED = [
    "", "+", "2 3", "(1", "1)", "[1)", "x y)", "1+", "^2", "x^", "!", "5'", r"\frac{1}", r"\frac{}{}",
    r"\sqrt{}", r"\foo", "x!y^",
    r"\sum k", r"\infty", r"\lim_{x} 5", r"\int_0^1 x", r"\hat{xy}", 
    r"\sum_{k}^n k", r"\sum_{2=1}^n k", r"\int x", r"x=1", 
    r"\lim x", r"\input{x}", r"\write18", r"\sin_2 x", "__import__",
    "f'{2}'", "|x", "||||",
    r"\underbrace{1}", r"\phantom{1}5", r"\cancel{5}", "5_6",
]  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_everything_else_is_refused(text):
    with pytest.raises(Refused):
        parse_formula(clean(text))


@pytest.mark.parametrize(
    ("opening", "inside", "closing"),
    [
        ("(", "x", ")"), ("{", "x", "}"), (r"\sqrt{", "x", "}"), (r"\frac{1}{", "x", "}"), ("x^{", "x",
        "}"), ("x^", "x", ""),
        (r"\sin ", "x", ""), (r"\sqrt ", "x", ""), (r"\frac1", "x", ""), (r"\lfloor ", "x", r"\rfloor "),
        ("-(", "x", ")"),
    ],
)  # fmt: skip
def test_nesting_is_bounded(opening, inside, closing):
    # every level costs one to three of MAX_DEPTH
    levels = MAX_DEPTH // 4
    assert isinstance(parse_formula(opening * levels + inside + closing * levels), Node)
    with pytest.raises(Refused, match="nested deeper"):
        parse_formula(opening * 2 * MAX_DEPTH + inside + closing * 2 * MAX_DEPTH)


def test_length_is_bounded():
    assert parse_formula("x" + "+x" * 700)  # 1401 signs
    with pytest.raises(Refused, match="more than 1500 signs"):
        parse_formula("x" + "+x" * 800)
    with pytest.raises(Refused, match=f"longer than {MAX_LENGTH}"):
        parse_formula("1" * (MAX_LENGTH + 1))
    with pytest.raises(Refused, match="too many signs"):
        parse_formula("-" * 100 + "x")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("2-3x", r"-x \cdot 3+2"),
        (r"\frac{1}{x+1}", r"\frac{-1}{-x-1}"),
        (r"\cos(x-1)", r"\cos(1-x)"),  # an even function
        (r"\sin(x-1)", r"-\sin(1-x)"),  # an odd one
        ("(x-1)^2", "(1-x)^2"),
        ("(x-1)^3", "-(1-x)^3"),
        (r"\sqrt{x}", "x^{1/2}"),
        ("x^{-1}+y", r"y+\frac{1}{x}"),
    ],
)
def test_formulas_that_differ_in_order_and_signs_have_one_key(first, second):
    assert FormulaKeys(parse_formula(first)).key == FormulaKeys(parse_formula(second)).key


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("x-1", "1-x"),
        (r"\sin(x-1)", r"\sin(1-x)"),
        ("(x-1)^3", "(1-x)^3"),
        (r"2 \cdot 3", "6"),
        ("(x+1)(x+2)", "x^2+3x+2"),
        (r"\sqrt{8}", r"2\sqrt{2}"),
    ],
)
def test_other_formulas_have_different_keys(first, second):
    assert FormulaKeys(parse_formula(first)).key != FormulaKeys(parse_formula(second)).key
