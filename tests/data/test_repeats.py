from hypothesis import given
from hypothesis import strategies as st

from openrlhf_cov.data.repeats import Repeats


def seen(*rows, source="math"):
    """The rows (problem, answer), called r0, r1, …"""
    repeats = Repeats()
    for number, (problem, answer) in enumerate(rows):
        repeats.add(number, f"r{number}", problem, answer, source)
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


def test_a_conflict_takes_no_row_with_another_statement_and_another_answer():
    repeats = seen(("Find 2n+1.", "5"), ("Find 2n+1.", "7"), ("Find 2n-1.", "3"), ("Find (2n)+1.", "7.0"))
    assert repeats.conflicts() == dict.fromkeys([0, 1, 3], "r0 (5) and r1 (7)")


def test_every_statement_of_a_group_can_be_in_conflict():
    repeats = seen(("2n+1", "5"), ("2n-1", "3"), ("2n+1", "7"), ("2n-1", "1"))
    assert repeats.conflicts() == {
        0: "r0 (5) and r2 (7)",
        2: "r0 (5) and r2 (7)",
        1: "r1 (3) and r3 (1)",
        3: "r1 (3) and r3 (1)",
    }


def test_other_tests_of_the_same_program_are_no_other_answer():
    one, two = '{"inputs": ["1"], "outputs": ["#### 2"]}', '{"inputs": ["3"], "outputs": ["#### 2"]}'
    repeats = seen(("Print n + 1.", one), ("print n + 1", two), ("Print n - 1.", two), source="code/taco")
    assert repeats.conflicts() == {}
    assert repeats.duplicates() == {1: "r0"}


def test_options_are_compared_by_their_letter():
    repeats = seen(("Which?", "A"), ("Which?", "(a)"), ("Which?", "A. 12"), source="choice/aqua")
    assert repeats.conflicts() == {}
    assert repeats.duplicates() == {1: "r0", 2: "r0"}
    assert seen(("Which?", "A"), ("Which?", "(B)"), source="choice/aqua").conflicts().keys() == {0, 1}


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
