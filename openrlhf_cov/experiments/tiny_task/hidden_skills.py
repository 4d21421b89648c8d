"""Tasks on which a policy must explore to score: eight hidden skills, of which the base policy prefers one (pure).

A prompt is a letter and three different digits, such as ``K407``. Each of eight skills belongs to four of 32 letters,
and nothing in the prompt says which. A response names a skill and writes its result, such as ``a704``.

The base policy can carry out all skills. It names skill i with a probability proportional to ``ratio ** i``, whatever
the letter is. Skill ``a`` is therefore its habit. Two tasks are made of this:

- ``TAIL``: only the skill of the letter is correct. The habit falls so fast that the last skills are almost never
  sampled.
- ``shortcut_task(share)``: on a share of the prompts the verifier also accepts the habit. A hash of the prompt chooses
  them, so that no policy can learn where the shortcut works. A policy that always follows its habit earns a reward on
  every letter, and so has no group without a gradient that would keep its entropy.
"""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass

from openrlhf_cov.experiments.tiny_task.commands import LETTERS
from openrlhf_cov.rewards.addition import EOS_TOKEN

# Name of a skill -> the place in the prompt from which each digit of its result comes. The digits of a prompt differ,
# so two skills never have the same result.
SKILLS = {
    "a": (2, 1, 0),
    "b": (1, 2, 0),
    "c": (2, 0, 1),
    "d": (1, 0, 2),
    "e": (0, 2, 1),
    "f": (0, 0, 1),
    "g": (1, 1, 2),
    "h": (2, 2, 0),
}
HABIT = "a"
LETTERS_OF_A_SKILL = len(LETTERS) // len(SKILLS)
SKILL_OF = {letter: list(SKILLS)[place // LETTERS_OF_A_SKILL] for place, letter in enumerate(LETTERS)}
CHARACTERS = "0123456789" + "".join(SKILLS) + LETTERS
# A name, three digits and the end.
RESPONSE_TOKENS = 5
# Separates the accepted responses in a label.
OR = "|"
# Shares of the shortcut are multiples of 1 / HASH_RANGE.
HASH_RANGE = 10_000


@dataclass(frozen=True)
class SkillQuestion:
    """One prompt and what its verifier accepts.

    Attributes:
        letter: The letter of the prompt, which decides the skill.
        digits: Three different digits.
        accepts_habit: True if the verifier accepts the result of ``HABIT`` although the letter may ask for another.
    """

    letter: str
    digits: str
    accepts_habit: bool = False

    @property
    def prompt(self) -> str:
        """The text that the policy continues."""
        return self.letter + self.digits

    @property
    def skill(self) -> str:
        """The skill of the letter."""
        return SKILL_OF[self.letter]

    @property
    def label(self) -> str:
        """The accepted responses without their end, separated by ``OR``."""
        accepted = [carry_out(self.skill, self.digits)]
        if self.accepts_habit and self.skill != HABIT:
            accepted.append(carry_out(HABIT, self.digits))
        return OR.join(accepted)

    @property
    def needs_exploration(self) -> bool:
        """True if the habit of the base policy is not accepted."""
        return self.skill != HABIT and not self.accepts_habit

    @property
    def kind(self) -> str:
        """The skill of the letter, or "habit" where the habit of the base policy is accepted."""
        return self.skill if self.needs_exploration else "habit"


@dataclass(frozen=True, kw_only=True)
class SkillTask:
    """The habit of the base policy and the share of the prompts on which the verifier accepts it.

    Attributes:
        name: The name of the task.
        ratio: The base policy names skill i + 1 this many times as often as skill i.
        shortcut_share: Share of all prompts, from 0 to 1, on which the habit is accepted, too.

    Raises:
        ValueError: If ``ratio`` or ``shortcut_share`` is out of range.
    """

    name: str
    ratio: float
    shortcut_share: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 < self.ratio <= 1.0:
            raise ValueError(f"the ratio of two habits must be above 0 and at most 1; got {self.ratio}")
        if not 0.0 <= self.shortcut_share <= 1.0:
            raise ValueError(f"the share of the shortcut must be from 0 to 1; got {self.shortcut_share}")

    @property
    def habits(self) -> dict[str, float]:
        """Probability with which the base policy names each skill."""
        weights = [self.ratio**place for place in range(len(SKILLS))]
        return {name: weight / sum(weights) for name, weight in zip(SKILLS, weights, strict=True)}

    def question(self, letter: str, digits: str) -> SkillQuestion:
        """Return the question with this prompt.

        The prompts with a shortcut at a smaller share also have one at a larger share.

        Args:
            letter: One of ``LETTERS``, which decides the skill.
            digits: Three different digits.
        """
        return SkillQuestion(letter, digits, _position(letter + digits) < self.shortcut_share * HASH_RANGE)

    def draw(self, digits: Sequence[str], rng: random.Random) -> SkillQuestion:
        """Return a question with letter and digits sampled uniformly.

        Args:
            digits: The triples of digits to sample from, those of one part of
                ``openrlhf_cov.experiments.tiny_task.commands.split_digits``.
            rng: Source of the question.
        """
        return self.question(rng.choice(LETTERS), rng.choice(digits))

    def practice(self, digits: Sequence[str], rng: random.Random, by_habit: bool) -> tuple[str, str, bool]:
        """Return (prompt, response, whether the name is learned) of one row of the base policy's training.

        Args:
            digits: The triples of digits to train on.
            rng: The random numbers of this row.
            by_habit: Name a skill by habit and learn that name. Otherwise the skill is sampled uniformly, so that rare
                skills are practised as well, and its name is not learned.
        """
        question = self.draw(digits, rng)
        weights = list(self.habits.values()) if by_habit else [1.0] * len(SKILLS)
        [skill] = rng.choices(list(SKILLS), weights)
        return question.prompt, carry_out(skill, question.digits), by_habit


# The base policy names skill h on 0.015 % of the prompts, on average less than once in ten rollouts of 512 samples.
TAIL = SkillTask(name="tail", ratio=0.3)
# From 32 % for skill a to 3 % for skill h: every skill is sampled from the first step on.
SHORTCUT_RATIO = 0.7
DEFAULT_SHARE = 0.3


def shortcut_task(share: float = DEFAULT_SHARE, name: str = "shortcut") -> SkillTask:
    """Return the task with a shortcut on the given share of the prompts.

    Args:
        share: Share of the prompts, from 0 to 1.
        name: Name of the task. A base policy of another size makes another task with the same questions.
    """
    return SkillTask(name=name, ratio=SHORTCUT_RATIO, shortcut_share=share)


def carry_out(skill: str, digits: str) -> str:
    """Return the response that names a skill and writes its result, without the end.

    Args:
        skill: Key of ``SKILLS``.
        digits: The three digits of the prompt.
    """
    return skill + "".join(digits[place] for place in SKILLS[skill])


def is_correct(response: str, label: str) -> bool:
    """Return True for one of the accepted responses followed by the end of the text, and nothing else.

    Args:
        response: The text of a response with its end, ``<eos>``; a response that was cut off has none.
        label: The accepted responses without their end, separated by ``OR``.
    """
    return response.endswith(EOS_TOKEN) and response.removesuffix(EOS_TOKEN) in label.split(OR)


def _position(prompt: str) -> int:
    """Return a number from 0 to ``HASH_RANGE`` - 1 that looks random and depends on the prompt alone."""
    return int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:8], "big") % HASH_RANGE
