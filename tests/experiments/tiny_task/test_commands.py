import random

import pytest

from openrlhf_cov.experiments.tiny_task.commands import (
    HABIT,
    LETTERS,
    SKILL_OF,
    Command,
    draw,
    extract_answer,
    is_right,
    practice,
    split_commands,
    split_digits,
)


@pytest.mark.parametrize(
    ("letter", "skill", "label"),
    [
        ("A", "a", "a704"),
        ("N", "a", "a704"),
        ("O", "b", "b074"),
        ("W", "c", "c740"),
        ("&", "d", "d047"),
        ("!", "d", "d047"),
    ],
)
def test_labels_by_hand(letter, skill, label):
    # of 407, a takes the digits in the order 3 2 1, b 2 3 1, c 3 1 2, d 2 1 3; 14, 8, 6 and 4 letters in this order
    command = Command(letter, "407")
    assert (command.prompt, command.skill, command.label) == (f"{letter}407", skill, label)


def test_letters_are_shared_out():
    assert len(LETTERS) == len(set(LETTERS)) == 32
    assert [list(SKILL_OF.values()).count(skill) for skill in "abcd"] == [14, 8, 6, 4]


def test_held_out_digits_train_nobody():
    train, validation, test = split_digits()
    assert [len(train), len(validation), len(test)] == [600, 60, 60]
    assert len({*train, *validation, *test}) == 720
    assert split_digits() == (train, validation, test)
    rng = random.Random(0)
    assert {draw(train, rng).digits for _ in range(2000)} <= set(train)


@pytest.mark.slow
def test_commands_for_files():
    train, held_out = split_commands(seed=3, held_out=200)
    assert [len(train), len(held_out)] == [32 * 600, 200]
    assert len({command.prompt for command in (*train, *held_out)}) == 32 * 600 + 200
    assert {command.digits for command in held_out} <= set(split_digits()[2])
    assert split_commands(3, 200) == (train, held_out)
    assert split_commands(4, 200)[0] != train
    for wrong in (0, 32 * 60 + 1):
        with pytest.raises(ValueError, match="from 1 to 1920"):
            split_commands(3, wrong)


def test_rows_by_hand():
    command = Command("W", "407")
    assert command.to_row() == {"input": "W407", "label": "c740", "datasource": "hidden_commands"}
    benchmark = {"id": "W407", "problem": "W407", "answer": "c740", "source": "hidden_commands"}
    assert command.to_benchmark_row() == benchmark


@pytest.mark.parametrize(
    ("response", "answer"),
    [("c740<eos>", "c740"), ("c740", "c740"), ("e740<eos>", None), ("c74<eos>", None), ("c7401", None), ("", None)],
)
def test_answers(response, answer):
    assert extract_answer(response) == answer


def test_the_habit_ignores_the_letter():
    rng = random.Random(0)
    rows = [practice(["407"], rng, by_habit=True) for _ in range(4000)]
    for skill, share in HABIT.items():
        # a share of 4,000 rows, three standard deviations: 3 sqrt(0.8 * 0.2 / 4000) = 0.019 at most
        assert sum(response[0] == skill for _, response, _ in rows) / 4000 == pytest.approx(share, abs=0.019)
    prompt, response, learns_name = practice(["407"], rng, by_habit=False)
    assert response == Command(prompt[0], "407").carried_out(response[0])
    assert not learns_name


@pytest.mark.parametrize(
    ("response", "right"),
    [
        ("a704<eos>", True),
        ("a704", False),
        ("b704<eos>", False),
        ("a705<eos>", False),
        (" a704<eos>", False),
        ("", False),
    ],
)
def test_one_response_is_right(response, right):
    assert is_right(response, Command("A", "407").label) is right
