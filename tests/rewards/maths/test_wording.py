import pytest

from openrlhf_cov.rewards.maths.normalization import clean
from openrlhf_cov.rewards.maths.wording import (
    names_part,
    split_condition,
    split_option,
    without_lead,
    without_marks,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("**5**", "5"),
        ("$**5**$", "5"),
        ("`5`", "5"),
        ('"5"', "5"),
        ("“5”", "5"),
        ("$5$, $6$", "$5$, $6$"),  # not one pair around the whole
        ("'5'*1", "'5'*1"),
        ("5**", "5**"),
        ("**", "**"),
    ],
)
def test_marks(text, expected):
    assert without_marks(text) == expected


LEADS = [
    ("The answer is 5", "5"),
    (r"\text{The final answer is: } 5", "5"),
    (r"\text{approximately } 5", "5"),
    (r"\therefore x = 5", "x = 5"),
    ("Thus, a total of 5 apples", "5 apples"),
    ("= 5", "5"),
    ("The smallest value of n is 5", "5"),
    ("x is equal to 5", "5"),
    ("We find that x = 5", "x = 5"),
    (r"Answer \( 5 \)", "5"),
    (r"x \ge 5 is the solution", r"x \ge 5"),
    (r"5 \blacksquare", "5"),
    ("5 (approximately)", "5"),
]
KEPT = [
    "5", "at most 5", "not 5", "The answer", "x is not 5", "The number 6 is not what it is: 5", "5 is wrong",
    "The first is 5, the second is 6", "The opposite is 5", "only 5", "so",
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), LEADS)
def test_words_that_say_nothing_go(text, expected):
    assert without_lead(clean(text)).strip() == expected


@pytest.mark.parametrize("text", KEPT)
def test_words_that_say_something_stay(text):
    kept = without_lead(clean(text))
    assert kept == text or "not" in kept or "," in kept


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(B) 12", ("B", "12")),
        (r"\textbf{(B)}\ 12", ("B", "12")),
        (r"\text{B}: 12", ("B", "12")),
        ("B. 12", ("B", "12")),
        ("Option B", ("B", "")),
        ("B)", ("B", "")),
        ("(B)12", None),  # a product
        ("(B)^2", None),
        ("(x) 5", None),
        ("(A) 5 (B) 6", None),
        ("(A) (B)", None),
        ("B. not 12", None),
        ("B - 12", None),
        ("12", None),
    ],
)
def test_options(text, expected):
    assert split_option(clean(text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("e^{-t}, t > 0", ("e^{-t}", "t > 0")),
        (r"2k \text{ for } k > 0", ("2k", "k > 0")),
        (r"\frac1x (x \ne 0)", (r"\frac1x", r"x \ne 0")),
        (r"3 \pmod{8}", ("3", r"\text{mod 8}")),
        ("2k where k is an integer", ("2k", "k is an integer")),
        ("2k, k = 5", None),  # that would be computing
        ("n, n > 5", None),
        ("x < 2, x > 3", None),  # two claims
        ("x = 5, y > 3", None),
        (r"5 \text{ if } x > 0, 6 \text{ if } x < 0", None),
        (r"5 \text{ if } x > 0 \text{ and } 6 \text{ otherwise}", None),
        ("n if n is odd", None),
        ("(1, 2)", None),
        ("5, 6", None),
    ],
)
def test_conditions(text, expected):
    assert split_condition(clean(text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Anna: 7", ("Anna", "7")),
        (r"\text{Anna: } 7", ("Anna", "7")),
        (r"\text{Anna}: 7", ("Anna", "7")),
        ("7: 14", None),
        (r"\text{Not: } 7", None),
        ("a:", None),
        (": 5", None),
        ("a: 5: 6", None),
    ],
)
def test_parts(text, expected):
    assert names_part(clean(text)) == expected
