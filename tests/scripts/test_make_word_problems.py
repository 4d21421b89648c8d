"""Problems of one step: answers worked out from the words, no problem twice."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "make_word_problems.py"


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> dict[str, list[dict[str, str]]]:
    """What the script writes, by file."""
    folder = tmp_path_factory.mktemp("word_problems") / "new"
    subprocess.run([sys.executable, SCRIPT, "--output", folder], check=True, timeout=60)
    return {path.stem: [json.loads(line) for line in path.read_text().splitlines()] for path in folder.iterdir()}


def solved(question: str) -> int:
    """The answer, from what the question says and not from how it was drawn."""
    first, second = map(int, re.findall(r"\d+", question))
    if "gives away" in question:
        return first - second
    return first * second if "in each" in question else first + second


def question_of(row: dict[str, str]) -> str:
    """The last turn of the user."""
    return row["prompt"].split("<|im_start|>user\n")[-1].split("<|im_end|>")[0]


def test_answers_are_those_of_the_words(rows):
    assert {name: len(part) for name, part in rows.items()} == {"train": 2000, "test": 128}
    for row in rows["train"] + rows["test"]:
        assert row["answer"] == str(solved(question_of(row)))
        assert int(row["answer"]) > 0
        assert row["problem"] == row["prompt"]
        # three solved problems before it, and the model is to speak next
        assert row["prompt"].count("#### ") == 3
        assert row["prompt"].endswith("<|im_end|>\n<|im_start|>assistant\n")


def test_no_problem_stands_twice_or_is_shown_solved(rows):
    questions = [question_of(row) for row in rows["train"] + rows["test"]]
    assert len(set(questions)) == 2128
    shown = runpy.run_path(str(SCRIPT))["SOLVED"]
    assert not {question for question, _ in shown} & set(questions)
    assert all(solution.endswith(f"#### {solved(question)}") for question, solution in shown)
    # every kind of problem in both parts, a third each
    for part in rows.values():
        taken = sum("gives away" in row["problem"].split("<|im_start|>user\n")[-1] for row in part)
        assert abs(taken - len(part) / 3) < 1
