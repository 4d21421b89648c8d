import json
import random
from collections.abc import Callable

import pytest

from openrlhf_cov.experiments.tiny_task import programs
from openrlhf_cov.experiments.tiny_task.programs import (
    CHANGE,
    GIVE,
    KEEP,
    Exercise,
    assemble,
    split_exercises,
    write_program,
)
from openrlhf_cov.experiments.tiny_task.tokenizer import build_tokenizer
from openrlhf_cov.rewards.addition import EOS_TOKEN
from openrlhf_cov.rewards.code.rule import grade_code

NUMBERS = [4, 3, -6, 9, 8, 3]


@pytest.mark.parametrize(
    ("keep", "change", "give", "value"),
    [
        # keeps 4 9 8, changes them to 8 18 16
        (("above", 3), ("times", 2), ("first", 2), [8, 18]),
        (("above", 3), ("times", 2), ("last", 2), [18, 16]),
        (("above", 3), ("times", 2), ("largest", 2), [16, 18]),
        (("above", 3), ("times", 2), ("smallest", 2), [8, 16]),
        (("above", 3), ("times", 2), ("every", 2), [8, 16]),
        (("above", 3), ("times", 2), ("total modulo", 5), 2),  # 42 = 8 * 5 + 2
        (("below", 4), ("plus", 5), ("first", 9), [8, -1, 8]),  # of 3 -6 3
        (("multiples of", 3), ("minus", 2), ("first", 9), [1, -8, 7, 1]),  # of 3 -6 9 3
        (("except", 3), ("modulo", 5), ("first", 9), [4, 4, 4, 3]),  # of 4 -6 9 8; -6 = -2 * 5 + 4
    ],
)
def test_values_by_hand(keep, change, give, value):
    assert Exercise(keep, change, give).value(NUMBERS) == value


EXERCISE = Exercise(("above", 3), ("times", 4), ("first", 2))


def test_a_row_by_hand():
    row, asked = EXERCISE.to_row(), EXERCISE.to_benchmark_row()
    assert row["input"] == asked["problem"] == "above 3, times 4, first 2:"
    assert row["label"] == asked["answer"]
    tests = json.loads(row["label"])
    assert (tests["function"], len(tests["calls"])) == ("f", 5)
    for (numbers,), value in tests["calls"]:
        assert numbers.count(3) >= 2
        assert value == EXERCISE.value(numbers)


def test_a_program_by_hand():
    program = assemble(EXERCISE, "v>={k}", "{k}*v", "sorted({y})[-{k}:]", "def f(x):return ")
    assert program == "def f(x):return sorted([4*v for v in x if v>=3])[-2:]"


@pytest.mark.slow
def test_held_out_exercises_train_nobody():
    train, held_out = split_exercises(seed=0, held_out=100)
    assert (len(train) + len(held_out), len(held_out)) == (programs.EXERCISES, 100)
    assert len({*train, *held_out}) == programs.EXERCISES
    assert split_exercises(seed=0, held_out=100) == (train, held_out)
    assert split_exercises(seed=1, held_out=100)[1] != held_out


@pytest.mark.slow
def test_every_text_is_written_in_the_words_of_the_tokenizer():
    tokenizer = build_tokenizer(64, programs.WORDS)
    rng = random.Random(0)
    for exercise in split_exercises(seed=0, held_out=500)[1]:
        assert len(tokenizer.encode(exercise.prompt)) == 9
        program = write_program(exercise, rng) + EOS_TOKEN
        ids = tokenizer.encode(program)
        assert len(ids) <= programs.RESPONSE_TOKENS - 4
        assert tokenizer.decode(ids, skip_special_tokens=False) == program


@pytest.fixture
def verdict(needs_sandbox) -> Callable[[str, Exercise], str | None]:
    """Function (program, exercise) -> the verdict of the sandbox."""
    return lambda program, exercise: grade_code(program + EOS_TOKEN, exercise.label, programs.REWARD).verdict


def written(**changed: str) -> dict[str, str]:
    """The parts of a right program, but for those that are changed."""
    return {"keep": "v>{k}", "change": "v+{k}", "give": "{y}[:{k}]"} | changed


WAYS = [
    (place, word, template, right)
    for place, parts in (("keep", KEEP), ("change", CHANGE), ("give", GIVE))
    for word, part in parts.items()
    for right, templates in ((True, part.right), (False, part.slips))
    for template in templates
]


@pytest.mark.parametrize(("place", "word", "template", "right"), WAYS)
def test_the_tests_tell_a_slip_from_a_program(verdict, place, word, template, right):
    choices = {"keep": ("above", 4), "change": ("plus", 3), "give": ("first", 5)} | {place: (word, 4)}
    exercise = Exercise(**choices)
    assert (verdict(assemble(exercise, **written(**{place: template})), exercise) == "passed") is right


@pytest.mark.slow
def test_careful_programmers_are_right_and_careless_ones_in_one_of_three(verdict):
    exercises = split_exercises(seed=0, held_out=150)[1]
    rng = random.Random(0)
    for exercise in exercises[:20]:
        assert verdict(write_program(exercise, rng, careless=False), exercise) == "passed"
    # 0.31 of 3,000 are right; of 150 four standard deviations are 4 sqrt(0.31 * 0.69 / 150) = 0.15
    right = [verdict(write_program(exercise, rng), exercise) == "passed" for exercise in exercises]
    assert sum(right) / 150 == pytest.approx(0.31, abs=0.15)


@pytest.mark.slow
def test_no_constant_answer_passes(verdict):
    # what a policy might find that reads no prompt: nothing, the list itself, a part of it
    for exercise in split_exercises(seed=0, held_out=12)[1]:
        for body in ("[]", "x", "0", "x[:5]"):
            assert verdict(f"f=lambda x:{body}", exercise) != "passed"
