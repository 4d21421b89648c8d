"""Problems that come more than once, and those that come with different answers.

Rows are compared within groups of the same letters and digits:

- where two rows of a group are the same statement with different answers, nobody knows which is right, and the whole
  group is left out;
- a row with the answer of an earlier row of its group is a repeat of that one;
- rows of a group with different statements and different answers are different problems: ``2n - 1`` and ``2n + 1``.

Answers are the same if the grader takes them as equal: ``0.5`` and ``\\frac12`` are.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

from openrlhf_cov.data.normal_form import letters, statement
from openrlhf_cov.rewards.maths.extraction import GSM8K_MARK
from openrlhf_cov.rewards.maths.grading import answers_equal


@dataclass(frozen=True, slots=True)
class Seen:
    """The record of a row: its number, its name, the digest of its statement and its answer."""

    number: int
    name: str
    statement: bytes
    answer: str


class Repeats:
    """Rows seen so far, by their letters and digits; texts are held as digests."""

    def __init__(self) -> None:
        self._groups: dict[bytes, list[Seen]] = {}

    def add(self, number: int, name: str, problem: str, answer: str) -> None:
        """Add a row.

        Args:
            number: Number of the row over all sources. Rows are added in ascending order.
            name: Name of the row in reports.
            problem: Text of the problem. Only digests of it are kept.
            answer: The label; of a solution in the form of GSM8K only what stands after ``####`` counts.
        """
        row = Seen(number, name, _digest(statement(problem)), answer.rpartition(GSM8K_MARK)[2].strip())
        self._groups.setdefault(_digest(letters(problem)), []).append(row)

    def conflicts(self) -> dict[int, str]:
        """Return what the conflict is about for every row of a group with a conflict, by the number of the row."""
        found = {}
        for group in self._groups.values():
            pair = _conflict(group)
            if pair:
                about = " and ".join(f"{row.name} ({row.answer})" for row in pair)
                found.update({row.number: about for row in group})
        return found

    def duplicates(self) -> dict[int, str]:
        """Return the name of the earlier row for every row that repeats one of its group, by the number of the row."""
        found = {}
        for group in self._groups.values():
            firsts: list[Seen] = []
            for row in group:
                first = next((first for first in firsts if same_answer(first.answer, row.answer)), None)
                if first is None:
                    firsts.append(row)
                else:
                    found[row.number] = first.name
        return found


def same_answer(one: str, other: str) -> bool:
    """Return True if two labels are the same text, or if the grader accepts one of them for the other.

    Args:
        one: The label of a row.
        other: The label of another row. The order does not matter.
    """
    return one == other or answers_equal(one, other)


def _conflict(group: Iterable[Seen]) -> tuple[Seen, Seen] | None:
    distinct: dict[tuple[bytes, str], Seen] = {}
    for row in group:
        distinct.setdefault((row.statement, row.answer), row)
    for one, other in combinations(distinct.values(), 2):
        if one.statement == other.statement and not same_answer(one.answer, other.answer):
            return one, other
    return None


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
