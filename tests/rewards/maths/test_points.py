import pytest

from openrlhf_cov.rewards.maths.latex import parse_formula
from openrlhf_cov.rewards.maths.normalization import clean
from openrlhf_cov.rewards.maths.values import points, whole_names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (r"\lfloor\frac n2\rfloor+m", {"n"}),
        ("(-1)^n", {"n"}),
        (r"\cos(k\pi)", {"k"}),
        (r"\gcd(x,12)", {"x"}),
        (r"\lfloor x\rfloor", set()),  # a letter for any number
        ("2^n", set()),
    ],
)
def test_names_that_are_whole(text, names):
    assert whole_names(parse_formula(clean(text))) == names


@pytest.mark.parametrize(
    ("a", "b", "whole"),
    [
        ("(-1)^n", r"\cos(n\pi)", True),
        ("(-1)^n", "n", False),  # one side cannot choose
        (r"(-1)^n", r"\lfloor\frac n2\rfloor", True),
    ],
)
def test_points_are_whole_where_both_sides_say_so(a, b, whole):
    first, second = (parse_formula(clean(text)) for text in (a, b))
    for sides in ((first, second), (second, first)):
        assert all(point["n"].denominator == 1 for point in points(*sides)) is whole
