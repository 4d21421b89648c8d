import math
import random

import pytest

from openrlhf_cov.experiments.tiny_task.commands import LETTERS, split_digits
from openrlhf_cov.experiments.tiny_task.hidden_skills import (
    HABIT,
    SKILL_OF,
    SKILLS,
    TAIL,
    SkillTask,
    carry_out,
    is_correct,
    shortcut_task,
)


@pytest.mark.parametrize(
    ("letter", "label"),
    # Of 407, a takes the places 3 2 1, b 2 3 1 and h 3 3 1; each skill has four letters in the order of LETTERS.
    [("A", "a704"), ("D", "a704"), ("E", "b074"), ("I", "c740"), ("M", "d047"), ("Q", "e470"), ("U", "f440"),
     ("Y", "g007"), ("$", "h774"), ("!", "h774")],
)  # fmt: skip
def test_the_letter_decides_the_skill(letter, label):
    question = TAIL.question(letter, "407")
    assert question.prompt == f"{letter}407"
    assert question.label == label
    assert is_correct(f"{label}<eos>", question.label)
    assert not is_correct(label, question.label)  # no end
    assert question.needs_exploration == (letter not in "ABCD")


def test_every_skill_has_four_letters_and_a_result_of_its_own():
    assert [list(SKILL_OF.values()).count(skill) for skill in SKILLS] == [4] * 8
    assert len({carry_out(skill, "407")[1:] for skill in SKILLS}) == 8


def test_habits_fall_by_the_ratio():
    # 1, 1/2, ..., 1/128 add up to 255/128.
    habits = SkillTask(name="half", ratio=0.5).habits
    assert habits["a"] == pytest.approx(128 / 255)
    assert habits["h"] == pytest.approx(1 / 255)
    assert sum(TAIL.habits.values()) == pytest.approx(1.0)


def test_the_shortcut_also_accepts_the_habit():
    question = shortcut_task(1.0).question("E", "407")
    assert question.label == "b074|a704"
    assert is_correct("b074<eos>", question.label)
    assert is_correct("a704<eos>", question.label)
    assert not is_correct("c740<eos>", question.label)
    assert not is_correct("b074|a704<eos>", question.label)
    assert not question.needs_exploration
    assert question.kind == "habit"
    assert shortcut_task(0.0).question("E", "407").kind == "b"


def test_the_share_of_the_shortcut_and_the_score_of_the_habit():
    _, _, test = split_digits()
    prompts = [(letter, digits) for letter in LETTERS for digits in test]
    for share in (0.0, 0.1, 0.3):
        questions = [shortcut_task(share).question(*prompt) for prompt in prompts]
        accepted = sum(question.accepts_habit for question in questions) / len(questions)
        # 1,920 prompts: three standard deviations of the share are 3 sqrt(0.3 * 0.7 / 1920) = 0.031
        assert accepted == pytest.approx(share, abs=0.031)
        # The habit is the skill of an eighth of the letters, and is accepted on the share of the others.
        correct = sum(is_correct(carry_out(HABIT, each.digits) + "<eos>", each.label) for each in questions)
        assert correct / len(questions) == pytest.approx(1 / 8 + 7 / 8 * share, abs=0.031)
        # The optimum is 1: the policy that knows each letter is always correct.
        assert all(is_correct(carry_out(each.skill, each.digits) + "<eos>", each.label) for each in questions)


def test_a_larger_share_keeps_the_prompts_of_a_smaller_one():
    prompts = [(letter, digits) for letter in LETTERS for digits in split_digits()[2]]
    few, more = ({p for p in prompts if shortcut_task(share).question(*p).accepts_habit} for share in (0.1, 0.3))
    assert few < more


def test_the_base_policy_practises_by_habit_and_learns_no_other_name():
    rng = random.Random(0)
    rows = [shortcut_task().practice(["407"], rng, by_habit=True) for _ in range(4000)]
    for skill, probability in shortcut_task().habits.items():
        # three standard deviations of a share of 4,000 rows are 3 sqrt(p (1 - p) / 4000), at most 0.023
        spread = 3 * math.sqrt(probability * (1 - probability) / 4000)
        assert sum(response[0] == skill for _, response, _ in rows) / 4000 == pytest.approx(probability, abs=spread)
    assert {prompt[0] for prompt, _, _ in rows} == set(LETTERS)
    uniform = [TAIL.practice(["407"], rng, by_habit=False) for _ in range(4000)]
    # an eighth of 4,000 rows, three standard deviations: 3 sqrt(1/8 * 7/8 / 4000) = 0.016
    assert sum(response[0] == "h" for _, response, _ in uniform) / 4000 == pytest.approx(1 / 8, abs=0.016)
    assert not any(learns_name for _, _, learns_name in uniform)


@pytest.mark.parametrize(("changes", "message"), [({"ratio": 0.0}, "ratio"), ({"shortcut_share": 1.1}, "share")])
def test_values_out_of_range_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        SkillTask(**{"name": "x", "ratio": 0.5} | changes)
