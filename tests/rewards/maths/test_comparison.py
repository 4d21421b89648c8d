import pytest

from openrlhf_cov.rewards.maths.comparison import EXACT, Rules, compare, equal_spelling
from openrlhf_cov.rewards.maths.structure import parse_answer

# True and False are final; None leaves the verdict to the formulas
VERDICTS = [
    ("5", "5.0", True),
    ("5", "6", False),
    ("x+1", "x + 1", True),
    ("x+1", "1+x", None),
    ("5 6", "56", None),
    # units
    (r"5\text{ cm}", "5", True),
    (r"5\text{ cm}", r"5\text{ m}", False),
    (r"5\text{ cm}", r"6", False),
    # percent: 10% is 10 and 0.1
    (r"10\%", "10", True),
    (r"10\%", "0.1", True),
    (r"10\%", r"\frac{1}{10}", True),
    (r"10\%", "1", False),
    (r"10\%", r"0.1\%", False),
    ("10", "0.1", False),
    # infinity is equal to itself only, NaN and nothing not even that
    (r"\infty", r"+\infty", True),
    (r"\infty", r"-\infty", False),
    (r"\infty", "5", False),
    (r"\infty", "x", False),
    ("nan", "nan", False),
    ("inf", "inf", False),
    ("", "", False),
    # structure before values
    ("(1,2)", "[1,2]", False),
    ("(1,2)", "1,2", False),
    ("(1,2)", "(2,1)", False),
    ("(1,2)", "(1,2,3)", False),
    ("1,2", "2,1", True),
    ("1,2,2", "2,1", True),
    ("1,2", "1,2,3", False),
    ("1,2", "1", False),
    ("1,x", "1,y", None),
    ("1,x", "2,3", False),  # 1 has no partner, whatever x may be
    ("1,x", "1,2", None),
    ("(1,x)", "(2,x)", False),
    ("(1,2)\\cup(3,4)", "(3,4)\\cup(1,2)", True),
    ("(1,2)\\cup(3,4)", "(1,2),(3,4)", False),
    ("1:2", "1:2", True),
    ("1:2", "2:4", False),
    ("1:2", r"\frac12", False),
    ("12_5", "12_5", True),
    ("12_5", "12_7", None),
    ("12_5", "12", False),
    (r"\begin{pmatrix} 1 & 2 \end{pmatrix}", r"\begin{bmatrix} 1 & 2 \end{bmatrix}", True),
    (r"\begin{pmatrix} 1 & 2 \end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", False),
    (r"\begin{pmatrix} 5 \end{pmatrix}", "5", False),
    # a list without spaces is one number, or a list if the other side is one
    ("100,200", "100, 200", True),
    ("100,200", "100200", True),
    ("100, 200", "100200", False),
    # words
    ("evelyn", r"\text{Evelyn}", True),
    ("evelyn", "navin", False),
    ("A", "a", None),
    (r"\text{A}", "A", True),
    ("A", "B", None),
    ("ACB", "ABC", False),
    ("5", "five", False),
    # labels
    ("x=5", "5", True),
    ("x=5", "x=5", True),
    ("x=5", "x=6", False),
    ("x=5", "y=5", None),
    ("x=1,y=2", "(1,2)", True),
    ("y=2,x=1", "(1,2)", True),
    ("x=2,y=1", "(1,2)", False),
    ("x+y=5", "5", False),
    ("x+y=5", "x + y = 5", True),
]


@pytest.mark.parametrize(("a", "b", "verdict"), VERDICTS)
def test_the_exact_stage(a, b, verdict):
    first, second = parse_answer(a), parse_answer(b)
    assert compare(first, second, EXACT) is verdict
    assert compare(second, first, EXACT) is verdict


def test_rules_are_asked_only_where_structure_agrees():
    asked = []

    def rule(a, b):
        asked.append((a.text, b.text))
        return a.text == b.text

    rules = Rules(rule, equal_spelling, rule)
    assert compare(parse_answer("(x,y)"), parse_answer("(x,y,z)"), rules) is False
    assert asked == []
    assert compare(parse_answer("(x,y)"), parse_answer("(x,y)"), rules) is True
    assert asked == [("x", "x"), ("y", "y")]
