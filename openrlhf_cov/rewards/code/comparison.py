"""Whether an output, or a value, is the one that a test expects (pure): as the usual judges of programs compare."""

import json
import math
import re
import reprlib
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal

from openrlhf_cov.rewards.code.inside import wire

Likeness = Literal["same", "presentation", "different"]
Judge = Literal["exact", "plain", "livecodebench", "apps", "prime"]
JUDGES: dict[Judge, str] = {
    "exact": "lines are the same texts",
    "plain": "words of a line are the same texts or equal numbers",
    "livecodebench": "lines are the same texts, or their words are all numbers and equal",
    "apps": "words of a line are the same texts or near numbers; empty lines do not count",
    "prime": "words of a line are the same texts or near numbers; empty lines do not count",
}
"""The judges by name, and how each compares the output of a program with the expected one."""

RELATIVE = Fraction(1, 10**5)
ABSOLUTE = Fraction(1, 10**8)
"""Tolerances of ``numpy.allclose``, by which the judges of APPS and PRIME compare numbers."""
MAX_WORD = 400
"""Digits, and powers of ten, of numbers that may be near others; larger ones are beyond any float."""
NUMBER = re.compile(
    r"(?P<sign>[+-]?)(?:(?P<whole>[0-9]+)(?:\.(?P<part>[0-9]*))?|\.(?P<only>[0-9]+))(?:[eE](?P<exponent>[+-]?[0-9]{1,6}))?"
)
INFINITE = re.compile(r"(?P<sign>[+-]?)inf(?:inity)?", re.IGNORECASE)
WHOLE = re.compile(r"[+-]?[0-9]+")
NUMBERS = (int, float, Decimal, Fraction)
MAX_FRACTION = 4096
"""Digits of a numerator or denominator; reducing larger ones takes long."""
MAX_PAIRED = 2000
"""Values in any order that are compared with each other, beside those whose texts are the same."""


def compare_outputs(
    output: str, expected: str, tolerance: float = 0.0, unordered: bool = False, judge: Judge = "exact"
) -> Likeness:
    """Return how a program's output is like the one that is expected.

    White space at the ends of lines and of the text does not count. "presentation": the same words on other lines.

    Args:
        output: what the program printed.
        expected: what its test expects.
        tolerance: if above 0, words that are numbers may differ by that much, absolutely or relative to the larger.
        unordered: True if the lines may stand in any order.
        judge: the judge by whose rule lines are compared, a key of ``JUDGES``.
    """
    lines = _lines(output, judge)
    wanted = _lines(expected, judge)
    if unordered:
        lines.sort()
        wanted.sort()
    if lines == wanted:
        return "same"
    if len(lines) == len(wanted):
        pairs = list(zip(lines, wanted, strict=True))
        if judge != "exact" and all(_same_line(line, other, judge) for line, other in pairs):
            return "same"
        if tolerance > 0 and all(_same_words(line.split(), other.split(), tolerance) for line, other in pairs):
            return "same"
    words, others = output.split(), expected.split()
    return "presentation" if words == others or (unordered and sorted(words) == sorted(others)) else "different"


def same_value(value: Any, expected: Any, tolerance: float = 0.0, unordered: bool = False) -> bool:
    """Whether a function returned what is expected, data of JSON both. False if too deep to tell."""
    try:
        if unordered and isinstance(value, list) and isinstance(expected, list):
            return len(value) == len(expected) and _same_multiset(value, expected, tolerance)
        return _same(value, expected, tolerance)
    except (RecursionError, ArithmeticError, ValueError):  # too deep, a number beyond any float, of too many digits
        return False


def _lines(text: str, judge: Judge) -> list[str]:
    lines = [line.strip() for line in text.strip().split("\n")]
    return [line for line in lines if line] if judge in ("apps", "prime") else lines


def _same_line(line: str, expected: str, judge: Judge) -> bool:
    """Return True if a judge takes a line for the expected one."""
    if line == expected:
        return True
    words = line.split()
    others = expected.split()
    if len(words) != len(others):
        return False
    if judge == "livecodebench":  # a line with other words is compared as a text
        return all(
            _value(word) is not None and _value(word) == _value(other)
            for word, other in zip(words, others, strict=True)
        )
    if judge == "plain":
        return all(_equal_word(word, other) for word, other in zip(words, others, strict=True))
    return all(_equal_word(word, other) or _close(word, other) for word, other in zip(words, others, strict=True))


def _equal_word(word: str, expected: str) -> bool:
    return word == expected or (_value(word) is not None and _value(word) == _value(expected))


def _value(word: str) -> tuple[str, str, int] | None:
    """Return sign, digits and exponent of a decimal number, the same for equal numbers; None for other words.

    Infinity, in any of its spellings, has "inf" for its digits. NaN equals nothing and is no number here.
    Nothing is rounded and no power is written out, so that a number takes linear time, whatever its exponent.
    """
    infinite = INFINITE.fullmatch(word)
    if infinite:
        return infinite["sign"].replace("+", ""), "inf", 0
    found = NUMBER.fullmatch(word)
    if found is None:
        return None
    part = found["part"] or found["only"] or ""
    digits = ((found["whole"] or "") + part).lstrip("0")
    if not digits:
        return "", "0", 0
    short = digits.rstrip("0")
    exponent = int(found["exponent"] or 0) - len(part) + len(digits) - len(short)
    return found["sign"].replace("+", ""), short, exponent


def _close(word: str, expected: str) -> bool:
    """Return True for two numbers of which one is no whole number, and which the judges of APPS and PRIME call close.

    Differs from them where a whole number is expected: it is met within 1e-5, not within 1e-5 of its size, so that
    no large number can be guessed by its first digits.
    """
    whole = WHOLE.fullmatch(expected) is not None
    value, wanted = _fraction(word), _fraction(expected)
    if value is None or wanted is None or (whole and WHOLE.fullmatch(word)):
        return False
    size = min(1, abs(wanted)) if whole else abs(wanted)
    return abs(value - wanted) <= ABSOLUTE + RELATIVE * size


def _fraction(word: str) -> Fraction | None:
    """Return the exact value of a number of a size that a float can have; None for other words."""
    found = NUMBER.fullmatch(word) if len(word) < MAX_WORD else None
    return Fraction(word) if found and abs(int(found["exponent"] or 0)) < MAX_WORD else None


def _same_words(words: list[str], others: list[str], tolerance: float) -> bool:
    return len(words) == len(others) and all(
        word == other or _near(_number(word), _number(other), tolerance)
        for word, other in zip(words, others, strict=True)
    )


def _number(word: str) -> float:
    try:
        return float(word) if len(word) < 400 and "_" not in word else math.nan
    except ValueError:
        return math.nan


def _near(one: float, other: float, tolerance: float) -> bool:
    """False for NaN and infinities, which differ from everything but their own spelling."""
    try:
        return abs(one - other) <= tolerance * max(1.0, abs(one), abs(other)) and math.isfinite(one - other)
    except OverflowError:  # whole numbers beyond any float
        return False


def shown(value: Any) -> str:
    """A value that a program gave, for a message; large ones are cut before they are written out."""
    try:
        return reprlib.repr(value)[:100]
    except ValueError:  # a whole number of more digits than Python writes
        return "a number of too many digits"


class Unlike:
    """A value that no JSON has: it is nothing that is expected."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __repr__(self) -> str:
        return f"a {self.kind}"


def read_value(packed: Any) -> Any:
    """What ``inside/wire.py`` packed, as JSON would have it, for ``same_value``; ValueError and the like for nonsense.

    Nothing that a program chose is hashed but texts, so that no set or dict of colliding keys takes for ever.
    """
    if isinstance(packed, list):
        return [read_value(each) for each in packed]
    if not isinstance(packed, dict):
        return packed
    ((kind, inner),) = packed.items()
    if kind == "namedtuple":
        return read_value(inner[2:])
    if kind == "tuple":
        return read_value(inner)
    if kind in ("dict", "counter", "ordered", "default"):
        inner = inner[1:] if kind == "default" else inner
        pairs = [(_key(read_value(key)), read_value(each)) for key, each in zip(inner[::2], inner[1::2], strict=True)]
        found = dict(pairs)
        return found if len(found) == len(pairs) else Unlike("dict with keys that JSON does not tell apart")
    if kind == "fraction" and max(len(str(each)) for each in inner) > MAX_FRACTION:
        return Unlike("fraction of too many digits")
    if kind in ("int", "float", "str", "decimal", "fraction"):
        return wire.load(packed)
    return Unlike(str(kind))


def _key(key: Any) -> str:
    """A key as JSON writes it."""
    return json.dumps(key) if key is None or isinstance(key, bool) else str(key)


def _same(value: Any, expected: Any, tolerance: float) -> bool:
    if isinstance(value, NUMBERS) and isinstance(expected, int | float):
        if value != value:
            return expected != expected
        return value == expected or (tolerance > 0 and _near(float(value), float(expected), tolerance))
    if isinstance(value, list | tuple) and isinstance(expected, list):
        return len(value) == len(expected) and all(
            _same(one, other, tolerance) for one, other in zip(value, expected, strict=True)
        )
    if isinstance(value, dict) and isinstance(expected, dict):
        return value.keys() == expected.keys() and all(
            _same(each, expected[key], tolerance) for key, each in value.items()
        )
    return type(value) is type(expected) and value == expected


def _same_multiset(values: list[Any], expected: list[Any], tolerance: float) -> bool:
    """Whether each value is one of those expected; the same texts are matched first, as all pairs would take long."""
    left = Counter(map(_canonical, expected))
    others = []
    for value in values:
        text = _canonical(value)
        if left[text] > 0:
            left[text] -= 1
        else:
            others.append(value)
    wanted = []
    for each in expected:
        text = _canonical(each)
        if left[text] > 0:
            left[text] -= 1
            wanted.append(each)
    if all(isinstance(each, NUMBERS) for each in [*others, *wanted]):
        return _same(sorted(others), sorted(wanted), tolerance)
    if len(others) > MAX_PAIRED:
        return False
    for value in others:
        place = next((place for place, other in enumerate(wanted) if _same(value, other, tolerance)), None)
        if place is None:
            return False
        del wanted[place]
    return True


def _canonical(value: Any) -> str:
    """A text that only the same values have, though maybe not all of them."""
    return json.dumps(value, sort_keys=True, default=repr)
