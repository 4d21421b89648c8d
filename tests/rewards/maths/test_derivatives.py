import pytest

from openrlhf_cov.rewards.maths.grading import answers_equal
from openrlhf_cov.rewards.maths.names import same_derivatives
from openrlhf_cov.rewards.maths.normalization import clean


@pytest.mark.parametrize(
    "text",
    [
        r"\frac{dy}{dx} = x", r"\frac{d y}{d x} = x", r"\frac{\mathrm{d}y}{\mathrm{d}x} = x", r"\frac{d}{dx} y = x",
        "dy/dx = x", r"\dot{y} = x", r"\dot y = x", "y'=x", r"\frac{dy(x)}{dx} = x",
    ],
)  # fmt: skip
def test_first_derivatives(text):
    assert answers_equal(text, r"y^{\prime} - x = 0")
    assert answers_equal(r"\frac{dy}{dx} - x = 0", text)
    assert not answers_equal(text, "y'' = x")
    assert not answers_equal(text, "y = x")


@pytest.mark.parametrize("text", [r"\frac{d^2y}{dt^2} = y", r"\frac{d^{2} y}{d t^{2}} = y", r"\ddot{y} = y"])
def test_second_derivatives(text):
    assert answers_equal(text, "y'' - y = 0")
    assert not answers_equal(text, r"\dot y = y")


def test_the_variable_counts_where_both_sides_name_one():
    assert not answers_equal(r"\frac{dy}{dx} = 2", r"\frac{dy}{dt} = 2")
    assert not answers_equal(r"\frac{dy}{dx} = 2", r"\frac{dx}{dy} = 2")
    assert not answers_equal(r"\frac{dy}{dx}", r"\frac{y}{x}")  # d is no factor
    assert not answers_equal(r"\frac{\partial u}{\partial x} = 2", r"\frac{du}{dx} = 2")


def test_texts_without_derivatives_stay():
    for pair in [(r"1, 2, \dots", "f(x)"), (r"\frac{d}{2}", "d"), ("AB' = 5", "5")]:
        cleaned = tuple(map(clean, pair))
        assert same_derivatives(*cleaned) == cleaned
