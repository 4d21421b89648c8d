r"""Whether two shapes of answers are equal, given a rule for scalars. Structure is settled before values."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from openrlhf_cov.rewards.maths.names import GREEK
from openrlhf_cov.rewards.maths.normalization import compact
from openrlhf_cov.rewards.maths.numerals import numbers_equal, rounds_to
from openrlhf_cov.rewards.maths.shapes import Answer, Compound, Equation, Noted, Scalar, Text, Time, is_assignment
from openrlhf_cov.rewards.maths.structure import parse_answer
from openrlhf_cov.rewards.maths.units import has_names, split_symbols

ScalarRule = Callable[[Scalar, Scalar], bool | None]
EquationRule = Callable[[Equation, Equation], bool | None]


@dataclass(frozen=True)
class Rules:
    """What decides once the structure agrees: each rule answers True, False or None for "not here".

    ``scalars`` compares two answers, ``equations`` two equations that are no named values. ``steps`` compares sides of
    one chain, where a computation may well lead to its value, and the second may round the first.
    """

    scalars: ScalarRule
    equations: EquationRule
    steps: ScalarRule

    @property
    def within(self) -> "Rules":
        """The rules for the sides of one chain."""
        return Rules(self.steps, self.equations, self.steps)


NEVER_EQUAL = frozenset({"nan", "inf", "-inf", "+inf", "infinity", "-infinity", ""})
READABLE_AS_LIST = re.compile(r"-?[1-9]\d{0,2}(?:,[1-9]\d\d)+")
SHORT_WORDS = "am an as at be by go he hi if in is it me my no of on or re to up us we".split()
WORD = re.compile(rf"[A-Z]{{2,}}|[A-Za-z][a-z]{{2,}}|[A-Za-z]o|[Oo][a-z]|(?i:{'|'.join(SHORT_WORDS)})")
"""Letters alone: an order such as BAC, or a word. ``ab`` may be a product, ``abc`` is not one that commutes."""
PRODUCT_SIGN = re.compile(r"\\(?:cdot|times)(?![a-z])|[*{}\s]")
UNWRAPPED = ("condition", "choice", "rounded")
"""Kinds of notes, the one that is set aside first before the others."""
INFINITY = re.compile(r"(?:\+|(?P<minus>-))?\s?\\infty")


def compare(a: Answer, b: Answer, rules: Rules) -> bool | None:
    """True, False, or None where a rule answered None and nothing else decides. Symmetric if the rules are."""
    if isinstance(a, Noted) or isinstance(b, Noted):
        return _compare_noted(a, b, rules)
    if isinstance(a, Equation) and isinstance(b, Equation):
        return _compare_equations(a, b, rules)
    if isinstance(a, Equation) or isinstance(b, Equation):
        equation, other = (a, b) if isinstance(a, Equation) else (b, a)
        if equation.value is None or (equation.sign == "=" and not (equation.name or equation.steps)):
            return False
        value = compare(equation.value, other, rules)
        return value if value is False else _all(value, _consistent(equation, rules))
    if isinstance(a, Time) or isinstance(b, Time):
        return _compare_times(a, b)
    a, b = _as_shape_of(a, b), _as_shape_of(b, a)
    if isinstance(a, Compound) and isinstance(b, Compound):
        return _compare_groups(a, b, rules)
    if isinstance(a, Text) or isinstance(b, Text):
        return _compare_texts(a, b)
    if isinstance(a, Scalar) and isinstance(b, Scalar):
        return rules.scalars(_without_symbols(a, b), _without_symbols(b, a))
    return False


def size(answer: Answer) -> int:
    """How many values an answer has, which bounds the time that a comparison takes."""
    if isinstance(answer, Compound):
        return max(1, sum(map(size, answer.items)))
    if isinstance(answer, Noted):
        return size(answer.value) + size(answer.note)
    if isinstance(answer, Equation) and answer.value is not None:
        return size(answer.value) + sum(map(size, answer.steps))
    return 1


def _all(*verdicts: bool | None) -> bool | None:
    return False if False in verdicts else (None if None in verdicts else True)


def _consistent(equation: Equation, rules: Rules) -> bool | None:
    """Whether all sides of a chain have the value of its last one."""
    return _all(*(compare(step, equation.value, rules.within) for step in equation.steps if step != equation.value))


def _compare_equations(a: Equation, b: Equation, rules: Rules) -> bool | None:
    if a.sign != b.sign:
        return False
    solved = _is_solved(a), _is_solved(b)
    if a.name == b.name and (a.name or (a.steps and b.steps) or (a.sign != "=" and a.value and b.value)):
        values = compare(a.value, b.value, rules)
        chains = _all(_consistent(a, rules), _consistent(b, rules))
        same = chains if chains is False else _all(values, chains)
        if all(solved) or (a.name and isinstance(a.value, Scalar) and isinstance(b.value, Scalar)):
            return same  # what the name stands for is all that they say
        return same or rules.equations(a, b)
    return rules.equations(a, b) if solved[0] == solved[1] else False


def _is_solved(equation: Equation) -> bool:
    r"""Whether it gives a value without names for a name, as ``x = 5`` and ``x > 5`` do, and not for a quotient."""
    if equation.sign == "=":
        ends = (equation.value,) if equation.name and not re.match(r"\\frac|.*[/:]", equation.name) else ()
    else:
        ends = equation.value.items if isinstance(equation.value, Compound) else ()
    return bool(ends) and all(isinstance(end, Scalar) and not _letters(end.text) for end in ends)


def _letters(text: str) -> set[str]:
    """The letters of a clean text that may be names."""
    signs = re.findall(r"\\[A-Za-z]+|[A-Za-z]", text)
    return {sign for sign in signs if sign.removeprefix("\\") in GREEK or sign[0] not in "\\ei"}


def _compare_noted(a: Answer, b: Answer, rules: Rules) -> bool | None:
    """A note counts where both sides have one of its kind; else the value beside it does."""
    if isinstance(a, Noted) and isinstance(b, Noted) and a.kind == b.kind:
        values = compare(a.value, b.value, rules)
        return values if a.kind == "rounded" else _all(values, compare(a.note, b.note, rules))
    noted, other = sorted((a, b), key=lambda x: UNWRAPPED.index(x.kind) if isinstance(x, Noted) else len(UNWRAPPED))
    if noted.kind == "choice" and _is_letter(other):
        return compare(noted.note, other, rules)
    value = compare(noted.value, other, rules)
    if noted.kind != "rounded":
        return value
    if isinstance(other, Scalar) and other.number and not other.number.exact and value is not True:
        rounded = compare(noted.note, other, rules)
        value = rounded if value is False else (True if rounded else None)
    exact = noted.value.value if isinstance(noted.value, Equation) else noted.value
    return value if value is False else _all(value, compare(exact, noted.note, rules.within))


def _is_letter(answer: Answer) -> bool:
    text = answer.text if isinstance(answer, Scalar) else answer.key if isinstance(answer, Text) else ""
    return len(text) == 1 and text.isalpha()


def _compare_times(a: Answer, b: Answer) -> bool:
    """Times of day; one that does not say its half equals both readings of it, or the one of a 24-hour clock."""
    if isinstance(a, Time) and isinstance(b, Time):
        if not (a.half and b.half):
            return (a.hour % 12, a.minute, a.second) == (b.hour % 12, b.minute, b.second)
        return _on_24_hours(a) == _on_24_hours(b)
    time, other = (a, b) if isinstance(a, Time) else (b, a)
    items = other.items if isinstance(other, Compound) and other.kind == "ratio" else (other,)
    if not all(isinstance(item, Scalar) and item.number and not item.unit for item in items):
        return False
    said = [item.number.value for item in items] + [0, 0]
    if len(items) == 1 and (time.minute or time.second):
        return False
    return tuple(said[:3]) in ((time.hour, time.minute, time.second), _on_24_hours(time))


def _on_24_hours(time: Time) -> tuple[int, int, int]:
    hour = time.hour % 12 + (12 if time.half == "pm" else 0) if time.hour <= 12 else time.hour % 24
    return hour, time.minute, time.second


def _without_symbols(a: Scalar, b: Scalar) -> Scalar:
    """``a`` without a unit in bare letters, such as ``5 m``, where ``b`` has no names."""
    if a.number or a.unit or a.percent or has_names(b.text):
        return a
    bare, unit = split_symbols(a.text)
    value = parse_answer(bare) if unit else a
    return Scalar(value.text, unit, False, value.number) if isinstance(value, Scalar) and unit else a


def exact_scalars(a: Scalar, b: Scalar) -> bool | None:
    """The verdict on two scalars as far as it needs no computation: literal numbers, units and equal spellings."""
    if a.unit and b.unit and a.unit != b.unit:
        return False
    if a.number and b.number:
        if numbers_equal(a.number, b.number):
            return True
        if a.percent == b.percent:
            return False
        percent, plain = (a, b) if a.percent else (b, a)
        return numbers_equal(percent.number.scaled_from_percent, plain.number)
    infinities = [INFINITY.fullmatch(side.text) for side in (a, b)]
    if any(infinities):
        return all(infinities) and infinities[0]["minus"] == infinities[1]["minus"]
    if compact(a.text) == compact(b.text):
        return compact(a.text).casefold() not in NEVER_EQUAL and a.percent == b.percent
    if WORD.fullmatch(a.text) or WORD.fullmatch(b.text):
        return PRODUCT_SIGN.sub("", a.text) == PRODUCT_SIGN.sub("", b.text) and a.percent == b.percent
    return None


def exact_steps(a: Scalar, b: Scalar) -> bool | None:
    """The same for two sides of a chain: literal numbers, of which one may round the other."""
    if a.number and b.number:
        x, y = (side.number.scaled_from_percent if side.percent else side.number for side in (a, b))
        return numbers_equal(x, y) or (a.percent != b.percent and numbers_equal(a.number, b.number)) or rounds(a, b)
    return True if compact(a.text) == compact(b.text) else None


def rounds(a: Scalar, b: Scalar) -> bool:
    """Whether the literal ``b`` is the literal ``a`` rounded or cut to the digits that are written."""
    value = a.number.value / (100 if a.percent else 1)
    return rounds_to(value * (100 if b.percent else 1), b.text)


def equal_spelling(a: Equation, b: Equation) -> bool | None:
    """True for equations that are spelt alike; None for all others."""
    return True if (compact(a.left), compact(a.right)) == (compact(b.left), compact(b.right)) else None


def _as_shape_of(a: Answer, b: Answer) -> Answer:
    """``a`` as a list where ``b`` is one, as a tuple where it assigns the values of one."""
    if isinstance(b, Compound) and b.kind == "set" and isinstance(a, Scalar) and READABLE_AS_LIST.fullmatch(a.text):
        return parse_answer(a.text.replace(",", ", "))  # 100,200 is a list if the other side is one
    if isinstance(b, Compound) and b.kind == "()" and is_assignment(a):
        return Compound("()", tuple(item.value for item in sorted(a.items, key=lambda item: item.name)))
    return a


def _compare_groups(a: Compound, b: Compound, rules: Rules) -> bool | None:
    if a.kind != b.kind or (a.ordered and len(a.items) != len(b.items)):
        return False
    if a.ordered:
        return _all(*(compare(x, y, rules) for x, y in zip(a.items, b.items, strict=True)))
    return _compare_sets(a.items, b.items, rules)


def _compare_sets(a: tuple, b: tuple, rules: Rules) -> bool | None:
    """Whether every item has an equal one on the other side; repeated items count once."""
    verdicts = [[compare(x, y, rules) for y in b] for x in a]
    columns = list(zip(*verdicts, strict=True))
    if all(True in line for line in (*verdicts, *columns)):
        return True
    return None if all(True in line or None in line for line in (*verdicts, *columns)) else False


def _compare_texts(a: Answer, b: Answer) -> bool:
    keys = [_text_key(side) for side in (a, b)]
    return None not in keys and keys[0] == keys[1] and keys[0] not in NEVER_EQUAL


def _text_key(answer: Answer) -> str | None:
    if isinstance(answer, Text):
        return answer.key
    if isinstance(answer, Scalar) and answer.text == r"\emptyset":
        return "emptyset"
    if isinstance(answer, Scalar) and not answer.unit and not answer.percent and answer.text.isalpha():
        return answer.text.casefold()
    return None


EXACT = Rules(exact_scalars, equal_spelling, exact_steps)
"""The rules that need no computation."""
