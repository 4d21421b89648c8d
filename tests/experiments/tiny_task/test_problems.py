import random
from collections import Counter

import pytest

from openrlhf_cov.experiments.tiny_task.problems import ANSWER_STYLES, Addition, split_problems, write_answer
from openrlhf_cov.rewards.addition import extract_answer

ALL_PROBLEMS = {Addition(a, b) for a in range(10, 100) for b in range(10, 100)}


def test_problem_by_hand():
    problem = Addition(34, 57)
    assert problem.prompt == "34+57="
    assert problem.label == "91"
    assert problem.to_row() == {"input": "34+57=", "label": "91", "datasource": "tiny_addition"}


@pytest.mark.parametrize(
    ("style", "small", "large"),
    [
        ("digit_wise", "4+7=11;3+5=8;91", "9+9=18;9+8=17;188"),
        ("swapped_operands", "57+34;91", "89+99;188"),
        ("tens_then_units", "30+50=80;11;91", "90+80=170;18;188"),
        ("direct", "91", "188"),
    ],
)
def test_each_style_by_hand(style, small, large):
    _, write = ANSWER_STYLES[style]
    assert write(Addition(34, 57)) == small
    assert write(Addition(99, 89)) == large


def test_every_written_answer_ends_in_the_label():
    for problem in ALL_PROBLEMS:
        assert all(extract_answer(write(problem)) == problem.label for _, write in ANSWER_STYLES.values())


def test_styles_are_drawn_with_their_probabilities():
    problem, rng, draws = Addition(34, 57), random.Random(0), 4000
    counts = Counter(write_answer(problem, rng) for _ in range(draws))
    for probability, write in ANSWER_STYLES.values():
        # four standard deviations of a share of 4,000 draws are at most 4 * sqrt(0.25 / 4000) = 0.032
        assert counts[write(problem)] / draws == pytest.approx(probability, abs=0.032)
    assert sum(probability for probability, _ in ANSWER_STYLES.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("held_out", [1, 256, 8099])
def test_split_is_disjoint_and_complete(held_out):
    split = split_problems(seed=0, held_out=held_out)
    assert len(split.held_out) == held_out
    assert len(split.train) == 8100 - held_out
    assert {*split.train, *split.held_out} == ALL_PROBLEMS


def test_split_is_determined_by_the_seed():
    assert split_problems(seed=3, held_out=256) == split_problems(seed=3, held_out=256)
    assert set(split_problems(seed=3, held_out=256).held_out) != set(split_problems(seed=4, held_out=256).held_out)


@pytest.mark.parametrize("held_out", [0, -1, 8100])
def test_split_needs_problems_on_both_sides(held_out):
    with pytest.raises(ValueError, match=f"from 1 to 8099 problems, got {held_out}"):
        split_problems(seed=0, held_out=held_out)
