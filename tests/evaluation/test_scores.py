"""Scores of a table: avg@k and pass@k of its problems, and maj@k of their answers."""

from collections import Counter
from fractions import Fraction
from functools import partial
from itertools import combinations, permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_cov.evaluation.scores import (
    avg_at_k,
    bootstrap_interval,
    maj_at_k,
    paired_difference,
    pass_at_k,
    pass_at_powers,
    vote,
)

# 2 problems, 4 samples each: 1 and 3 of 4 correct
CORRECT = np.array([[True, False, False, False], [True, True, False, True]])


# --- avg@k and pass@k


@pytest.mark.parametrize("n", range(1, 9))
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_sample(solved, n):
    for c, k in product(range(n + 1), range(1, n + 1)):
        subsets = list(combinations([True] * c + [False] * (n - c), k))
        expected = Fraction(sum(map(any, subsets)), len(subsets))
        assert pass_at_k(solved(c, samples=n), k) == float(expected), (n, c, k)


@pytest.mark.parametrize(
    ("c", "k", "expected"),
    [
        (1, 512, 0.5),  # 1 - (n - k)/n
        (2, 512, 1 - 512 * 511 / (1024 * 1023)),  # both outside of the drawn half
        (513, 512, 1.0),  # 511 wrong ones do not fill 512 places
    ],
)
def test_pass_at_k_of_1024_samples(solved, c, k, expected):
    assert pass_at_k(solved(c, samples=1024), k) == pytest.approx(expected, rel=1e-15)


@given(data=st.data())
def test_pass_at_k_starts_at_avg_at_k_grows_and_ends_at_any(solved_tables, data):
    correct = data.draw(solved_tables)
    scores = [pass_at_k(correct, k) for k in range(1, correct.shape[1] + 1)]
    assert scores[0] == pytest.approx(avg_at_k(correct), rel=1e-14)
    assert scores == sorted(scores)
    assert scores[-1] == pytest.approx(correct.any(axis=1).mean(), rel=1e-14)


@pytest.mark.parametrize(("samples", "powers"), [(1, [1]), (3, [1, 2]), (4, [1, 2, 4]), (7, [1, 2, 4])])
def test_powers_of_two_up_to_k(solved, samples, powers):
    correct = solved(1, 0, samples=samples)
    # one of n correct passes with probability k/n, the other problem never
    assert pass_at_powers(correct) == {k: pytest.approx(k / samples / 2, rel=1e-15) for k in powers}
    assert list(pass_at_powers(correct)) == powers


SCORED = {
    "pass": partial(pass_at_k, k=1),
    "maj": lambda correct: maj_at_k([], correct, str.__eq__),
    "interval": lambda correct: bootstrap_interval(correct, avg_at_k),
    "difference": lambda correct: paired_difference(correct, correct, avg_at_k),
}


@pytest.mark.parametrize("correct", [np.zeros((0, 4), bool), np.zeros(3, bool), [[1, 0]]])
@pytest.mark.parametrize("score", SCORED.values(), ids=SCORED)
def test_anything_but_booleans_of_problems_and_samples_is_refused(correct, score):
    with pytest.raises(ValueError, match="boolean array of \\(problems, samples per problem\\)"):
        score(correct)


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (lambda: pass_at_k(CORRECT, 0), "between 1 and the 4 samples per problem, got 0"),
        (lambda: pass_at_k(CORRECT, 5), "between 1 and the 4 samples per problem, got 5"),
        (lambda: maj_at_k([["1"] * 4, ["1"] * 3], CORRECT, str.__eq__), r"answers of all \(2, 4\) samples"),
        (lambda: vote([None, "1"], [True, False], str.__eq__), "without an answer is marked correct"),
        (lambda: bootstrap_interval(CORRECT, avg_at_k, resamples=0), "at least one resample, got 0"),
        (lambda: paired_difference(CORRECT, CORRECT[:1], avg_at_k), "same problems, got 2 and 1"),
    ],
)
def test_what_has_no_score_is_refused(score, message):
    with pytest.raises(ValueError, match=message):
        score()


# --- maj@k


def near(first, second):
    """Not transitive: 1 ~ 2 and 2 ~ 3, but not 1 ~ 3."""
    return abs(int(first) - int(second)) <= 1


@pytest.mark.parametrize(
    ("answers", "correct", "expected"),
    [
        ("7 7 5", "110", 1.0),
        ("7 5 5", "100", 0.0),
        ("7 5", "10", 0.5),  # a tie of two, one of them right, whichever came first
        ("7 5 7 5 3", "10100", 0.5),  # the third group is smaller and plays no part
        ("- - - 7", "0001", 1.0),  # no answer never wins
        ("- - 7 5", "0010", 0.5),
        ("- -", "00", 0.0),
    ],
)
def test_vote_by_hand(answers, correct, expected):
    answers = [None if answer == "-" else answer for answer in answers.split()]
    assert vote(answers, [c == "1" for c in correct], str.__eq__) == expected


@pytest.mark.parametrize(
    ("answers", "correct", "expected"),
    [
        ("1 2 3", "110", 1.0),  # {1, 2}, {3}: 3 is compared with 1, the first of its group, not with 2
        ("2 1 3", "101", 2 / 3),  # {2, 1, 3}: one group, whose members the grader tells apart
        ("1 3 2", "010", 0.0),  # {1, 2}, {3}: 2 equals both firsts and joins the earlier
        ("5 1 3 2", "0110", 0.5),  # {5}, {1, 2}, {3}: (1 + 0) / 2
    ],
)
def test_groups_form_around_their_first_member(answers, correct, expected):
    assert vote(answers.split(), [c == "1" for c in correct], near) == expected


@given(
    samples=st.lists(st.sampled_from([("1", True), ("2", False), ("3", False), (None, False)]), min_size=1, max_size=5)
)
def test_the_order_of_the_samples_does_not_matter(samples):
    scores = {vote(*zip(*order, strict=True), str.__eq__) for order in permutations(samples)}
    assert len(scores) == 1
    # the expectation in other words: the share of right ones among the most frequent answers
    votes = Counter(answer for answer, _ in samples if answer)
    top = [answer for answer, n in votes.items() if n == max(votes.values())]
    assert scores == {("1" in top) / len(top) if top else 0.0}


def test_maj_at_k_is_the_mean_over_problems():
    answers = [["7", "7", "5"], ["1", "2", None], [None, None, None]]
    correct = np.array([[True, True, False], [False, True, False], [False, False, False]])
    assert maj_at_k(answers, correct, str.__eq__) == 0.5  # (1 + 1/2 + 0) / 3
