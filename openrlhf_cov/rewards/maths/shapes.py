"""The shapes that an answer can have. They hold text; no value is looked at."""

from dataclasses import dataclass
from typing import Literal

from openrlhf_cov.rewards.maths.numerals import Number


@dataclass(frozen=True)
class Scalar:
    """One value: ``text`` is clean LaTeX without unit; ``number`` is there if it is a literal number."""

    text: str
    unit: str = ""
    percent: bool = False
    number: Number | None = None


@dataclass(frozen=True)
class Text:
    """Words, compared without case, white space and punctuation."""

    key: str


@dataclass(frozen=True)
class Compound:
    """Several answers. ``kind`` is set, union, matrix, row, base, ratio, sum or a pair of brackets such as ``[)``."""

    kind: str
    items: tuple

    @property
    def ordered(self) -> bool:
        """Whether the order of the items matters."""
        return self.kind not in ("set", "union")


@dataclass(frozen=True)
class Equation:
    """``left = right``, or with another ``sign``: ``<`` or ``<=``.

    ``name`` is what the left side names, "" where it is a formula. ``value`` is the last side; of an inequality it is
    the interval of its one variable, or None. ``steps`` are the sides that have to agree for the value to count; an
    equation without name and steps has no value that could be an answer.
    """

    name: str
    left: str
    right: str
    value: "Answer | None"
    sign: Literal["=", "<", "<="] = "="
    steps: tuple = ()


@dataclass(frozen=True)
class Noted:
    """A value with a note beside it, which does not matter where the other side has none.

    ``kind`` is choice (the note is the letter of the option), condition (where the value holds) or rounded (the note
    is a rounding of the value).
    """

    kind: Literal["choice", "condition", "rounded"]
    value: "Answer"
    note: "Answer"


@dataclass(frozen=True)
class Time:
    """A time of day. ``half`` is "am" or "pm", "" where it is not said."""

    hour: int
    minute: int
    second: int
    half: str


Answer = Scalar | Text | Compound | Equation | Noted | Time


def is_assignment(answer: Answer) -> bool:
    """Whether this is ``x = 1, y = 2``, which also answers a question for ``(x, y)``."""
    is_set = isinstance(answer, Compound) and answer.kind == "set"
    return is_set and all(isinstance(item, Equation) and item.name for item in answer.items)
