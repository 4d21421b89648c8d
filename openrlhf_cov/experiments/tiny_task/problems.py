"""The embedded task: two-digit additions, the ways to write their answers, and the train / held-out split (pure)."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from openrlhf_cov.rewards.addition import DATASOURCE

OPERANDS = range(10, 100)


@dataclass(frozen=True)
class Addition:
    """The addition ``a + b``; both operands have two digits."""

    a: int
    b: int

    @property
    def prompt(self) -> str:
        """The text the policy continues, for example ``34+57=``."""
        return f"{self.a}+{self.b}="

    @property
    def label(self) -> str:
        """The sum as decimal digits."""
        return str(self.a + self.b)

    def to_row(self) -> dict[str, str]:
        """Return one line of the data files: keys ``input``, ``label``, ``datasource``."""
        return {"input": self.prompt, "label": self.label, "datasource": DATASOURCE}

    def to_benchmark_row(self) -> dict[str, str]:
        """Return one line of a benchmark: keys ``id``, ``problem``, ``answer``, ``source``."""
        return {"id": self.prompt, "problem": self.prompt, "answer": self.label, "source": DATASOURCE}


class Split(NamedTuple):
    """All 8,100 problems in two disjoint parts, each in random order."""

    train: tuple[Addition, ...]
    held_out: tuple[Addition, ...]


def split_problems(seed: int, held_out: int) -> Split:
    """Return all problems in two parts: those to train on, and those that are held out.

    Args:
        seed: Determines the order of the problems. With one seed, a smaller held-out part is the head of a larger one.
        held_out: Number of problems that are held out.

    Raises:
        ValueError: One of the parts would be empty.
    """
    problems = [Addition(a, b) for a in OPERANDS for b in OPERANDS]
    if not 0 < held_out < len(problems):
        raise ValueError(f"held_out is from 1 to {len(problems) - 1} problems, got {held_out}")
    random.Random(f"split:{seed}").shuffle(problems)
    return Split(train=tuple(problems[held_out:]), held_out=tuple(problems[:held_out]))


def _digit_wise(problem: Addition) -> str:
    tens_a, units_a = divmod(problem.a, 10)
    tens_b, units_b = divmod(problem.b, 10)
    return f"{units_a}+{units_b}={units_a + units_b};{tens_a}+{tens_b}={tens_a + tens_b};{problem.label}"


def _tens_then_units(problem: Addition) -> str:
    tens_a, units_a = divmod(problem.a, 10)
    tens_b, units_b = divmod(problem.b, 10)
    return f"{10 * tens_a}+{10 * tens_b}={10 * (tens_a + tens_b)};{units_a + units_b};{problem.label}"


# Name of a style -> its probability and its writer. Several styles give the policy an entropy to lose.
ANSWER_STYLES: dict[str, tuple[float, Callable[[Addition], str]]] = {
    "digit_wise": (0.3, _digit_wise),
    "swapped_operands": (0.25, lambda problem: f"{problem.b}+{problem.a};{problem.label}"),
    "tens_then_units": (0.2, _tens_then_units),
    "direct": (0.25, lambda problem: problem.label),
}


def write_answer(problem: Addition, rng: random.Random) -> str:
    """Return a correct response in a random style of ``ANSWER_STYLES``, without the ``<eos>`` that ends it.

    Args:
        problem: The addition.
        rng: Source of the style.
    """
    weights = [weight for weight, _ in ANSWER_STYLES.values()]
    [(_, write)] = rng.choices(list(ANSWER_STYLES.values()), weights)
    return write(problem)
