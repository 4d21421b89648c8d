"""Hidden commands: an embedded task on which exploration decides (pure).

A prompt is a letter and three different digits, such as ``K407``. Every letter stands for one of four reorderings of
the digits, the skills, but nothing in the prompt says which. A response names a skill and writes its result: ``a704``.
It is right if that is the skill of the letter and the result is right.

The base policy has practised all skills but names them by habit, whatever the letter. Rare names mostly fail at first,
and a policy gradient pushes them down on all letters before it can tell the letters apart. Those tokens have the
highest covariance of log-probability and advantage. A policy that has forgotten a name never finds its letters, and
scores no more than the share of the others.
"""

import itertools
import random
import re
from dataclasses import dataclass

from openrlhf_cov.rewards.addition import EOS_TOKEN

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ@#$%&!"
# Name of a skill -> the place in the prompt from which each digit of its result comes.
SKILLS = {"a": (2, 1, 0), "b": (1, 2, 0), "c": (2, 0, 1), "d": (1, 0, 2)}
CHARACTERS = "0123456789" + "".join(SKILLS) + LETTERS
# How many letters stand for each skill, in the order of ``LETTERS``. Always naming ``a`` scores 14/32.
LETTERS_OF = {"a": 14, "b": 8, "c": 6, "d": 4}
# How often the base policy names each skill.
HABIT = {"a": 0.80, "b": 0.13, "c": 0.05, "d": 0.02}
# A name, three digits and the end.
RESPONSE_TOKENS = 5
DATASOURCE = "hidden_commands"
# Triples of digits that no policy sees: as many to choose by, and as many for the test.
HELD_OUT_DIGITS = 60

_ANSWER = re.compile(f"[{''.join(SKILLS)}][0-9]{{3}}")

SKILL_OF = dict(zip(LETTERS, (name for name, count in LETTERS_OF.items() for _ in range(count)), strict=True))


@dataclass(frozen=True)
class Command:
    """One letter and three different digits."""

    letter: str
    digits: str

    @property
    def prompt(self) -> str:
        """The text that the policy continues."""
        return self.letter + self.digits

    @property
    def skill(self) -> str:
        """The name that its letter stands for."""
        return SKILL_OF[self.letter]

    @property
    def label(self) -> str:
        """The only correct response, without its end."""
        return self.carried_out(self.skill)

    def carried_out(self, skill: str) -> str:
        """Return the response that names ``skill`` and carries it out."""
        return skill + "".join(self.digits[place] for place in SKILLS[skill])

    def to_row(self) -> dict[str, str]:
        """Return one line of a training file: keys ``input``, ``label``, ``datasource``."""
        return {"input": self.prompt, "label": self.label, "datasource": DATASOURCE}

    def to_benchmark_row(self) -> dict[str, str]:
        """Return one line of a benchmark: keys ``id``, ``problem``, ``answer``, ``source``."""
        return {"id": self.prompt, "problem": self.prompt, "answer": self.label, "source": DATASOURCE}


def split_digits() -> tuple[list[str], list[str], list[str]]:
    """Return the 720 triples of different digits in three disjoint parts: training, validation and test."""
    triples = ["".join(triple) for triple in itertools.permutations("0123456789", 3)]
    # One split for all seeds, so that no base policy and no run trains on digits that another one is tested on.
    random.Random("hidden commands").shuffle(triples)
    held_out = 2 * HELD_OUT_DIGITS
    return triples[held_out:], triples[:HELD_OUT_DIGITS], triples[HELD_OUT_DIGITS:held_out]


def split_commands(seed: int, held_out: int) -> tuple[list[Command], list[Command]]:
    """Return the commands to train on and those of the test, each in random order.

    Args:
        seed: Determines both orders, and which commands of the test are returned.
        held_out: Number of commands of the test.

    Raises:
        ValueError: ``held_out`` is below 1, or the test has fewer commands.
    """
    train, _, test = split_digits()
    parts = [[Command(*pair) for pair in itertools.product(LETTERS, digits)] for digits in (train, test)]
    if not 0 < held_out <= len(parts[1]):
        raise ValueError(f"held_out is from 1 to {len(parts[1])} commands, got {held_out}")
    rng = random.Random(f"commands:{seed}")
    return rng.sample(parts[0], len(parts[0])), rng.sample(parts[1], held_out)


def draw(digits: list[str], rng: random.Random) -> Command:
    """Return a command with letter and digits sampled uniformly.

    Args:
        digits: The triples of digits to sample from, those of one part of ``split_digits``.
        rng: Source of the command.
    """
    return Command(rng.choice(LETTERS), rng.choice(digits))


def practice(digits: list[str], rng: random.Random, by_habit: bool) -> tuple[str, str, bool]:
    """Return (prompt, response, True if the name is learned) of one row of the base policy's training.

    Args:
        digits: The triples of digits to train on.
        rng: Source of the row.
        by_habit: Name a skill by habit and learn that name. Otherwise the skill is sampled uniformly, so that rare
            skills are practised as well, and its name is not learned.
    """
    command = draw(digits, rng)
    weights = HABIT.values() if by_habit else [1] * len(SKILLS)
    [skill] = rng.choices(list(SKILLS), list(weights))
    return command.prompt, command.carried_out(skill), by_habit


def extract_answer(response: str) -> str | None:
    """Return a name and three digits; None for any other response. One ``<eos>`` at the end is ignored."""
    answer = response.removesuffix(EOS_TOKEN)
    return answer if is_answer(answer) else None


def is_answer(text: str) -> bool:
    """Return True for a name and three digits."""
    return _ANSWER.fullmatch(text) is not None


def is_right(response: str, label: str) -> bool:
    """Return True for the label followed by the end of the text, and nothing else.

    Args:
        response: The text of a response with its end, ``<eos>``; a response that was cut off has none.
        label: The correct response without its end.
    """
    return response == label + EOS_TOKEN
