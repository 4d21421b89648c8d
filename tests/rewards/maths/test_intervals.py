import pytest

from openrlhf_cov.rewards.maths.grading import answers_equal
from openrlhf_cov.rewards.maths.intervals import REAL_LINE, without
from openrlhf_cov.rewards.maths.structure import parse_answer

# beside those in cases.jsonl
EQUAL = [
    (r"[2,3]\cup[1,2]", "[1,3]"),
    (r"[1,4]\cup[2,3]", "[1,4]"),
    (r"\{1\}\cup(1,2)", "[1,2)"),
    (r"(-\infty,2]\cup(1,\infty)", r"\mathbb{R}"),
    (r"\mathbb{R}\setminus\{2,-2\}", r"(-\infty,-2)\cup(-2,2)\cup(2,\infty)"),
    (r"(1,3)\setminus\{2\}", r"(1,2)\cup(2,3)"),
    (r"[0,10]\setminus\{2,5\}", r"[0,2)\cup(2,5)\cup(5,10]"),
    (r"x \ne \sqrt{2}", r"(-\infty,\sqrt2)\cup(\sqrt2,\infty)"),
]
DIFFERENT = [
    (r"(1,2)\cup(2,3)", "(1,3)"),
    (r"[3,1]\cup[1,2]", "[1,2]"),  # the first is no interval
    (r"\mathbb{R}\setminus\{2\}", r"\mathbb{R}"),
    (r"(1,3)\setminus\{2\}", "(1,3)"),
    (r"(1,3)\setminus\{2\}", r"(1,2)"),
    (r"(1,3)\setminus\{4\}", "(1,3)"),  # not read
]


@pytest.mark.parametrize(("union", "whole"), EQUAL)
def test_parts_that_meet_are_one(union, whole):
    assert answers_equal(union, whole)
    assert answers_equal(whole, union)


@pytest.mark.parametrize(("union", "whole"), DIFFERENT)
def test_parts_with_a_gap_are_not(union, whole):
    assert not answers_equal(union, whole)
    assert not answers_equal(whole, union)


def test_points_whose_order_is_not_clear_split_nothing():
    points = tuple(parse_answer(text) for text in ("a", "b"))
    assert without(REAL_LINE, points) is None
    assert len(without(REAL_LINE, points[:1]).items) == 2
