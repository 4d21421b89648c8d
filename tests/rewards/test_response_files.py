import json

import pytest

from openrlhf_cov.errors import UsageError
from openrlhf_cov.rewards.grades import Grade
from openrlhf_cov.rewards.response_files import (
    MAX_SHOWN,
    ResponseRow,
    comparison,
    grade_lines,
    read_response_rows,
    summary,
)


def rows_of(count: int) -> list[ResponseRow]:
    return [ResponseRow(line, "", "5") for line in range(1, count + 1)]


@pytest.fixture
def file(tmp_path):
    """Function (records): a file with them, one on each line."""

    def write(*records):
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        return path

    return write


def test_a_row_has_the_prompt_and_the_source_of_its_line(file):
    record = {"response": "5", "answer": "5"}
    chat = [{"role": "user", "content": "?"}]
    path = file(record, record | {"prompt": "2 + 3?", "source": "math/x"}, record | {"prompt": chat})
    assert read_response_rows(path, "response", "answer") == [
        ResponseRow(1, "5", "5"),
        ResponseRow(2, "5", {"answer": "5", "source": "math/x"}, "2 + 3?"),
        ResponseRow(3, "5", "5"),  # a chat is no text of a prompt
    ]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"text": "5", "answer": "5"}, "has no key 'response'; it has text, answer; name the key with --response_key"),
        ({"response": "5"}, "has no key 'answer'; it has response; name the key with --label_key"),
        ({"response": 5, "answer": "5", "asked": ""}, "'response' is int, not a string"),
        ({"response": "5", "answer": "5"}, "has no key 'asked'; it has response, answer; name the key with --prompt_"),
        ({"response": "5", "answer": "5", "asked": []}, "'asked' is list, not a string"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(file, record, message):
    with pytest.raises(UsageError) as refusal:
        read_response_rows(file({"response": "5", "answer": "5", "asked": ""}, record), "response", "answer", "asked")
    assert ", line 2" in str(refusal.value)
    assert message in str(refusal.value)


def test_the_summary_by_hand():
    grades = [
        Grade(correct=True, status="graded", answer="5", seconds=0.25),
        Grade(correct=False, status="graded", answer="6\n  7", seconds=0.5),
        Grade(correct=False, status="no_answer"),
        Grade(correct=False, status="graded", answer="8", seconds=0.125),
    ]
    # 2 of 4 graded rows are incorrect; the row of 0.5 s took longest, and white space in its answer is one space
    assert summary(rows_of(4), grades).splitlines() == [
        "status       responses   share",
        "incorrect            2   50.0%",
        "correct              1   25.0%",
        "no_answer            1   25.0%",
        "",
        "slowest        seconds  answer",
        "line 2           0.500  6 7 (graded)",
        "line 1           0.250  5 (graded)",
        "line 4           0.125  8 (graded)",
        "line 3           0.000   (no_answer)",
    ]


def test_the_comparison_names_the_first_rows_that_differ():
    count = MAX_SHOWN + 3
    refused = [Grade(correct=False, status="unparsable", answer="3+2")] * count
    accepted = [Grade(correct=True, status="graded", answer="3+2")] * count
    lines = comparison(rows_of(count), refused, accepted).splitlines()
    assert [line.split() for line in lines[1:4]] == [
        ["strict", "0", "0.0%"],
        ["published", str(count), "100.0%"],
        ["differ", str(count), "100.0%"],
    ]
    assert lines[4:7] == ["", "correct by published alone:", "line 1: 3+2, label 5"]
    # the table and its heading are 6 lines, then MAX_SHOWN rows, and a line that counts the other 3
    assert len(lines) == 6 + MAX_SHOWN + 1
    assert lines[-1] == "and 3 more"


def test_graders_that_agree_are_counted_alone():
    grades = [Grade(correct=True, status="graded", answer="5")]
    assert comparison(rows_of(1), grades, grades).splitlines()[-1].split() == ["differ", "0", "0.0%"]


def test_a_line_of_a_program_has_its_verdict():
    program = Grade(correct=False, status="graded", verdict="wrong_answer", share=1 / 3, detail="test 2", seconds=1.0)
    answer = Grade(correct=True, status="graded", answer="5")
    lines = [json.loads(line) for line in grade_lines(rows_of(2), [program, answer], [program, answer])]
    first = {"line": 1, "correct": False, "status": "graded", "answer": None, "published": False}
    assert lines[0] == first | {"verdict": "wrong_answer", "tests": 0.333333, "detail": "test 2", "seconds": 1.0}
    second = {"line": 2, "correct": True, "status": "graded", "answer": "5", "published": True, "seconds": 0.0}
    assert lines[1] == second
