import pytest

from openrlhf_cov.rewards.maths.signs import both_signs, negated


@pytest.mark.parametrize(
    ("text", "negative"),
    [("5", "-5"), ("-5", "5"), ("+x", "-x"), ("x-5", "-(x-5)"), ("-x+5", "-(-x+5)"), (" 2 ", "-2")],
)
def test_negated(text, negative):
    assert negated(text) == negative


@pytest.mark.parametrize(
    ("text", "both"),
    [
        (r"2\pm 3", ["2+3", "2-3"]),
        (r"(\pm 1, \mp 2)", ["(+1, -2)", "(-1, +2)"]),
        (r"\pm 1\pm 2", None),  # four values, not two
        ("2+3", None),
    ],
)
def test_both_signs(text, both):
    assert both_signs(text) == both
