from hypothesis import given
from hypothesis import strategies as st

from openrlhf_cov.data.repeats import Repeats


def seen(*rows):
    """The rows (problem, answer), called r0, r1, …"""
    repeats = Repeats()
    for number, (problem, answer) in enumerate(rows):
        repeats.add(number, f"r{number}", problem, answer)
    return repeats


def test_the_first_of_equal_rows_stays():
    repeats = seen(("Find 1+1.", "2"), ("Find 2+2.", "4"), ("find $1 + 1$", "2"), ("Find 1+1.", "2.0"))
    assert repeats.duplicates() == {2: "r0", 3: "r0"}
    assert repeats.conflicts() == {}


def test_equal_answers_are_equal_for_the_grader_and_not_only_in_spelling():
    rows = ("Find it.", "0.5"), ("Find it.", "\\frac12"), ("Find it.", "\\dfrac{2}{4}")
    assert seen(*rows).duplicates() == {1: "r0", 2: "r0"}
    assert seen(*rows).conflicts() == {}


def test_all_rows_of_a_problem_with_two_answers_are_in_conflict():
    # rows 0 and 3 are the same statement; 2 has its letters in another statement, and is not trusted either
    repeats = seen(
        ("There are $10$ rooms", "61"), ("Another", "5"), ("There are (10) rooms", "61"), ("There are 10 rooms", "31")
    )
    about = "r0 (61) and r3 (31)"
    assert repeats.conflicts() == {0: about, 2: about, 3: about}


def test_other_signs_with_another_answer_are_another_problem():
    repeats = seen(("Sum $2n - 1$.", "7"), ("Sum $2n + 1$.", "9"), ("Sum $2n-1$", "7"))
    assert repeats.conflicts() == {}
    assert repeats.duplicates() == {2: "r0"}


def test_whole_solutions_are_compared_by_what_follows_the_mark():
    rows = ("How many?", "9 * 2 = 18\n#### 18"), ("How many?", "2 * 9 = 18\n#### 18"), ("How many?", "18")
    assert seen(*rows).duplicates() == {1: "r0", 2: "r0"}
    assert seen(rows[0], ("How many?", "9 + 2 = 11\n#### 11")).conflicts() == {
        0: "r0 (18) and r1 (11)",
        1: "r0 (18) and r1 (11)",
    }


@given(st.lists(st.tuples(st.sampled_from(["a 1", "a+1", "a-1", "b"]), st.sampled_from(["1", "2", "1.0"]))))
def test_what_stays_has_neither_repeats_nor_conflicts(rows):
    repeats = seen(*rows)
    left_out = repeats.duplicates().keys() | repeats.conflicts().keys()
    rest = seen(*(row for number, row in enumerate(rows) if number not in left_out))
    assert rest.duplicates() == rest.conflicts() == {}
    # a problem disappears only by a conflict
    for group in ("a", "b"):
        numbers = [number for number, (problem, _) in enumerate(rows) if problem.startswith(group)]
        if numbers and not repeats.conflicts().keys() & set(numbers):
            assert not left_out.issuperset(numbers)
