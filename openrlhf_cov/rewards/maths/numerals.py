r"""Numbers that are written down as such: integers, decimals, fractions, mixed numbers, E-notation. Exact values."""

import re
from dataclasses import dataclass, field, replace
from fractions import Fraction

from openrlhf_cov.rewards.maths.normalization import compact

MAX_DIGITS = 2_000
MAX_EXPONENT = 2_000
# Digits that a rounded decimal must have to count as the value that it rounds.
SIGNIFICANT_DIGITS = 6

DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?![\d,])|\d+)"
INTEGER = re.compile(rf"[-+]?\s?{DIGITS}(?:\.0*)?")
DECIMAL = re.compile(rf"(?P<whole>{DIGITS})?(?:\.(?P<part>\d*))?")
POWER_OF_TEN = re.compile(
    r"(?:[eE](?P<e>[+-]?\d{1,6})|(?:\\times|\\cdot|\*)10\^(?:\{(?P<p>[+-]?\d{1,6})\}|(?P<d>\d)))"
)
SPACED_THOUSANDS = re.compile(r"[1-9]\d{0,2}(?: \d{3})+(?:\.\d+)?")
SPACED_SIGN = re.compile(r"\s?(\\[a-z]+|\*|\^)\s?")
REPEATING = re.compile(r"(?P<whole>\d+)?\.(?P<part>\d*)\\(?:overline|dot)\{?(?P<cycle>\d+)\}?")
FRACTION = re.compile(
    r"(?P<mixed>\d+)?\\frac(?:\{(?P<n>[^{}]{1,2000})\}|(?P<n1>\d))(?:\{(?P<d>[^{}]{1,2000})\}|(?P<d1>\d))"
)
SLASH = re.compile(
    r"(?:(?P<mixed>\d+) )?(?P<n>[-+]?[\d,]+|\([-+]?\d+\))/(?P<d>[-+]?[\d,]+|\([-+]?\d+\))(?P<n1>\Z)(?P<d1>\Z)"
)


@dataclass(frozen=True)
class Number:
    """A literal number.

    ``exact`` is False for a decimal with a fractional part and for E-notation. Then ``digits`` counts the significant
    digits that are written, zeros at the end included, and ``unit`` is one unit of the last of them.
    """

    value: Fraction
    exact: bool = True
    digits: int = field(default=0, compare=False)
    unit: Fraction = field(default=Fraction(0), compare=False)

    @property
    def hundredth(self) -> "Number":
        """The number divided by 100: its value with a percent sign behind it."""
        return replace(self, value=self.value / 100, unit=self.unit / 100)


def parse_number(text: str) -> Number | None:
    """Return the number that a clean text writes down literally; None for anything that has to be computed."""
    text = _unwrapped(text.strip())
    sign = 1
    if text[:1] in ("-", "+"):
        sign = -1 if text[0] == "-" else 1
        text = _unwrapped(text[1:].lstrip())
    if not text or not (text[0].isdigit() or text[0] in ".\\(") or len(text) > 2 * MAX_DIGITS:
        return None
    if SPACED_THOUSANDS.fullmatch(text):
        text = text.replace(" ", "")
    parts = _fraction_parts(text)
    number = _quotient(*parts) if parts else _decimal(text)
    return None if number is None else replace(number, value=sign * number.value)


def is_scientific(text: str) -> bool:
    r"""Return True for an integer in scientific notation with its first digit above 1, as ``3 \times 10^8``."""
    power = POWER_OF_TEN.search(text.replace(" ", ""))
    if power is None:
        return False
    mantissa = text.replace(" ", "").lstrip("+-")[: power.start()]
    exponent = int(power["e"] or power["p"] or power["d"])
    return mantissa[:1] in "123456789" and mantissa != "1" and mantissa[1:2] in ("", ".") and exponent >= 3


def numbers_equal(answer: Number, label: Number) -> bool:
    """Return True for equal values, or for a decimal of at least six digits that rounds the other value.

    A decimal label may be a rounded value, which the answer gives exactly or with more digits. An exact label may be
    given by a decimal that is rounded or cut off. With fewer digits only equal values count: 0.33 is not one third.

    Args:
        answer: The number of the response.
        label: The number of its label. The function is not symmetric: only an exact label may be met by a decimal that
            is cut off.
    """
    if answer.value == label.value:
        return True
    rounded = answer if label.exact else label
    value = label if label.exact else answer
    if rounded.exact or rounded.digits < SIGNIFICANT_DIGITS or (value.exact and value.value.denominator == 1):
        return False
    if not value.exact and value.unit >= rounded.unit:
        return False
    if abs(value.value - rounded.value) <= rounded.unit / 2:
        return True
    cut = (abs(value.value) - abs(rounded.value)) / rounded.unit
    return label.exact and value.value * rounded.value > 0 and 0 <= cut < 1


def number_form(text: str) -> str:
    """Return how a literal number is written: as which fraction, mixed number, power of ten or decimal."""
    bare = text.replace(" ", "").lstrip("-+")
    if power := POWER_OF_TEN.search(bare):
        return f"power {power['e'] or power['p'] or power['d']}"
    parts = _fraction_parts(text.strip()) or _fraction_parts(bare)
    if parts is None:
        return "decimal"
    top, bottom, mixed = parts
    return "mixed" if mixed else "/".join(side.strip("-+").replace(",", "") for side in (top, bottom))


def _unwrapped(text: str) -> str:
    while len(text) > 1 and text[0] == "{" and text[-1] == "}" and "}" not in text[:-1]:
        text = text[1:-1].strip()
    return text


def _fraction_parts(text: str) -> tuple[str, str, str | None] | None:
    """Return the numerator, the denominator and the whole number before them, None for no such number."""
    bare = compact(text)
    match = SLASH.fullmatch(text) or SLASH.fullmatch(bare) or FRACTION.fullmatch(bare)
    if match is None:
        return None
    return (match["n"] or match["n1"]).strip("()"), (match["d"] or match["d1"]).strip("()"), match["mixed"]


def _quotient(top: str, bottom: str, mixed: str | None) -> Number | None:
    """Return a fraction of integers; a division by 1, or by or of a decimal, is a computation."""
    sides = [
        int(part.replace(",", "")) if INTEGER.fullmatch(part) and "." not in part else None for part in (top, bottom)
    ]
    if sides[0] is None or not sides[1] or abs(sides[1]) == 1 or max(len(top), len(bottom)) > MAX_DIGITS:
        return None
    value = Fraction(sides[0], sides[1])
    if mixed is None:
        return Number(value)
    return Number(int(mixed) + value) if 0 < value < 1 and len(mixed) <= MAX_DIGITS else None


def _decimal(text: str) -> Number | None:
    text = SPACED_SIGN.sub(r"\1", text)
    repeating = REPEATING.fullmatch(compact(text))
    if repeating:
        digits = (repeating["whole"] or "0") + repeating["part"]
        cycle = repeating["cycle"]
        if len(digits) + len(cycle) > MAX_DIGITS:
            return None
        value = int(digits) + Fraction(int(cycle), 10 ** len(cycle) - 1)
        return Number(value / 10 ** len(repeating["part"]))
    literal = DECIMAL.match(text)
    if literal is None:
        return None
    whole = (literal["whole"] or "").replace(",", "")
    part = literal["part"] or ""
    rest = text[literal.end() :]
    power = POWER_OF_TEN.fullmatch(rest) if rest else None
    if not (whole or part) or len(whole) + len(part) > MAX_DIGITS or (rest and power is None):
        return None
    exponent = int(power["e"] or power["p"] or power["d"]) if power else 0
    if abs(exponent) > MAX_EXPONENT:
        return None
    unit = Fraction(10) ** (exponent - len(part))
    exact = power is None and not part.strip("0")
    return Number(int(whole + part) * unit, exact, len((whole + part).lstrip("0")), unit)
