import pytest

from openrlhf_cov.rewards.maths.latex import parse_formula
from openrlhf_cov.rewards.maths.normalization import clean
from openrlhf_cov.rewards.maths.values import points


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
    for point in points(*(parse_formula(clean(text)) for text in (a, b))):
        assert {name for name, value in point.items() if value.denominator == 1} == whole
