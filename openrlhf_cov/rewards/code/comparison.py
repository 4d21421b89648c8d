"""Compare the output or the returned value of a program with what a test expects, as common judges do (pure)."""

import json
import math
import re
import reprlib
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal

Likeness = Literal["same", "presentation", "different"]
Judge = Literal["exact", "plain", "livecodebench", "apps", "prime"]
# The judges by name, and how each compares the output of a program with the expected one.
JUDGES: dict[Judge, str] = {
    "exact": "lines are the same texts",
    "plain": "words of a line are the same texts or equal numbers",
    "livecodebench": "lines are the same texts, or their words are all numbers and equal",
    "apps": "words of a line are the same texts or near numbers; empty lines do not count",
    "prime": "words of a line are the same texts or near numbers; empty lines do not count",
}

RELATIVE = Fraction(1, 10**5)
# Tolerances of ``numpy.allclose``, by which the judges of APPS and PRIME compare numbers.
ABSOLUTE = Fraction(1, 10**8)
# Digits, and powers of ten, of numbers that may be near others; larger ones are beyond any float.
MAX_WORD = 400
NUMBER = re.compile(
    r"(?P<sign>[+-]?)(?:(?P<whole>[0-9]+)(?:\.(?P<part>[0-9]*))?|\.(?P<only>[0-9]+))(?:[eE](?P<exponent>[+-]?[0-9]{1,6}))?"
)
INFINITE = re.compile(r"(?P<sign>[+-]?)inf(?:inity)?", re.IGNORECASE)
WHOLE = re.compile(r"[+-]?[0-9]+")
NUMBERS = (int, float, Decimal, Fraction)
# Digits of a number in a value. Python reads no whole number of more digits from a label, so that a longer one equals
# nothing that is expected. Arithmetic with longer numbers takes quadratic time.
MAX_DIGITS = 4300
MAX_HEX_DIGITS = 3572  # 16 ** 3572 has 4,302 digits
HEXADECIMAL = re.compile(r"-?0x[0-9a-f]+")
FLOAT = re.compile(r"-?(?:0x[01]\.[0-9a-f]{1,13}p[+-][0-9]{1,4}|inf|nan)")
DECIMAL = re.compile(r"-?(?:[0-9]+(?:\.[0-9]+)?(?:E[+-]?[0-9]{1,18})?|Infinity|s?NaN[0-9]*)")
# Levels of lists and dicts in a value.
MAX_DEPTH = 200
# Comparisons of single values that finding an order may take, beside values whose texts are the same.
MAX_COMPARISONS = 1_000_000


def compare_outputs(
    output: str, expected: str, tolerance: float = 0.0, unordered: bool = False, judge: Judge = "exact"
) -> Likeness:
    """Return how a program's output is like the one that is expected.

    White space at the ends of lines and of the text does not count. "presentation": the same words on other lines.

    Args:
        output: What the program printed.
        expected: What its test expects.
        tolerance: If above 0, words that are numbers may differ by that much, absolutely or relative to the larger.
        unordered: True if the lines may stand in any order.
        judge: The judge by whose rule lines are compared, a key of ``JUDGES``.
    """
    lines = _lines(output, judge)
    wanted = _lines(expected, judge)
    if unordered:
        # Numbers in ascending order, whatever their spelling: those that differ a little stand at the same place.
        lines.sort(key=_order)
        wanted.sort(key=_order)
    if lines == wanted:
        return "same"
    if len(lines) == len(wanted):
        pairs = list(zip(lines, wanted, strict=True))
        if judge != "exact" and all(_same_line(line, other, judge) for line, other in pairs):
            return "same"
        if tolerance > 0 and all(_same_words(line.split(), other.split(), tolerance) for line, other in pairs):
            return "same"
    words = output.split()
    others = expected.split()
    return "presentation" if words == others or (unordered and sorted(words) == sorted(others)) else "different"


def same_value(value: Any, expected: Any, tolerance: float = 0.0, unordered: bool = False) -> bool:
    """Return True if a function returned what is expected. False if the comparison is too deep or takes too long.

    Args:
        value: What the function returned, as ``read_value`` gives it.
        expected: What its test expects, as JSON has it.
        tolerance: If above 0, numbers may differ by that much, absolutely or relative to the larger.
        unordered: True if the items of a list may stand in any order.
    """
    comparison = _Comparison(tolerance)
    try:
        if unordered and isinstance(value, list) and isinstance(expected, list):
            return len(value) == len(expected) and comparison.same_multiset(value, expected)
        return comparison.same(value, expected)
    except (RecursionError, ArithmeticError, ValueError, TypeError):  # too deep, too long, or numbers without an order
        return False


def _lines(text: str, judge: Judge) -> list[str]:
    lines = [line.strip() for line in text.strip().split("\n")]
    return [line for line in lines if line] if judge in ("apps", "prime") else lines


def _order(line: str) -> tuple[list[tuple[bool, float, str]], str]:
    """Return the place of a line among others: by its words, of which numbers stand in ascending order."""
    words = []
    for word in line.split():
        number = _number(word)
        is_number = math.isfinite(number)
        words.append((is_number, number, "") if is_number else (False, 0.0, word))
    return words, line


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
    value = _fraction(word)
    wanted = _fraction(expected)
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
        return float(word) if len(word) < MAX_WORD and "_" not in word else math.nan
    except ValueError:
        return math.nan


def _near(one: float, other: float, tolerance: float) -> bool:
    """Return True if two numbers differ by at most the tolerance, absolutely or relative to the larger one.

    NaN and infinities are close to nothing.
    """
    try:
        return abs(one - other) <= tolerance * max(1.0, abs(one), abs(other)) and math.isfinite(one - other)
    except OverflowError:  # whole numbers beyond any float
        return False


def shown(value: Any) -> str:
    """Return a value that a program gave, for a message; large ones are cut before they are written out."""
    try:
        return reprlib.repr(value)[:100]
    except ValueError:  # a whole number of more digits than Python writes
        return "a number of too many digits"


class Unlike:
    """A value that JSON cannot hold, so that it equals no expected value."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __repr__(self) -> str:
        return f"a {self.kind}"


def read_value(packed: Any) -> Any:
    """Return what ``inside/wire.py`` packed, as JSON would have it, for ``same_value``.

    A program can write anything in place of a packed value. So each kind is checked by its form and its size before
    anything is computed, and nothing that a program chose is hashed but texts: a set or a dict of colliding keys would
    take quadratic time.

    Raises:
        ValueError: The value was not packed by ``inside/wire.py``, or is nested too deep.
    """
    return _read(packed, 0)


def _read(packed: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise ValueError("values are nested too deep")
    if isinstance(packed, list):
        return [_read(each, depth + 1) for each in packed]
    if not isinstance(packed, dict):
        return packed
    if len(packed) != 1:
        raise ValueError("an object has one key, its kind")
    ((kind, inner),) = packed.items()
    if kind in CONTAINERS:
        return _read_container(kind, inner, depth)
    if kind == "str" and isinstance(inner, str):
        return inner
    if kind in ("int", "float", "decimal") and isinstance(inner, str):
        return _read_number(kind, inner)
    if kind == "fraction" and isinstance(inner, list) and len(inner) == 2:
        numerator, denominator = (_whole(each) for each in inner)
        if numerator is None or denominator is None:
            return Unlike("fraction of too many digits")
        return Fraction(numerator, denominator)
    if kind in SCALARS:
        raise ValueError(f"a {kind} has another form")
    return Unlike(str(kind)[:40])


CONTAINERS = frozenset(("tuple", "namedtuple", "dict", "counter", "ordered", "default"))
SCALARS = frozenset(("str", "int", "float", "decimal", "fraction"))


def _read_container(kind: str, inner: Any, depth: int) -> Any:
    if not isinstance(inner, list):
        raise ValueError(f"a {kind} is a list of its parts")
    if kind == "tuple":
        return _read(inner, depth)
    if kind == "namedtuple":  # its name and the names of its places come first
        return _read(inner[2:], depth)
    parts = inner[1:] if kind == "default" else inner  # the name of its factory comes first
    keys = [_key(_read(each, depth + 1)) for each in parts[::2]]
    values = [_read(each, depth + 1) for each in parts[1::2]]
    found = dict(zip(keys, values, strict=True))
    return found if len(found) == len(keys) else Unlike("dict with keys that JSON does not distinguish")


def _read_number(kind: str, text: str) -> Any:
    """Return the number that a text stands for, by a form that takes linear time to read."""
    if kind == "int":
        number = _whole({"int": text})
        return Unlike("number of too many digits") if number is None else number
    if kind == "float":
        if FLOAT.fullmatch(text) is None:
            raise ValueError("a float has another form")
        return float.fromhex(text)
    if len(text) > MAX_DIGITS:
        return Unlike("number of too many digits")
    if DECIMAL.fullmatch(text) is None:
        raise ValueError("a decimal has another form")
    return Decimal(text)


def _whole(packed: Any) -> int | None:
    """Return a whole number that ``inside/wire.py`` packed; None if it has too many digits.

    Raises:
        ValueError: The packed value is no whole number.
    """
    if type(packed) is int:
        return packed
    text = packed.get("int") if isinstance(packed, dict) and len(packed) == 1 else None
    if not isinstance(text, str):
        raise ValueError("a whole number has another form")
    if len(text) > MAX_HEX_DIGITS:
        return None
    if HEXADECIMAL.fullmatch(text) is None:
        raise ValueError("a whole number has another form")
    return int(text, 16)


def _key(key: Any) -> str:
    """Return a key as JSON writes it."""
    return json.dumps(key) if key is None or isinstance(key, bool) else str(key)


class _Comparison:
    """One comparison of a value with what is expected, of bounded length."""

    def __init__(self, tolerance: float) -> None:
        self._tolerance = tolerance
        # Comparisons that are left for finding the order of values.
        self._left = MAX_COMPARISONS
        self._is_limited = False

    def same(self, value: Any, expected: Any) -> bool:
        """Return True if the two are the same. Raise ValueError if that takes too long."""
        if self._is_limited:
            self._left -= 1
            if self._left < 0:
                raise ValueError("the comparison takes too long")
        tolerance = self._tolerance
        if isinstance(value, NUMBERS) and isinstance(expected, int | float):
            # NaN is correct where NaN is expected, although it does not equal itself.
            if value != value:
                return expected != expected
            return value == expected or (tolerance > 0 and _near(float(value), float(expected), tolerance))
        if isinstance(value, list | tuple) and isinstance(expected, list):
            return len(value) == len(expected) and all(map(self.same, value, expected))
        if isinstance(value, dict) and isinstance(expected, dict):
            return value.keys() == expected.keys() and all(
                self.same(each, expected[key]) for key, each in value.items()
            )
        return type(value) is type(expected) and value == expected

    def same_multiset(self, values: list[Any], expected: list[Any]) -> bool:
        """Return True if each value is one of those expected.

        Values of the same text are matched first: comparing all pairs would take long.
        """
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
        # Numbers that may differ by a tolerance pair up, if they do at all, in ascending order.
        if all(isinstance(each, NUMBERS) for each in [*others, *wanted]):
            return self.same(sorted(others), sorted(wanted))
        # Other values have no order, so all pairs may be compared: from here on comparisons are counted.
        self._is_limited = True
        for value in others:
            place = next((place for place, other in enumerate(wanted) if self.same(value, other)), None)
            if place is None:
                return False
            del wanted[place]
        return True


def _canonical(value: Any) -> str:
    """Return a text that only the same values have, though equal values may have unequal texts."""
    return json.dumps(value, sort_keys=True, default=repr)
