"""One-line programs: an embedded task whose reward is the sandbox (pure).

A prompt says in three words and numbers what a function of a list does: which numbers it keeps, how it changes them,
what it gives of the result, such as ``above 3, times 4, first 2:``. A response is the program ``f``, such as
``f=lambda x:[v*4 for v in x if v>3][:2]``. It is right if it passes all tests of the exercise.

The base policy has learnt from careless programmers, of whose programs one in three is right. It knows the language,
but takes ``>=`` for ``>``, slices from the wrong end and forgets a bracket, some of it more often than not.
Reinforcement learning has to find out which habits the tests do not forgive.
"""

import itertools
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from openrlhf_cov.config import RewardConfig

DATASOURCE = "tiny_programs"
# Source of a row that is graded by the rule of its row.
SOURCE = f"code/{DATASOURCE}"
# A response is a program, without a fence around it.
REWARD = RewardConfig(reward_source="code", code_extract="whole")
FUNCTION = "f"
CONSTANTS = range(2, 10)
# Of an exercise; each is a list of ``NUMBERS`` numbers.
TESTS = 5
NUMBERS = 12
SMALLEST = -20
LARGEST = 60


@dataclass(frozen=True)
class Part:
    """The meaning of one word of a prompt, how it is written, and how careless programmers write it."""

    meaning: Callable
    right: Sequence[str]
    slips: Sequence[str]
    # How often the base policy's teachers write a slip.
    carelessness: float


KEEP = {
    "above": Part(lambda v, k: v > k, ["v>{k}"], ["v>={k}"], 0.6),
    "below": Part(lambda v, k: v < k, ["v<{k}"], ["v<={k}"], 0.25),
    "multiples of": Part(lambda v, k: v % k == 0, ["v%{k}==0"], ["v%{k}", "v//{k}==0"], 0.3),
    "except": Part(lambda v, k: v != k, ["v!={k}"], ["v>{k}"], 0.2),
}
CHANGE = {
    "plus": Part(lambda v, k: v + k, ["v+{k}", "{k}+v"], ["v*{k}"], 0.1),
    "minus": Part(lambda v, k: v - k, ["v-{k}"], ["{k}-v"], 0.55),
    "times": Part(lambda v, k: v * k, ["v*{k}", "{k}*v"], ["v+{k}"], 0.15),
    "modulo": Part(lambda v, k: v % k, ["v%{k}"], ["v//{k}"], 0.3),
}
GIVE = {
    "first": Part(lambda y, k: y[:k], ["{y}[:{k}]"], ["{y}[{k}]"], 0.15),
    "last": Part(lambda y, k: y[-k:], ["{y}[-{k}:]"], ["{y}[{k}:]", "{y}[:-{k}]"], 0.6),
    "largest": Part(lambda y, k: sorted(y)[-k:], ["sorted({y})[-{k}:]"], ["sorted({y})[:{k}]", "max({y})[:{k}]"], 0.3),
    "smallest": Part(lambda y, k: sorted(y)[:k], ["sorted({y})[:{k}]"], ["sorted({y})[-{k}:]", "min({y})"], 0.2),
    "every": Part(lambda y, k: y[::k], ["{y}[::{k}]"], ["{y}[:{k}]"], 0.35),
    "total modulo": Part(lambda y, k: sum(y) % k, ["sum({y})%{k}"], ["sum({y})//{k}", "sum({y}%{k})"], 0.25),
}
BEGINNINGS = (f"{FUNCTION}=lambda x:", f"def {FUNCTION}(x):return ")
# How often the last one is.
FORGOTTEN_BRACKET = 0.04

# Tokens. Many a text of them is no program.
WORDS = (
    *(str(digit) for digit in range(10)),
    *(f"{word} " for parts in (KEEP, CHANGE, GIVE) for word in parts),
    *(", ", *BEGINNINGS, "x", "v", " for v in ", " if ", "sorted", "sum", "max", "min"),
    *"[]():+-*/%<>=!",
)
EXERCISES = len(KEEP) * len(CHANGE) * len(GIVE) * len(CONSTANTS) ** 3
# Bound on a response; the longest written program has 28 tokens with its end.
RESPONSE_TOKENS = 32

# A word and its number.
Choice = tuple[str, int]


@dataclass(frozen=True)
class Exercise:
    """The function of a list that keeps some numbers, changes them, and gives something of the result."""

    keep: Choice
    change: Choice
    give: Choice

    @property
    def prompt(self) -> str:
        """The text that the policy continues."""
        return ", ".join(f"{word} {number}" for word, number in (self.keep, self.change, self.give)) + ":"

    @property
    def label(self) -> str:
        """The tests, as the rule ``code`` reads them. Every list has the number to keep by, and multiples of it."""
        # Seeded by the prompt alone, so that an exercise has the same tests in every file and process.
        rng = random.Random(self.prompt)
        _, number = self.keep
        calls = []
        for _ in range(TESTS):
            # With random numbers alone a slip would rarely show: the number itself distinguishes > from >=, and
            # multiples of it show slips of %.
            numbers = [number, number, *(number * rng.randint(-3, 9) for _ in range(5))]
            numbers += [rng.randint(SMALLEST, LARGEST) for _ in range(NUMBERS - len(numbers))]
            rng.shuffle(numbers)
            calls.append([[numbers], self.value(numbers)])
        return json.dumps({"function": FUNCTION, "calls": calls}, separators=(",", ":"))

    def value(self, numbers: Sequence[int]) -> list[int] | int:
        """Return the result of the function for a list."""
        keep, k = self.keep
        change, c = self.change
        give, g = self.give
        kept = [v for v in numbers if KEEP[keep].meaning(v, k)]
        changed = [CHANGE[change].meaning(v, c) for v in kept]
        return GIVE[give].meaning(changed, g)

    def to_row(self) -> dict[str, str]:
        """Return one line of the data files: keys ``input``, ``label``, ``datasource``."""
        return {"input": self.prompt, "label": self.label, "datasource": DATASOURCE}

    def to_benchmark_row(self) -> dict[str, str]:
        """Return one line of a benchmark: keys ``id``, ``problem``, ``answer``, ``source``."""
        return {"id": self.prompt, "problem": self.prompt, "answer": self.label, "source": SOURCE}


def split_exercises(seed: int, held_out: int) -> tuple[list[Exercise], list[Exercise]]:
    """Return all exercises in two parts: those to train on, and those that are held out.

    Args:
        seed: Determines the order of the exercises. With one seed, a smaller held-out part is the head of a larger
            one.
        held_out: Number of exercises that are held out.
    """
    choices = [[(word, number) for word in parts for number in CONSTANTS] for parts in (KEEP, CHANGE, GIVE)]
    exercises = [Exercise(*chosen) for chosen in itertools.product(*choices)]
    random.Random(f"programs:{seed}").shuffle(exercises)
    return exercises[held_out:], exercises[:held_out]


def write_program(exercise: Exercise, rng: random.Random, careless: bool = True) -> str:
    """Return a program for an exercise, without the end of a response.

    Args:
        exercise: The exercise.
        rng: Source of the choices; the same seed makes the same program.
        careless: True to write as a careless programmer, whose program may be wrong; False for a correct program.
    """

    def chosen(part: Part) -> str:
        slipped = careless and rng.random() < part.carelessness
        return rng.choice(part.slips if slipped else part.right)

    # The draws in this order make the same program from the same seed.
    keep = chosen(KEEP[exercise.keep[0]])
    change = chosen(CHANGE[exercise.change[0]])
    give = chosen(GIVE[exercise.give[0]])
    text = assemble(exercise, keep, change, give, rng.choice(BEGINNINGS))
    forgotten = careless and text[-1] in "])" and rng.random() < FORGOTTEN_BRACKET
    return text[:-1] if forgotten else text


def assemble(exercise: Exercise, keep: str, change: str, give: str, beginning: str = BEGINNINGS[0]) -> str:
    """Return the program that templates and the numbers of an exercise make.

    Args:
        exercise: The exercise, for its numbers.
        keep: Template of the condition, such as ``v>{k}``.
        change: Template of the changed number, such as ``v*{k}``.
        give: Template of the result, such as ``{y}[:{k}]``, with y the list.
        beginning: One of ``BEGINNINGS``.
    """
    condition = keep.format(k=exercise.keep[1])
    changed = change.format(k=exercise.change[1])
    return beginning + give.format(y=f"[{changed} for v in x if {condition}]", k=exercise.give[1])
