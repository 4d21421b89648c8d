"""Whether an output, or a value, is the one that a test expects (pure): as the usual judges of programs compare."""

import math
import reprlib
from typing import Any, Literal

Likeness = Literal["same", "presentation", "different"]


def compare_outputs(output: str, expected: str, tolerance: float = 0.0, unordered: bool = False) -> Likeness:
    """How a program's output is like the one that is expected.

    White space at the ends of lines and of the text does not count. With a ``tolerance`` above 0, words that are
    numbers may differ by that much, absolutely or relative to the larger; ``unordered`` lines may stand in any order.
    "presentation": the same words on other lines.
    """
    lines, wanted = _lines(output), _lines(expected)
    if unordered:
        lines, wanted = sorted(lines), sorted(wanted)
    if lines == wanted:
        return "same"
    if tolerance > 0 and len(lines) == len(wanted):
        rows = [(line.split(), other.split()) for line, other in zip(lines, wanted, strict=True)]
        if all(_same_words(words, others, tolerance) for words, others in rows):
            return "same"
    words, others = output.split(), expected.split()
    return "presentation" if words == others or (unordered and sorted(words) == sorted(others)) else "different"


def same_value(value: Any, expected: Any, tolerance: float = 0.0, unordered: bool = False) -> bool:
    """Whether a function returned what is expected, plain data both; a tuple is a list. False if too deep to tell."""
    try:
        value, expected = _listed(value), _listed(expected)
        if unordered and isinstance(value, list) and isinstance(expected, list):
            return len(value) == len(expected) and _same_multiset(value, expected, tolerance)
        return _same(value, expected, tolerance)
    except RecursionError:
        return False


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]


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


def _text(key: Any) -> Any:
    try:
        return str(key)
    except ValueError:  # likewise; no key of JSON
        return key


def _listed(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_listed(each) for each in value]
    if isinstance(value, dict):
        return {key: _listed(each) for key, each in value.items()}
    return value


def _same(value: Any, expected: Any, tolerance: float) -> bool:
    if isinstance(value, int | float) and isinstance(expected, int | float):
        return value == expected or (tolerance > 0 and _near(value, expected, tolerance))
    if isinstance(value, list) and isinstance(expected, list):
        return len(value) == len(expected) and all(
            _same(one, other, tolerance) for one, other in zip(value, expected, strict=True)
        )
    if isinstance(value, dict) and isinstance(expected, dict):
        if all(isinstance(key, str) for key in expected):  # JSON has no other keys
            value = {_text(key): each for key, each in value.items()}
        return value.keys() == expected.keys() and all(
            _same(each, expected[key], tolerance) for key, each in value.items()
        )
    return type(value) is type(expected) and value == expected


def _same_multiset(values: list[Any], expected: list[Any], tolerance: float) -> bool:
    left = list(expected)
    for value in values:
        place = next((place for place, other in enumerate(left) if _same(value, other, tolerance)), None)
        if place is None:
            return False
        del left[place]
    return True
