"""No right program fails: over every form of tests, what programs and tests may do that is easily mistaken."""

import json
from pathlib import Path

import pytest

RIGHT = [json.loads(line) for line in Path(__file__).with_name("right.jsonl").read_text("utf-8").splitlines()]


def test_there_are_enough_and_each_has_a_name():
    assert len(RIGHT) >= 100
    assert len({each["case"] for each in RIGHT}) == len(RIGHT)


@pytest.mark.parametrize("case", RIGHT, ids=lambda case: case["case"])
def test_a_right_program_passes(verdict, case):
    found = verdict(case["program"], case["tests"])
    assert found.status == "passed", found
