import random

import pytest

from openrlhf_cov.tiny_task.commands import HABIT, LETTERS, SKILL_OF, Command, draw, is_right, practice, split_digits


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
    train, held_out = split_digits(120)
    assert len(train) == 600
    assert len({*train, *held_out}) == 720
    assert split_digits(120) == (train, held_out)
    rng = random.Random(0)
    assert {draw(train, rng).digits for _ in range(2000)}.isdisjoint(held_out)


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
