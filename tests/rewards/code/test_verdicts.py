"""Programs whose verdict is known: right ones, and wrong ones of every kind."""

import json
from collections import Counter
from pathlib import Path

import pytest

CASES = [json.loads(line) for line in Path(__file__).with_name("cases.jsonl").read_text("utf-8").splitlines()]


def test_there_are_enough_of_every_kind():
    counts = Counter(case["verdict"] for case in CASES)
    assert len(CASES) >= 300
    assert set(counts) == {"passed", "wrong", "presentation", "error", "time", "memory", "output", "syntax"}


@pytest.mark.parametrize("problem", sorted({case["problem"] for case in CASES}))
def test_each_program_gets_its_verdict(verdict, problem):
    mistakes = []
    for case in CASES:
        if case["problem"] == problem:
            found = verdict(case["program"], case["tests"])
            if found.status != case["verdict"]:
                mistakes.append((case["case"], case["verdict"], found))
    assert not mistakes
