r"""Divides the text of an answer into parts: lists, tuples, matrices, sets of real numbers, and what is not maths.

Every function takes clean text (see ``normalization``) and returns None for a text of another shape. No value is read.
"""

import re
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from openrlhf_cov.rewards.maths import latex
from openrlhf_cov.rewards.maths.numerals import parse_number

OPENING = ("(", "[", "{", r"\lbrace", r"\langle")
BRACKET = r"\\(?:lbrace|langle|rbrace|rangle)(?![A-Za-z])|[()\[\]{}]"

# Pairs of braces around an answer.
MAX_BRACES = 20
# Items of a list, rows of a matrix, parts of a union.
MAX_ITEMS = 50

GREEK = "|".join(sorted(latex.GREEK))
INDEX = r"_(?:\{\\?[\w ,+-]{1,12}\}|\{\s?\\text\s?\{\w{1,12}\}\s?\}|\w)"
VARIABLE = rf"(?:[A-Za-z]|\\(?:{GREEK})(?![A-Za-z])\s?)(?:{INDEX})?'{{0,3}}"
# What an inequality or a set is about: a name, or a function of one.
UNKNOWN = rf"{VARIABLE}(?:\([a-z]\))?"
CONNECTOR = re.compile(r"\\text\s?\{\s?,?\s?(?:and|or|AND|OR|,)\s?\}|(?<![A-Za-z\\])(?:and|or|AND|OR)(?![A-Za-z])|;")
COMMA_OR_WORD = re.compile(CONNECTOR.pattern + "|,")
OR = re.compile(r"\\text\s?\{\s?,?\s?(?:or|OR)\s?\}|(?<![A-Za-z\\])(?:or|OR)(?![A-Za-z])|\\cup(?![a-z])\s?")
THOUSANDS = re.compile(r"(?<![\d,])\d{1,3}(?:,\d{3})+(?!,?\d)")
EQUALS = re.compile(r"(?<![<>!:])=|\\equiv(?![a-z])")
RELATION = re.compile(r"\\(?:le|ge)(?![a-z])\s?|<=|>=|<|>")
UNEQUAL = re.compile(r"\\ne(?![a-z])\s?|!=")
NEXT_UNEQUAL = re.compile(rf",\s?{VARIABLE}\s?(?:\\ne(?![a-z])|!=)")
MEMBER = re.compile(rf"\A(?P<name>{UNKNOWN}|\({VARIABLE}(?:,\s?{VARIABLE}){{1,5}}\))\s?\\in(?![a-z])\s?")
PLUS_MINUS = re.compile(r"\\(?P<kind>pm|mp)(?![a-z])\s?")
MATRIX = re.compile(
    r"\\begin\s?\{(?P<env>[pbBvV]?matrix|smallmatrix|array)\}(?:\s?\{[lcr| ]*\})?(?P<body>.*)\\end\s?\{(?P=env)\}",
    re.DOTALL,
)
ROW_SPACE = re.compile(r"\\\\\s?\[[\w. -]{1,12}\]")
REALS = re.compile(r"\\mathbb\s?\{?\s?R\s?\}?|(?:\\text\s?\{)?\s?all real numbers\s?\}?")
WITHOUT = re.compile(
    rf"(?:{VARIABLE}\s?\\in\s?)?(?:{REALS.pattern})\s?(?:\\setminus(?![a-z])|-|,)\s?"
    rf"(?:{VARIABLE}\s?(?:\\ne(?![a-z])|!=)\s?)?(?P<points>\S.*)"
)
INFINITY = re.compile(r"(?P<minus>-)?\+?\s?\\infty")
LOWEST = r"-\infty"
HIGHEST = r"\infty"
BRACKETS = frozenset({"()", "[]", "[)", "(]"})


@dataclass(frozen=True)
class Piece:
    """An interval of real numbers, or a point if ``low`` and ``high`` are the same text in closed brackets."""

    opening: str
    low: str
    high: str
    closing: str


@dataclass(frozen=True)
class RealSet:
    """A union of intervals and points. ``variable`` is the name in an inequality, "" without one."""

    pieces: tuple[Piece, ...]
    variable: str = ""


def split(text: str, separator: str | re.Pattern) -> list[str]:
    """Return a text cut at every separator that is outside brackets; one part if the brackets do not match.

    Args:
        text: The clean text.
        separator: The separator, a text or a pattern without a group named ``bracket``.
    """
    found = separator in text if isinstance(separator, str) else separator.search(text)
    if not found:
        return [text]
    parts = []
    depth = 0
    start = 0
    for match in _bracket_or(separator).finditer(text):
        if match["bracket"]:
            depth += 1 if match["bracket"] in OPENING else -1
        elif depth == 0:
            parts.append(text[start : match.start()])
            start = match.end()
    return [text] if depth != 0 else [*parts, text[start:]]


@cache
def _bracket_or(separator: str | re.Pattern) -> re.Pattern:
    pattern = re.escape(separator) if isinstance(separator, str) else separator.pattern
    return re.compile(rf"(?P<bracket>{BRACKET})|{pattern}")


def outer_brackets(text: str) -> tuple[str, str, str] | None:
    """Return (opening, inside, closing) if one pair of brackets, of any kind, encloses all of a text."""
    depth = 0
    first = None
    for match in re.finditer(BRACKET, text):
        if first is None:
            if match.start() > 0:
                return None
            first = match
        depth += 1 if match[0] in OPENING else -1
        if depth == 0:
            inside = text[first.end() : match.start()].strip()
            return (first[0], inside, match[0]) if match.end() == len(text) else None
    return None


def without_braces(text: str) -> str:
    """Return a text without the curly braces around all of it, up to ``MAX_BRACES`` pairs. Each takes linear time."""
    text = text.strip()
    for _ in range(MAX_BRACES):
        span = outer_brackets(text)
        if span is None or span[0] != "{" or not span[1]:
            break
        text = span[1]
    return text


def list_items(text: str) -> list[str] | None:
    r"""Return the items of ``1, 2``, ``1 and 2``, ``\{1, 2\}``, ``x = 1, 2`` or ``3 \pm 1``; None for one value.

    A comma between groups of three digits, without a space, separates thousands and never items.
    """
    braces = outer_brackets(text)
    if braces and braces[0] == r"\lbrace":
        text = braces[1]
    elif member := MEMBER.match(text):
        inner = outer_brackets(text[member.end() :])
        if inner is None or inner[0] != r"\lbrace":
            return None
        text = inner[1]
        braces = inner
    else:
        braces = None
    hidden = THOUSANDS.sub(lambda found: found[0].replace(",", "\x00"), text)
    parts = [part.replace("\x00", ",").strip() for part in split(hidden, COMMA_OR_WORD)]
    parts = [part for place, part in enumerate(parts) if part or not 0 < place < len(parts) - 1]  # ", and"
    if not text.strip():
        return None
    items = []
    for part in parts:
        items.extend(both_signs(part) or [part])
    if not all(items) or len(items) > MAX_ITEMS or (len(items) == 1 and braces is None):
        return None
    return items


def both_signs(text: str) -> list[str] | None:
    r"""Return the two texts that one ``\pm`` stands for, also with one ``\mp`` beside it; None for other texts."""
    kinds = [match["kind"] for match in PLUS_MINUS.finditer(text)]
    if not kinds or len(kinds) > len(set(kinds)):
        return None
    return [PLUS_MINUS.sub(lambda m, s=signs: s[m["kind"] == "mp"], text) for signs in ("+-", "-+")]


def tuple_items(text: str) -> tuple[str, list[str]] | None:
    """Return the brackets and the items of ``(1, 2)``; angle brackets count as round ones."""
    span = outer_brackets(text)
    if span is None or span[0] in ("{", r"\lbrace"):
        return None
    opening, inner, closing = span
    parts = [part.strip() for part in split(inner, ",")]
    if len(parts) == 1 and ";" in inner:
        parts = [part.strip() for part in split(inner, ";")]
    brackets = "()" if opening == r"\langle" else opening + closing
    if not 2 <= len(parts) <= MAX_ITEMS or brackets not in BRACKETS or not all(parts):
        return None
    return brackets, parts


def matrix_rows(text: str) -> tuple[str, list[list[str]]] | None:
    """Return "matrix" or "determinant" and the cells by row."""
    span = outer_brackets(text)
    if span and span[1].startswith(r"\begin"):
        text = span[1]
    match = MATRIX.fullmatch(text)
    if match is None or r"\begin" in match["body"]:
        return None
    body = ROW_SPACE.sub(r"\\\\", match["body"]).replace(r"\hline", "")
    rows = [[cell.strip() for cell in row.split("&")] for row in body.split("\\\\") if row.strip()]
    if not 0 < sum(map(len, rows)) <= MAX_ITEMS:
        return None
    return "determinant" if match["env"][0] in "vV" else "matrix", rows


def real_set(text: str) -> RealSet | None:
    r"""Return the set of real numbers that intervals, inequalities or ``\mathbb{R} \setminus \{2\}`` describe."""
    braces = outer_brackets(text)
    builder = SET_BUILDER.fullmatch(braces[1]) if braces and braces[0] == r"\lbrace" else None
    if builder:
        found = _union(builder["rest"].strip(), "")
        return found if found and found.variable.strip() == builder["name"].strip() else None
    member = MEMBER.match(text)
    if member and not WITHOUT.fullmatch(text):
        text = text[member.end() :]
        return _union(text, member["name"].strip())
    return _union(text, "")


AND = re.compile(r"\\text\s?\{\s?,?\s?and\s?\}|(?<![A-Za-z\\])and(?![A-Za-z])|\\land(?![a-z])|\\wedge(?![a-z])|,")


def bounded_set(text: str) -> RealSet | None:
    r"""Return the interval that a lower and an upper bound of one name describe, such as ``x \ge 2, x \le 5``."""
    bounds = [_inequality(part.strip()) for part in split(text, AND)]
    if len(bounds) != 2 or bounds[0] is None or bounds[1] is None or bounds[0].variable != bounds[1].variable:
        return None
    lower = [bound.pieces[0] for bound in bounds if bound is not None and bound.pieces[0].high == HIGHEST]
    upper = [bound.pieces[0] for bound in bounds if bound is not None and bound.pieces[0].low == LOWEST]
    if len(lower) != 1 or len(upper) != 1:
        return None
    return RealSet((Piece(lower[0].opening, lower[0].low, upper[0].high, upper[0].closing),), bounds[0].variable)


# The inside of ``\{x \in \mathbb{R} : x > 3\}``.
SET_BUILDER = re.compile(rf"(?P<name>{VARIABLE})\s?(?:\\in\s?(?:{REALS.pattern})\s?)?[|:](?P<rest>.*)", re.DOTALL)


def _union(text: str, variable: str) -> RealSet | None:
    pieces: list[Piece] = []
    parts = split(text, OR)
    if len(parts) > MAX_ITEMS:
        return None
    names = {variable} - {""}
    for part in map(str.strip, parts):
        member = MEMBER.match(part)
        interval = _interval(part[member.end() :]) if member else None  # x \in (1, 2)
        if member and interval:
            pieces.extend(interval.pieces)
            names.add(member["name"].strip())
            continue
        found = _interval(part) or _points(part, len(parts)) or _inequality(part) or _line(part)
        if found is None:
            return None
        pieces.extend(found.pieces)
        names |= {found.variable} - {""}
    if len(names) > 1:
        return None
    return RealSet(tuple(pieces), next(iter(names), ""))


def _interval(text: str) -> RealSet | None:
    found = tuple_items(text)
    if found is None or len(found[1]) != 2:
        return None
    brackets, (low, high) = found
    return RealSet((Piece(brackets[0], low, high, brackets[1]),))


def _points(text: str, parts: int) -> RealSet | None:
    r"""Return a set of points ``\{1, 2\}``, or ``x = 1``, beside other parts of a union."""
    if parts < 2:
        return None
    sides = split(text, EQUALS)
    if len(sides) == 2 and re.fullmatch(VARIABLE, sides[0].strip()):
        point = sides[1].strip()
        return RealSet((Piece("[", point, point, "]"),), sides[0].strip())
    braces = outer_brackets(text)
    items = list_items(text) if braces and braces[0] == r"\lbrace" else None
    return None if items is None else RealSet(tuple(Piece("[", item, item, "]") for item in items))


def _inequality(text: str) -> RealSet | None:
    r"""Return the set that ``a < x \le b``, ``x > a`` or a mirror image of them describes."""
    parts = [part.strip() for part in split(text, RELATION)]
    signs = [sign.strip() for sign in RELATION.findall(text)]
    if len(parts) not in (2, 3) or len(parts) != len(signs) + 1 or not all(parts):
        return None
    if signs[0] in (">", ">=", r"\ge"):
        parts = parts[::-1]
        signs = [{">": "<", ">=": "<=", r"\ge": r"\le"}.get(sign, "?") for sign in signs[::-1]]
    if any(sign not in ("<", "<=", r"\le") for sign in signs):
        return None
    place = 1 if len(parts) == 3 else next((i for i in (0, 1) if re.fullmatch(UNKNOWN, parts[i])), None)
    if place is None or not re.fullmatch(UNKNOWN, parts[place]):
        return None
    low = parts[place - 1] if place > 0 else LOWEST
    high = parts[place + 1] if place + 1 < len(parts) else HIGHEST
    opening = "(" if place == 0 or signs[place - 1] == "<" else "["
    closing = ")" if place + 1 == len(parts) or signs[place] == "<" else "]"
    return RealSet((Piece(opening, low, high, closing),), parts[place])


def _line(text: str) -> RealSet | None:
    """Return the real numbers, all of them or all but some points."""
    if REALS.fullmatch(text):
        return RealSet((Piece("(", LOWEST, HIGHEST, ")"),))
    variable = ""
    match = WITHOUT.fullmatch(text)
    if match:
        points = match["points"]
        braces = outer_brackets(points)
        points = braces[1] if braces and braces[0] == r"\lbrace" else points
    else:
        sides = [side.strip() for side in split(text, UNEQUAL)]
        if len(sides) < 2 or not re.fullmatch(VARIABLE, sides[0]):
            return None
        variable = sides[0]
        points = NEXT_UNEQUAL.sub(",", text[text.index(sides[1]) :])
    items = [item.strip() for item in split(points, ",")]
    values = [parse_number(item) for item in items]
    if not all(items) or len(items) > MAX_ITEMS or (len(items) > 1 and None in values):
        return None
    if len(items) > 1:
        items = [item for _, item in sorted(zip((v.value for v in values if v), items, strict=True))]
    ends = [LOWEST, *items, HIGHEST]
    return RealSet(tuple(Piece("(", low, high, ")") for low, high in pairwise(ends)), variable)


# Words, options of a choice, times of day, ratios and numbers in a base

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
# Where only a letter can be the answer, it may be any, and a small one.
ANY_OPTION = re.compile(OPTION.pattern.replace("[A-H]", "[A-Za-z]"), re.DOTALL)
# What the text of an option may not have: a second letter, or a word that takes the letter back.
SECOND_LETTER = re.compile(
    r"\A[a-h](?:\W+[a-h])*\W*\Z|(?<![A-Za-z\\])(?:\([A-H]\)|[A-H]\s?[.:)]|[A-H](?![A-Za-z'^_(])(?! [a-z]))|"
    r"(?<![a-z])(?:not|or|and|both|is|isn't|wrong|incorrect|false|maybe|unknown|unless|guess|none|all of|see|except|"
    r"but)(?![a-z])"
)
BASE_NAMES: dict[str, int] = dict(
    zip("two three four five six seven eight nine ten eleven twelve sixteen".split(), [*range(2, 13), 16], strict=True)
)
BASE = re.compile(
    r"\(?(?P<digits>-?(?=[A-F]{0,20}\d)[0-9A-F]+)\)?\s?_\s?(?:\{\s?\(?(?P<b>-?\d{1,2})\)?\s?\}|(?P<b1>\d{1,2})|"
    rf"\{{\s?(?:\\text\s?\{{)?\s?(?P<name>{'|'.join(BASE_NAMES)})\s?\}}{{1,2}})"
)
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
    return inner not in latex.FUNCTIONS and "," not in inner and (longest > 2 or inner.lower() in TWO_LETTERS)


def text_key(text: str) -> str:
    """Return words in the spelling by which they are compared: without case, spaces and punctuation."""
    key = "".join(re.findall(r"\w", GROUP.sub("", text))).casefold()
    return "emptyset" if NO_SOLUTION.fullmatch(key) else key


def option_of(text: str, pattern: re.Pattern = OPTION) -> tuple[str, str] | None:
    """Return the letter of an option and the text behind it, as in ``(B) 12``.

    Args:
        text: The answer.
        pattern: ``OPTION``, or ``ANY_OPTION`` for any letter.
    """
    first = TEXT_GROUP.match(text)
    flat = f"{first[1].strip()} {text[first.end() :].strip()}".strip() if first else text
    match = pattern.fullmatch(flat)
    return None if match is None else (match["letter"] or match["bare"], (match["rest"] or match["more"]).strip())


def ratio_items(text: str) -> list[str] | None:
    """Return the numbers of ``3:4`` or ``3 to 4``."""
    parts = [part.strip() for part in TO.split(text)]
    is_ratio = len(parts) in (2, 3) and all(parse_number(part) and not re.match(r"0\d", part) for part in parts)
    return parts if is_ratio else None


def number_in_base(text: str) -> str | None:
    """Return the digits and the base of ``12_5`` as ``12 5``."""
    group = TEXT_GROUP.match(text)
    match = BASE.fullmatch(group[1].strip() + text[group.end() :] if group else text)
    if match is None:
        return None
    base = int(match["b"] or match["b1"] or BASE_NAMES[match["name"]])
    # A5_2 is a name.
    return None if match["digits"].lstrip("-")[0].isalpha() and base <= 10 else f"{match['digits']} {base}"


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
    is_contradiction = hour > 12 and half not in ("", "p")  # 15:30 AM
    if match["word"] and (hour % 12 or minute or second):  # 3:30 noon
        return None
    if hour > 24 or (hour == 24 and (minute or second)) or max(minute, second) > 59 or is_contradiction:
        return None
    if half and hour <= 12:
        hour = hour % 12 + 12 * (half in ("p", "noon"))
    return (hour % 24, minute, second), bool(half) or hour >= 13
