"""Values that are not mathematics: words, options of a choice, times of day, ratios and numbers in a base."""

import re

from openrlhf_cov.rewards.maths.latex import FUNCTIONS
from openrlhf_cov.rewards.maths.numerals import parse_number

YES_OR_NO = frozenset({"yes", "no", "true", "false"})
EMPTY = frozenset({r"\emptyset", r"\lbrace\rbrace"})
NO_SOLUTION = re.compile(
    r"(?:there(?:is|are|exists?))?no(?:real|such)?(?:solutions?|roots?|integers?|numbers?|values?)(?:exists?)?|none"
)
# Words of two letters, which are no products of names.
TWO_LETTERS = frozenset("am as at be do go he if in is it me my of on or so to up us we".split())
GROUP = re.compile(r"\\text\s?(?=\{)|[{}]")
TEXT_GROUP = re.compile(r"\\text\s?\{([^{}]*)\}")
WORDS = re.compile(r"[^\W\d_]+(?:['’\- .,:]+[^\W\d_]+)*[.!]?")
LETTER = re.compile(r"\(?\s?(?P<letter>[A-H])\s?\)?[.:]?")
OPTION = re.compile(
    r"\(\s?(?P<letter>[A-H])\s?\)[.:]?\s*(?P<rest>\S.*)|(?P<bare>[A-H])\s?[.:)]\s*(?P<more>\S.*)", re.DOTALL
)
# What the text of an option may not have: a second letter, or a word that takes the letter back.
SECOND_LETTER = re.compile(
    r"(?<![A-Za-z\\])(?:\([A-H]\)|[A-H]\s?[.:)]|[A-H](?![A-Za-z'^_(])(?! [a-z]))|(?<![a-z])(?:not|or|and|both|is|"
    r"isn't|wrong|incorrect|false|maybe|unknown|unless|guess|none|see|except|but)(?![a-z])"
)
BASE = re.compile(r"\(?(?P<digits>-?\d[0-9A-F]*)\)?\s?_\s?(?:\{\s?(?P<b>\d{1,2})\s?\}|(?P<b1>\d{1,2}))")
TO = re.compile(r":|\\text\s?\{\s?to\s?\}|(?<=\d)\sto\s(?=\d)")
TIME = re.compile(
    r"(?P<hour>\d{1,2})(?:\s?[:.]\s?(?P<minute>\d\d)(?:\s?:\s?(?P<second>\d\d))?)?\s?"
    r"(?:(?P<half>[ap])\.?\s?m\.?|(?P<word>noon|midnight))|"
    r"(?P<hour24>\d{1,2})\s?:\s?(?P<minute24>\d\d)(?:\s?:\s?(?P<second24>\d\d))?",
    re.IGNORECASE,
)


def is_words(text: str) -> bool:
    r"""Return True for plain words, or one ``\text{}`` of words; ``ab`` is a product and ``sin`` a function."""
    group = TEXT_GROUP.fullmatch(text)
    inner = group[1].strip() if group else text
    if not WORDS.fullmatch(inner) or re.search(r"(?<![a-z])(?:and|or)(?![a-z])", inner):
        return False
    longest = max(map(len, re.findall(r"[^\W\d_]+", inner)))
    if group:
        return longest > 1 or " " in inner
    return inner not in FUNCTIONS and "," not in inner and (longest > 2 or inner.lower() in TWO_LETTERS)


def text_key(text: str) -> str:
    """Return words in the spelling by which they are compared: without case, spaces and punctuation."""
    key = "".join(re.findall(r"\w", GROUP.sub("", text))).casefold()
    return "emptyset" if NO_SOLUTION.fullmatch(key) else key


def option_of(text: str) -> tuple[str, str] | None:
    """Return the letter of an option and the text behind it, as in ``(B) 12``."""
    first = TEXT_GROUP.match(text)
    flat = f"{first[1].strip()} {text[first.end() :].strip()}".strip() if first else text
    match = OPTION.fullmatch(flat)
    return None if match is None else (match["letter"] or match["bare"], (match["rest"] or match["more"]).strip())


def ratio_items(text: str) -> list[str] | None:
    """Return the numbers of ``3:4`` or ``3 to 4``."""
    parts = [part.strip() for part in TO.split(text)]
    is_ratio = len(parts) in (2, 3) and all(parse_number(part) and not re.match(r"0\d", part) for part in parts)
    return parts if is_ratio else None


def number_in_base(text: str) -> str | None:
    """Return the digits and the base of ``12_5`` as ``12 5``."""
    match = BASE.fullmatch(text)
    return None if match is None else f"{match['digits']} {match['b'] or match['b1']}"


def time_of_day(text: str) -> tuple[tuple[int, int, int], bool] | None:
    """Return (hour, minute, second) on 24 hours of ``3:30 PM``, ``noon`` or ``15:30``, and True if the half is known.

    The half of the day is known if it is written or if the hour is 13 or later.
    """
    bare = re.sub(r"\s+", " ", GROUP.sub("", text)).strip() if len(text) < 40 else ""
    if bare.lower() in ("noon", "midnight"):
        bare = f"12 {bare}"
    match = TIME.fullmatch(bare)
    if match is None:
        return None
    hour, minute, second = (int(match[part] or match[part + "24"] or 0) for part in ("hour", "minute", "second"))
    half = (match["half"] or match["word"] or "").lower()
    if hour > 24 or max(minute, second) > 59:
        return None
    if half and hour <= 12:
        hour = hour % 12 + 12 * (half in ("p", "noon"))
    return (hour % 24, minute, second), bool(half) or hour >= 13
