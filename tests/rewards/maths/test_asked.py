"""Answers with another unit than the problem asks for."""

import pytest

from openrlhf_cov.rewards.maths.grading import grade

# A problem whose answer is the bare number 5, an answer with the unit that is asked for, and one with another unit.
UNITS = [
    ("Find the mass in kg.", r"5\text{ kg}", r"5\text{ g}"),
    ("Find the mass in kg.", r"5 kg", r"5 lb"),
    ("Find the mass in kg.", r"5\text{ kilograms}", r"\$5"),
    ("Find the mass (in g).", r"5\text{ g}", r"5\text{ kg}"),
    ("Find the length in cm.", r"5 cm", r"5\text{ m}"),
    ("Find the length in m.", r"5\text{ m}", r"5\text{ cm}"),
    (r"What is the length, in $\text{cm}$, of the rope?", r"5 cm", r"5 mm"),
    ("Find the distance in km.", r"5\text{ km}", r"5\text{ m}"),
    ("Find the distance in kilometers.", r"5\text{ km}", r"5\text{ miles}"),
    ("Find the area in cm^2.", r"5\text{ cm}^2", r"5\text{ m}^2"),
    ("Find the area in square feet.", r"5\text{ ft}^2", r"5\text{ ft}"),
    ("Find the speed in m/s.", r"5\text{ m/s}", r"5\text{ km/h}"),
    ("Find the speed in m/s.", r"5\text{ m s}^{-1}", r"5\text{ m}"),
    ("Find the speed in miles per hour.", r"5\text{ mph}", r"5\text{ miles per minute}"),
    ("Find the acceleration in m/s^2.", r"5\text{ m/s}^2", r"5\text{ cm/s}^2"),
    (r"What is the price in \$?", r"\$5", r"5\text{ cents}"),
    ("What is the price in dollars?", r"5\text{ dollars}", r"5\text{ cents}"),
    ("What does she earn in dollars per hour?", r"\$5", r"5\text{ cents}"),
    ("How many minutes does it take?", r"5\text{ min}", r"5\text{ hours}"),
    ("How many hours per week does he work?", r"5\text{ hours}", r"5\text{ minutes}"),
]  # fmt: skip


@pytest.mark.parametrize(("prompt", "own", "other"), UNITS)
def test_another_unit_than_the_problem_asks_for_is_wrong(prompt, own, other):
    verdicts = [grade(rf"\boxed{{{answer}}}", "5", prompt=prompt).correct for answer in ("5", own, other)]
    assert verdicts == [True, True, False]


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        ("A rope is 5 m long. What is its length?", r"5\text{ cm}"),  # no unit is asked for
        ("The masses are given in g. Find the total in kg.", r"5\text{ g}"),  # several are
        ("He walks in m days as far as she does in $s$ days. How far is it?", r"5\text{ km}"),  # names of numbers
    ],
)
def test_units_are_free_if_the_problem_names_none_or_several(prompt, answer):
    assert grade(rf"\boxed{{{answer}}}", "5", prompt=prompt).correct
