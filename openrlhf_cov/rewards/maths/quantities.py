"""Numbers with a word such as million, times of day, and amounts in several units."""

import re
from dataclasses import replace

from openrlhf_cov.rewards.maths.numerals import Number, parse_number
from openrlhf_cov.rewards.maths.shapes import Compound, Scalar, Time
from openrlhf_cov.rewards.maths.units import split_unit

TIME = re.compile(
    r"(?P<hour>\d{1,2})(?:\s?[:.]\s?(?P<minute>\d\d)(?:\s?:\s?(?P<second>\d\d))?)?\s*"
    r"(?:(?P<half>[ap])\.?\s?m\.?|(?P<word>noon|midnight)|o'\s?clock)",
    re.IGNORECASE,
)
CLOCK = {"noon": (12, "pm"), "midday": (12, "pm"), "midnight": (12, "am")}
NEXT_AMOUNT = re.compile(r"(?<=[A-Za-z.}'])\s?(?:,\s?)?(?:and\s|\\text\s?\{\s*,?\s*and\s*\}\s?)?(?=\d)")
AMOUNTS = (
    ("week", "day", "hour", "minute", "second"), ("year", "month", "week", "day"), ("mile", "yard", "foot", "inch"),
    ("kilometer", "meter", "centimeter", "millimeter"), ("pound", "ounce"), ("kilogram", "gram"), ("dollar", "cent"),
    ("liter", "milliliter"), ("degree", "minute", "second"),
)  # fmt: skip
"""Units that follow one another in one amount, such as 5 hours 30 minutes."""
MULTIPLES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12}
COUNTED = re.compile(rf"\A(?P<number>-?[\d.,]+)\s?(?:\\text\s?\{{)?\s?(?P<word>{'|'.join(MULTIPLES)})\s?\}}?")

SAID_TWICE = re.compile(r"([^()]+?)(?:(?:\\text\s?\{\s?(?:or|OR)\s?\}|\s(?:or|OR)\s)([^()]+)|\s\((-?[\d,]*\.\d+)\))")


def counted_number(text: str) -> Number | None:
    """``5 million`` as a number."""
    counted = COUNTED.fullmatch(text)
    number = parse_number(counted["number"]) if counted else None
    return replace(number, value=number.value * MULTIPLES[counted["word"]]) if number else None


def number_said_twice(text: str) -> Number | None:
    r"""``\frac12 \text{ or } 0.5`` and ``\frac52 (2.5)``: one number in two spellings."""
    twice = SAID_TWICE.fullmatch(text) if len(text) < 200 else None
    first, second = (parse_number(twice[1]), parse_number(twice[2] or twice[3])) if twice else (None, None)
    return first if first and second and first.value == second.value else None


def time_of_day(text: str) -> Time | None:
    """``3:30 PM``, ``3 p.m.``, ``noon`` or ``3 o'clock``; without a half of the day ``3:30`` is a ratio."""
    bare = re.sub(r"\\text\s?(?=\{)|[{}]", "", text) if len(text) < 40 else ""
    if bare.lower() in CLOCK:
        hour, half = CLOCK[bare.lower()]
        return Time(hour, 0, 0, half)
    match = TIME.fullmatch(bare)
    if match is None:
        return None
    half = CLOCK[match["word"].lower()][1] if match["word"] else match["half"].lower() + "m" if match["half"] else ""
    hour, minute, second = (int(match[part] or 0) for part in ("hour", "minute", "second"))
    return Time(hour, minute, second, half) if hour <= 24 and max(minute, second) < 60 else None


def amounts(text: str) -> Compound | None:
    """``5 feet 6 inches`` as both parts, largest unit first."""
    parts = NEXT_AMOUNT.split(re.sub(r"\s(?:and|,)\s*\}", "}", text)) if len(text) < 200 else [text]
    if not 1 < len(parts) <= 4:
        return None
    split = [split_unit(part.strip()) for part in parts]
    numbers, units = [parse_number(bare) for bare, _ in split], [unit for _, unit in split]
    if not all(numbers) or not any(_in_order(units, family) for family in AMOUNTS):
        return None
    return Compound("sum", tuple(Scalar(bare, unit, number=n) for (bare, unit), n in zip(split, numbers, strict=True)))


def _in_order(units: list[str], family: tuple[str, ...]) -> bool:
    return all(unit in family for unit in units) and units == sorted(set(units), key=family.index)
