from fractions import Fraction

import pytest

from openrlhf_cov.rewards.maths.structure import MAX_ITEMS, Compound, Equation, Scalar, Text, parse_answer


def shape(answer):
    """The kind of an answer and those of its parts; literal numbers as their value."""
    match answer:
        case Scalar(number=None):
            return answer.text.replace(" ", "")
        case Scalar():
            return answer.number.value
        case Text():
            return ("text", answer.key)
        case None:
            return None
        case Equation(sign="<" | "<="):
            return (answer.sign, shape(answer.value))
        case Equation():
            return ("=", answer.name, shape(answer.value))
        case Compound():
            return (answer.kind, *map(shape, answer.items))


SHAPES = [
    ("5", 5),
    ("$5$.", 5),
    ("((5))", 5),
    (r"\text{5}", 5),
    (r"\mathbf{\frac{1}{2}}", Fraction(1, 2)),
    (r"\approx 2.5", Fraction(5, 2)),
    ("5 million", 5_000_000),
    ("x+1", "x+1"),
    # words
    (r"\text{Evelyn}", ("text", "evelyn")),
    ("no solution", ("text", "emptyset")),
    ("AB", "AB"),  # short: may be a product
    # lists are sets, brackets are tuples or intervals
    ("1,2", ("set", 1, 2)),
    ("1, 2, and 3", ("set", 1, 2, 3)),
    ("1 or 2", ("set", 1, 2)),
    ("1; 2", ("set", 1, 2)),
    (r"\{1, 2\}", ("set", 1, 2)),
    ("(1, 2)", ("()", 1, 2)),
    ("[1, 2)", ("[)", 1, 2)),
    (r"\langle 1, 2\rangle", ("()", 1, 2)),
    ("(1,2),(3,4)", ("set", ("()", 1, 2), ("()", 3, 4))),
    (r"\{(1,2)\}", ("set", ("()", 1, 2))),
    ("[5]", ("[]", 5)),  # greatest integer, or an interval cut short: not 5
    # thousands
    ("1,200", 1200),
    ("1,200,300", 1200300),
    ("1, 200", ("set", 1, 200)),
    ("1,200, 5", ("set", 1200, 5)),
    ("1,20", ("set", 1, 20)),
    # plus-minus
    (r"\pm 2", ("set", 2, -2)),
    (r"1, \pm 2", ("set", 1, 2, -2)),
    (r"\pm\pm 2", r"\pm\pm2"),
    # equations
    ("x = 5", ("=", "x", 5)),
    ("5 = x", ("=", "x", 5)),
    ("f(x) = 5", ("=", "f", 5)),
    (r"\text{Area} = 5", ("=", "Area", 5)),
    ("x = 2+3 = 5", ("=", "x", 5)),
    ("x = 6 = 5", ("=", "x", 5)),  # its steps say that it contradicts itself
    (r"\text{not} = 5", ("=", "", 5)),  # no name, so no value
    ("x+y = 5", ("=", "", 5)),
    ("x = 1, x = 2", ("set", 1, 2)),
    ("x = 1, 2", ("set", 1, 2)),
    ("x = 1, y = 2", ("set", ("=", "x", 1), ("=", "y", 2))),
    ("(x, y) = (1, 2)", ("=", "(x,y)", ("()", 1, 2))),
    # inequalities are intervals
    ("1 < x \\le 2", ("(]", 1, 2)),
    ("x \\ge 2", ("<=", ("[)", 2, r"\infty"))),
    ("2 \\ge x", ("<=", ("(]", r"-\infty", 2))),
    ("2 > x > 1", ("()", 1, 2)),
    ("1 < 2", ("<", None)),
    ("1 < x > 2", "1<x>2"),
    (r"x \in [1,2]", ("[]", 1, 2)),
    (r"(1,2) \cup (3,4)", ("union", ("()", 1, 2), ("()", 3, 4))),
    (r"x < 1 \text{ or } x > 2", ("union", ("()", r"-\infty", 1), ("()", 2, r"\infty"))),
    (r"\mathbb{R}", ("()", r"-\infty", r"\infty")),
    (r"\{x | x > 5\}", ("()", 5, r"\infty")),
    # other shapes
    (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", ("matrix", ("row", 1, 2), ("row", 3, 4))),
    (r"\begin{bmatrix} 1 \\[4pt] 2 \end{bmatrix}", ("matrix", ("row", 1), ("row", 2))),
    (r"\begin{array}{cc} 1 & 2 \end{array}", ("matrix", ("row", 1, 2))),
    ("12_5", ("base", "12", "5")),
    ("12_{5}", ("base", "12", "5")),
    ("1:2", ("ratio", 1, 2)),
    # unreadable shapes stay as they are
    ("5 6", "56"),
    ("(5", "(5"),
    ("", ""),
]


@pytest.mark.parametrize(("text", "expected"), SHAPES)
def test_shape(text, expected):
    assert shape(parse_answer(text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"5\text{ cm}", ("centimeter", False)),
        ("5^\\circ", ("degree", False)),
        (r"5\%", ("", True)),
        (r"\$5", ("dollar", False)),
        ("5", ("", False)),
    ],
)
def test_unit_and_percent_of_a_scalar(text, expected):
    answer = parse_answer(text)
    assert (answer.unit, answer.percent, answer.number.value) == (*expected, 5)


def test_a_list_is_read_up_to_its_limit():
    numbers = ",".join(str(number % 10) for number in range(MAX_ITEMS))
    assert len(parse_answer(numbers).items) == MAX_ITEMS
    assert isinstance(parse_answer(numbers + ",5"), Scalar)


@pytest.mark.parametrize("bracket", ["(", "[", r"\{", r"\text{", "-(", "x=("])
def test_nesting_is_read_up_to_its_limit(bracket):
    closing = {"(": ")", "[": "]", r"\{": r"\}", r"\text{": "}", "-(": ")", "x=(": ")"}[bracket]
    deepest = parse_answer(bracket * 200 + "5" + closing * 200)
    while isinstance(deepest, Compound | Equation):
        deepest = deepest.items[0] if isinstance(deepest, Compound) else deepest.value
    assert isinstance(deepest, Scalar)
    assert deepest.number is None
