import pytest

from openrlhf_cov.data.inputs import Row
from openrlhf_cov.data.overlap import EvaluationSets
from openrlhf_cov.data.selection import REASONS, Drop, label_fault, select

WORDS = "one two three four five six seven"


def rows(*given):
    return [Row("own", f"p{number}", *row) for number, row in enumerate(given)]


def sets(ngram=0):
    found = EvaluationSets(ngram)
    found.add("aime/1", f"Say {WORDS} 8")
    found.add("amc/2", f"Say {WORDS}, 8!")
    return found


def test_one_reason_for_every_row_that_is_left_out():
    selection = select(
        rows(
            ("Find 1+1.", "2", "math"),
            ("", "2", "math"),
            ("Find 2+2.", "", "math"),
            ("Find 3+3.", "\\frac{6}{1", "math"),
            (f"say {WORDS} 8.", "3", "math"),
            ("find $1+1$", "2", "math"),
            ("Find 4+4.", "8", "math"),
            ("Find $4+4$.", "9", "math"),
            (f"Write {WORDS} 9", "4", "math"),
        ),
        sets(ngram=7),
    )
    fault = label_fault("\\frac{6}{1", "math")
    assert selection.drops == {
        1: Drop("empty", "no problem"),
        2: Drop("empty", "no answer"),
        3: Drop("bad_label", fault),
        4: Drop("evaluation", "aime/1, amc/2"),
        5: Drop("duplicate", "own/p0"),
        6: Drop("conflict", "own/p6 (8) and own/p7 (9)"),
        7: Drop("conflict", "own/p6 (8) and own/p7 (9)"),
        8: Drop("evaluation_ngram", "aime/1, amc/2"),
    }
    assert {drop.reason for drop in selection.drops.values()} == set(REASONS)
    assert fault.startswith("it does not even equal itself")


def test_a_row_counts_once_for_each_evaluation_set():
    found = sets()
    found.add("aime/9", f"say {WORDS} 8")
    selection = select(rows((f"say {WORDS} 8", "3", "math"), ("say 9", "3", "math")), found)
    assert selection.overlaps == {"aime": 1, "amc": 1}


def test_a_row_with_a_bad_label_takes_no_part_in_repeats_and_conflicts():
    # the second one stays: the first has no answer that could be right
    selection = select(rows(("Find it.", "\\frac{1}{", "math"), ("Find it.", "1", "math")), EvaluationSets())
    assert [drop.reason for drop in selection.drops.values()] == ["bad_label"]


def test_a_conflict_goes_before_a_repeat():
    given = ("Find it.", "1", "math"), ("Find it.", "1", "math"), ("Find it.", "2", "math")
    selection = select(rows(*given), EvaluationSets())
    assert {number: drop.reason for number, drop in selection.drops.items()} == dict.fromkeys(range(3), "conflict")


@pytest.mark.parametrize(
    ("answer", "source", "good"),
    [
        ("x+1", "gsm8k/train", False),
        ("9 * 2 = 18\n#### 18", "gsm8k", True),
        ("12", "choice/amc", False),
        ("(B)", "choice", True),
    ],
)
def test_a_label_is_checked_by_the_rule_of_its_source(answer, source, good):
    selection = select(rows(("Find it.", answer, source)), EvaluationSets())
    assert (selection.drops == {}) is good
