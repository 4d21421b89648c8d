"""No right program fails: over every form of tests, what programs and tests may do."""

import importlib.util
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location("right_programs", Path(__file__).with_name("right.py"))
table = importlib.util.module_from_spec(spec)
spec.loader.exec_module(table)


def test_there_are_enough_and_each_has_a_name():
    assert len(table.RIGHT) >= 100
    assert len({name for name, _, _ in table.RIGHT}) == len(table.RIGHT)


@pytest.mark.parametrize(
    ("program", "tests"), [each[1:] for each in table.RIGHT], ids=[each[0] for each in table.RIGHT]
)
def test_a_right_program_passes(verdict, program, tests):
    found = verdict(program, tests)
    assert found.status == "passed", found
