"""Problems that come more than once, and those that come with different answers.

Rows are compared within groups of the same letters and digits:

- two rows of a group with the same statement and different answers are a conflict: nobody knows which is right. Both
  are left out, and with them the rows of the group that have their statement or one of their answers;
- a row with the answer of an earlier row of its group is a repeat of that one;
- rows of a group with different statements and different answers are different problems: ``2n - 1`` and ``2n + 1``.

Answers are the same if the rule of the row says so: ``0.5`` and ``\\frac12`` in mathematics, ``B`` and ``(b)`` in
multiple choice. The tests of a program are examples, so other tests for the same statement are no other answer.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations

from openrlhf_cov.data.normal_form import letters, statement
from openrlhf_cov.rewards.maths.extraction import GSM8K_MARK
from openrlhf_cov.rewards.maths.grading import answers_equal
from openrlhf_cov.rewards.sources import same_choice


@dataclass(frozen=True, slots=True)
class Seen:
    """The record of a row: its number, its name, the digest of its statement, and its answer with the rule for it."""

    number: int
    name: str
    statement: bytes
    answer: str
    rule: str


class Repeats:
    """Rows seen so far, by their letters and digits; texts are held as digests."""

    def __init__(self) -> None:
        self._groups: dict[bytes, list[Seen]] = {}

    def add(self, number: int, name: str, problem: str, answer: str, source: str = "math") -> None:
        """Add a row.

        Args:
            number: Number of the row over all sources. Rows are added in ascending order.
            name: Name of the row in reports.
            problem: Text of the problem. Only digests of it are kept.
            answer: The label; of a solution in the form of GSM8K only what stands after ``####`` counts. Of the tests
                of a program only the digest is kept.
            source: The source of the row, which begins with the rule that grades it.
        """
        rule = source.partition("/")[0].lower()
        kept = f"tests {_digest(answer).hex()}" if rule == "code" else answer.rpartition(GSM8K_MARK)[2].strip()
        row = Seen(number, name, _digest(statement(problem)), kept, rule)
        self._groups.setdefault(_digest(letters(problem)), []).append(row)

    def conflicts(self) -> dict[int, str]:
        """Return what the conflict is about for every row that is left out for one, by the number of the row."""
        found: dict[int, str] = {}
        for group in self._groups.values():
            for one, other in _conflicts(group):
                about = f"{one.name} ({one.answer}) and {other.name} ({other.answer})"
                disputed = {row.answer: row for row in group if row.statement == one.statement}.values()
                for row in group:
                    if row.statement == one.statement or any(_agree(row, answer) for answer in disputed):
                        found.setdefault(row.number, about)
        return found

    def duplicates(self) -> dict[int, str]:
        """Return the name of the earlier row for every row that repeats one of its group, by the number of the row."""
        found = {}
        for group in self._groups.values():
            firsts: list[Seen] = []
            for row in group:
                first = next((first for first in firsts if _agree(first, row)), None)
                if first is None:
                    firsts.append(row)
                else:
                    found[row.number] = first.name
        return found


def _agree(one: Seen, other: Seen) -> bool:
    """Return True if two rows of a group have the same answer."""
    if one.answer == other.answer:
        return True
    if one.rule == other.rule == "code":
        return one.statement == other.statement
    if one.rule == other.rule == "choice":
        return same_choice(one.answer, other.answer)
    return answers_equal(one.answer, other.answer)


def _conflicts(group: Iterable[Seen]) -> Iterator[tuple[Seen, Seen]]:
    """Yield the first two rows with different answers of every statement that has such rows."""
    statements: dict[bytes, dict[str, Seen]] = {}
    for row in group:
        statements.setdefault(row.statement, {}).setdefault(row.answer, row)
    for rows in statements.values():
        pair = next((pair for pair in combinations(rows.values(), 2) if not _agree(*pair)), None)
        if pair:
            yield pair


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
