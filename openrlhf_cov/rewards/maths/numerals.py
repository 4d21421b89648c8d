r"""Numbers that are written down as such: integers, decimals, fractions, mixed numbers, E-notation. Exact values."""

import re
from dataclasses import dataclass, field, replace
from fractions import Fraction

MAX_DIGITS = 2_000
MAX_EXPONENT = 2_000
SIGNIFICANT_DIGITS = 6
LOG10_OF_2 = 0.30103
CENT = Fraction(1, 100)

DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?![\d,])|\d+)"
DECIMAL = re.compile(rf"(?P<whole>{DIGITS})?(?:\.(?P<part>\d*))?")
POWER_OF_TEN = re.compile(
    r"(?:[eE](?P<e>[+-]?\d{1,6})|(?:\\times|\\cdot|\*)10\^(?:\{(?P<p>[+-]?\d{1,6})\}|(?P<d>\d)))"
)
SPACED_THOUSANDS = re.compile(r"[1-9]\d{0,2}(?: \d{3})+(?:\.\d+)?")
SPACED_SIGN = re.compile(r"\s?(\\[a-z]+|\*|\^)\s?")
REPEATING = re.compile(r"(?P<whole>\d+)?\.(?P<part>\d*)\\(?:overline|bar|dot)\{?(?P<cycle>\d+)\}?")
AND_SO_ON = re.compile(r"(?P<whole>\d{1,30})?\.(?P<part>\d{2,40})(?:\\dots|\.\.\.)")
FRACTION = re.compile(
    r"(?P<mixed>\d+)?(?P<sign>[+-])?\\frac(?:\{(?P<n>[^{}]{1,2000})\}|(?P<n1>\d))(?:\{(?P<d>[^{}]{1,2000})\}|(?P<d1>\d))"
)
SLASH = re.compile(r"(?:(?P<mixed>\d+) )?(?P<n>[-+]?[\d.,]+|\([-+]?\d+\))/(?P<d>[\d.,]+|\([-+]?\d+\))")


@dataclass(frozen=True)
class Number:
    """A literal number. ``exact`` is False for a decimal with a fractional part and for E-notation.

    ``digits`` are the significant ones of a decimal as it is written, with zeros at its end.
    """

    value: Fraction
    exact: bool = True
    digits: int = field(default=0, compare=False)

    @property
    def scaled_from_percent(self) -> "Number":
        """The number that ``self`` percent is."""
        return replace(self, value=self.value / 100)


def parse_number(text: str) -> Number | None:
    """The number that the clean text ``text`` writes down literally; None for anything that has to be computed."""
    text = _unwrapped(text.strip())
    sign = 1
    while text[:1] in ("-", "+"):
        sign, text = (-sign if text[0] == "-" else sign), text[1:].lstrip()
        text = _unwrapped(text)
    if not text or not (text[0].isdigit() or text[0] in ".\\(") or len(text) > 2 * MAX_DIGITS:
        return None
    if SPACED_THOUSANDS.fullmatch(text):
        text = text.replace(" ", "")
    number = _slash(text) or _fraction(text.replace(" ", "")) or _decimal(text)
    return None if number is None else replace(number, value=sign * number.value)


def numbers_equal(a: Number, b: Number) -> bool:
    """Exact equality of integers and fractions; where a decimal takes part, agreement to 6 significant digits.

    Two values agree if they differ by at most 1e-6 of the larger, or half a unit of its sixth significant digit. What
    has one or two digits behind the point, as an amount of money, equals no other such and is at most half a unit of
    its last digit away. An integer is never equal to a decimal that differs by more than 1e-9.
    """
    if a.value == b.value:
        return True
    if a.exact and b.exact:
        return False
    difference, size = abs(a.value - b.value), max(abs(a.value), abs(b.value))
    if any(n.exact and n.value.denominator == 1 for n in (a, b)) and difference > Fraction(1, 10**9):
        return False
    if difference * 10 ** (SIGNIFICANT_DIGITS - 1) > size:
        return False  # more than the larger tolerance can be, and seen without the size of the last digit
    halves = [_half_unit(n) for n in (a, b) if not n.exact]
    if len(halves) == 2 and all(CENT <= 2 * half < 1 for half in halves):
        return False
    if difference > max(halves) >= CENT / 2:  # rounded as it is written
        return False
    return difference <= max(size / 10**SIGNIFICANT_DIGITS, half_last_digit(size))


def rounds_to(value: Fraction, text: str) -> bool:
    """Whether the decimal or integer ``text`` is ``value`` rounded, or cut, to the digits that it has.

    An integer of one or two digits rounds nothing: 3 is not what pi is. Zeros at its end count as digits: 333 rounds
    1000/3, 300 does not.
    """
    literal = re.fullmatch(r"(?P<minus>-?)\s?(?P<whole>\d{1,40}(?:,\d{3})*)?(?:\.(?P<part>\d{1,40}))?", text.strip())
    if literal is None or (literal["part"] is None and len(literal["whole"] or "") < 3):
        return False
    scale = 10 ** len(literal["part"] or "")
    written = int((literal["whole"] or "").replace(",", "") + (literal["part"] or ""))
    size = abs(value) * scale
    if (value < 0) != bool(literal["minus"]) and written:
        return False
    return abs(size - written) <= Fraction(1, 2) or written == size.__floor__()


def _half_unit(number: Number) -> Fraction:
    """Half a unit of the last digit, as far as it is known how many were written."""
    return half_last_digit(abs(number.value), number.digits) if number.digits else last_digit(number.value) / 2


def half_last_digit(size: Fraction, digits: int = SIGNIFICANT_DIGITS) -> Fraction:
    """Half a unit of the last significant digit of ``size`` > 0."""
    exponent = int((size.numerator.bit_length() - size.denominator.bit_length()) * LOG10_OF_2)
    while Fraction(10) ** exponent > size:
        exponent -= 1
    while Fraction(10) ** (exponent + 1) <= size:
        exponent += 1
    return Fraction(10) ** (exponent - digits + 1) / 2


def last_digit(value: Fraction) -> Fraction:
    """One unit of the last digit, other than 0, of a decimal; 0 for a value that no decimal has."""
    digits, rest = 0, value.denominator
    while rest % 10 == 0:
        digits, rest = digits + 1, rest // 10
    for factor in (2, 5):
        while rest % factor == 0:
            digits, rest = digits + 1, rest // factor
    if rest > 1:
        return Fraction(0)
    if digits:
        return Fraction(1, 10**digits)
    number, zeros = abs(value.numerator), 0
    while number and number % 10 == 0:
        number, zeros = number // 10, zeros + 1
    return Fraction(10**zeros)


def _unwrapped(text: str) -> str:
    while len(text) > 1 and text[0] == "{" and text[-1] == "}" and "}" not in text[:-1]:
        text = text[1:-1].strip()
    return text


def _slash(text: str) -> Number | None:
    match = SLASH.fullmatch(text) or SLASH.fullmatch(text.replace(" ", ""))
    if match is None:
        return None
    top, bottom = (_signed_decimal(match[part].strip("()")) for part in "nd")
    return _quotient(top, bottom, match["mixed"])


def _fraction(text: str) -> Number | None:
    match = FRACTION.fullmatch(text)
    if match is None or match["sign"]:
        return None
    top, bottom = (_signed_decimal(match[part] or match[part + "1"]) for part in "nd")
    return _quotient(top, bottom, match["mixed"])


def _quotient(top: Number | None, bottom: Number | None, mixed: str | None) -> Number | None:
    if top is None or bottom is None or bottom.value == 0 or not bottom.exact:
        return None  # a division by a decimal is a computation
    value = top.value / bottom.value
    if mixed is None:
        return replace(top, value=value)
    if not top.exact or not 0 < value < 1 or len(mixed) > MAX_DIGITS:
        return None
    return Number(int(mixed) + value)


def _signed_decimal(text: str) -> Number | None:
    text = text.strip()
    negative = text.startswith("-")
    number = _decimal(text.lstrip("+-"))
    return replace(number, value=-number.value) if number and negative else number


def _decimal(text: str) -> Number | None:
    text = SPACED_SIGN.sub(r"\1", text)
    bare = text.replace(" ", "")
    repeating = REPEATING.fullmatch(bare)
    if repeating:
        return _repeating(repeating["whole"], repeating["part"], repeating["cycle"])
    if bare.endswith(("...", "dots")):
        return _and_so_on(bare)
    literal = DECIMAL.match(text)
    whole, part = (literal["whole"] or "").replace(",", ""), literal["part"] or ""
    rest = text[literal.end() :]
    power = POWER_OF_TEN.fullmatch(rest) if rest else None
    if not (whole or part) or len(whole) + len(part) > MAX_DIGITS or (rest and power is None):
        return None
    mantissa = Fraction(int(whole + part), 10 ** len(part))
    digits = len((whole + part).lstrip("0"))
    if power is None:
        return Number(mantissa, not part.strip("0"), digits)
    exponent = int(power["e"] or power["p"] or power["d"])
    if abs(exponent) > MAX_EXPONENT:
        return None
    return Number(mantissa * Fraction(10) ** exponent, False, digits)


def _and_so_on(text: str) -> Number | None:
    """A decimal that ends in dots behind a cycle, written three times, or twice if it is longer than a digit."""
    match = AND_SO_ON.fullmatch(text)
    digits = match["part"] if match else ""
    for length in range(1, len(digits) // 2 + 1):
        cycle, times = digits[-length:], 3 if length == 1 else 2
        if digits.endswith(cycle * times):
            return _repeating(match["whole"], digits.removesuffix(cycle * times), cycle)
    return None


def _repeating(whole: str | None, part: str, cycle: str) -> Number | None:
    whole = whole or "0"
    if len(whole) + len(part) + len(cycle) > MAX_DIGITS:
        return None
    nines = 10 ** len(cycle) - 1
    value = Fraction(int(whole + part)) + Fraction(int(cycle), nines)
    return Number(value / 10 ** len(part))
