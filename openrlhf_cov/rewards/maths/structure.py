r"""The shape of an answer: scalar, list, tuple, interval, union, matrix, equation, text. Values are not looked at."""

import re
from functools import lru_cache

from openrlhf_cov.rewards.maths.brackets import outer_brackets, split
from openrlhf_cov.rewards.maths.intervals import REAL_LINE, as_interval, union, without
from openrlhf_cov.rewards.maths.names import MATH_WORDS, name_of
from openrlhf_cov.rewards.maths.normalization import clean, compact, without_end_mark
from openrlhf_cov.rewards.maths.numerals import parse_number
from openrlhf_cov.rewards.maths.quantities import amounts, counted_number, number_said_twice, time_of_day
from openrlhf_cov.rewards.maths.shapes import Answer, Compound, Equation, Noted, Scalar, Text, is_assignment
from openrlhf_cov.rewards.maths.signs import both_signs, negated
from openrlhf_cov.rewards.maths.units import split_percent, split_unit
from openrlhf_cov.rewards.maths.wording import YES_OR_NO, names_part, split_condition, split_option, text_key

MAX_DEPTH = 12
MAX_ITEMS = 100

CONNECTOR = re.compile(r"\\text\s?\{\s?,?\s?(?:and|or|AND|OR|,)\s?\}|(?<![A-Za-z\\])(?:and|or|AND|OR)(?![A-Za-z])|;")
OR = re.compile(r"\\text\s?\{\s?,?\s?(?:or|OR)\s?\}|(?<![A-Za-z\\])(?:or|OR)(?![A-Za-z])")
THOUSANDS = re.compile(r"(?<![\d,])\d{1,3}(?:,\d{3})+(?!,?\d)")
RELATION = re.compile(r"\\(?:le|ge)(?![a-z])\s?|<=|>=|<|>")
MATRIX = re.compile(
    r"\A\\begin\s?\{(?P<env>[pbBvV]?matrix|smallmatrix|array)\}(?P<body>.*)\\end\s?\{(?P=env)\}", re.DOTALL
)
ROW_SPACE = re.compile(r"\\\\\s?\[[\w. -]{1,12}\]")
BASE = re.compile(r"\A\(?(?P<digits>-?\d[0-9A-F]*)\)?\s?_\s?(?:\{\s?(?P<b>-?\d{1,2})\s?\}|(?P<b1>\d{1,2}))")
GREEK = "alpha|beta|gamma|delta|epsilon|theta|lambda|mu|rho|sigma|tau|phi|omega|Delta|Omega|ell"
# no space at its end: where a pattern repeats names and spaces, each space has one place to go
VARIABLE = rf"(?:[A-Za-z]|\\(?:{GREEK})(?![A-Za-z])(?:\s(?=[_']))?)(?:_(?:\{{[\w ]{{1,12}}\}}|\w))?'*"
APPROXIMATELY = re.compile(r"\A\s*\\(?:approx|sim)(?![a-z])\s?")
ROUNDED = re.compile(r"\\(?:approx|sim)(?![a-z])\s?")
ROUNDED_BESIDE = re.compile(
    r"\s?\(\s?\\approx\s?([^()]{1,40})\)\Z|"
    r",?\s?(?:\\text\s?\{\s?,?\s?)?(?<![A-Za-z])or (?:approximately|about)\s?\}?\s?([^()]{1,40})\Z"
)
EQUALS = re.compile(r":=|\\equiv(?![a-z])|(?<![<>!:])=")
UNEQUAL = re.compile(r"\\ne(?![a-z])\s?|!=")
CAPITALS = re.compile(r"\\text\s?\{\s*([A-Z]{2,6})\s*\}")
SYSTEM = re.compile(
    r"\A\\begin\s?\{(?P<env>cases|rcases|aligned|align|gathered|gather|equation|split|array)\*?\}(?:\s?\{[lcr| ]*\})?"
    r"(?P<body>.*)\\end\s?\{(?P=env)\*?\}",
    re.DOTALL,
)
REALS = re.compile(
    r"\\mathbb\s?\{?\s?R\s?\}?|(?:\\text\s?\{)?\s?all real(?:(?: number)?s\s?\}?|\s?\}?\s?[a-z](?![a-z]))"
)
CUP = re.compile(r"\\cup(?![a-z])\s?|(?<=[)\]])\s?U\s?(?=[(\[])")
MINUS = re.compile(r"\\setminus(?![a-z])\s?")
EXCEPT = re.compile(
    r"(?:\\text\s?\{\s?all real numbers?,? except(?: for)?\s?\}|"
    rf"(?:{VARIABLE}\s?\\in\s?)?(?:{REALS.pattern})\s?(?:\\setminus(?![a-z])|-|,|\\text\s?\{{\s?,?\s?except\s?\}}|except))\s?"
    rf"(?:{VARIABLE}\s?(?:\\ne(?![a-z])|!=)\s?)?(?P<points>[^\s].*)"
)
BUILDER = re.compile(rf"\A{VARIABLE}\s?(?:\\in(?![a-z])\s?(?:{REALS.pattern}))?\s?")
MEMBER = re.compile(rf"\A\s*(?:{VARIABLE}|\({VARIABLE}(?:,\s?{VARIABLE}){{1,5}}\))\s?\\in(?![a-z])\s?")
WORDS = re.compile(r"[^\W\d_]+(?:['\- .:]+[^\W\d_]+)*[.!]?")
TEXT_GROUP = re.compile(r"\\text\s?\{([^{}]*)\}")
SHORT_WORDS = frozenset(
    {"yes", "no", "dne", "odd", "may", "all", "red", "sun", "mon", "tue", "wed", "thu", "fri", "sat"}
)


def parse_answer(text: str) -> Answer:
    """The shape of a bare answer, raw or clean. Linear in the length for a fixed depth of nesting."""
    return parse_clean(without_end_mark(clean(text)))


def parse_clean(text: str) -> Answer:
    """The shape of a bare answer that is clean and has no end mark."""
    number = _number(text, 0)
    if number:
        return number
    text = APPROXIMATELY.sub("", text)
    return _noted(ROUNDED_BESIDE.sub(lambda m: rf"\approx {m[1] or m[2]}", text))


def _noted(text: str) -> Answer:
    """An answer beside the letter of its option, or with the condition under which it holds; else just the answer."""
    option = split_option(text)
    if option:
        letter = Scalar(option[0])
        return Noted("choice", _noted(option[1]), letter) if option[1] else letter
    condition = None if EXCEPT.fullmatch(text) else split_condition(text)
    if condition:
        value = _parse(condition[0], 0)
        if not isinstance(value, Text):
            return Noted("condition", value, _parse(condition[1], 1))
    return _parse(text, 0)


@lru_cache(maxsize=1024)
def _parse(text: str, depth: int) -> Answer:
    """The shape of a part. What is looked at twice is remembered, else nesting would double the time at each level."""
    text = text.strip()
    if depth > MAX_DEPTH:
        return Scalar(text)
    for shape in (
        _number,
        _quantity,
        _words,
        _system,
        _matrix,
        _real_line,
        _alternatives,
        _list,
        _relation,
        _part,
        _union,
        _brackets,
        _base,
    ):
        answer = shape(text, depth)
        if answer is not None:
            return answer
    return _scalar(text, depth)


def _number(text: str, depth: int) -> Answer | None:
    number = parse_number(text) or counted_number(text) or number_said_twice(text)
    if number is not None:
        return Scalar(text, number=number)
    return REAL_LINE if REALS.fullmatch(text) else None


def _quantity(text: str, depth: int) -> Answer | None:
    return time_of_day(text) or amounts(text)


def _words(text: str, depth: int) -> Answer | None:
    """Plain words, or one ``\\text{}`` around anything that is not itself maths."""
    whole = TEXT_GROUP.fullmatch(text)
    if whole:
        inner = whole[1].strip().rstrip(".")
        if len(inner) == 1 and inner.isalpha():
            return Scalar(inner)
        if WORDS.fullmatch(inner) and not CONNECTOR.search(inner):
            return Text(text_key(inner))
        return _parse(inner, depth + 1)
    font = outer_brackets(text[5:].lstrip()) if text.startswith(r"\text") else None
    if font and font[0] == "{":
        return _parse(font[1], depth + 1)
    if YES_OR_NO.fullmatch(text):
        return Text(text_key(text))
    if not WORDS.fullmatch(text) or text in MATH_WORDS or CONNECTOR.search(text):
        return None
    is_word = max(map(len, re.findall(r"[^\W\d_]+", text))) >= 4 or " " in text or text.casefold() in SHORT_WORDS
    return Text(text_key(text)) if is_word else None


def _system(text: str, depth: int) -> Answer | None:
    """The lines of a system of equations as a list; the cases of a function by entry."""
    match = SYSTEM.fullmatch(text) if text.startswith(r"\begin") else None
    if match is None or r"\begin" in match["body"]:
        return None
    rows = [row for row in ROW_SPACE.sub(r"\\\\", match["body"]).split("\\\\") if row.strip(" ,&")]
    if match["env"].endswith("cases") and any("&" in row for row in rows):
        cells = [tuple(_parse(cell.strip(" ,"), depth + 1) for cell in row.split("&")) for row in rows]
        return Compound("cases", tuple(Compound("row", row) for row in cells))
    if match["env"] == "array" and not all("=" in row for row in rows):
        return None
    rows = [row.replace("&", " ").strip(" ,") for row in rows]
    if not 0 < len(rows) <= MAX_ITEMS:
        return None
    return _parse(rows[0], depth + 1) if len(rows) == 1 else _set(rows, depth)


def _matrix(text: str, depth: int) -> Answer | None:
    match = MATRIX.fullmatch(text)
    if match is None or r"\begin" in match["body"]:
        return None
    body = re.sub(r"\A\s*\{[lcr| ]*\}", "", ROW_SPACE.sub(r"\\\\", match["body"])).replace(r"\hline", "")
    rows = [row for row in body.split("\\\\") if row.strip()]
    cells = [tuple(_parse(cell, depth + 1) for cell in row.split("&")) for row in rows]
    kind = "determinant" if match["env"][0] in "vV" else "matrix"
    return Compound(kind, tuple(Compound("row", row) for row in cells))


def _alternatives(text: str, depth: int) -> Answer | None:
    """``x < 1 or x > 3`` is a union; other connected answers are a set."""
    parts = split(text, OR)
    sides = {side.strip() for part in parts for side in split(part, RELATION) if side != part}
    if 1 < len(parts) <= MAX_ITEMS and sides and all(_is_about(sides, part) for part in parts):
        return union(tuple(as_interval(_parse(part, depth + 1)) for part in parts))
    parts = [split(part.strip(" ,"), ",") for part in split(text, CONNECTOR) if part.strip(" ,")]
    if len(parts) < 2:
        return None
    solutions = [_set(items, depth) for items in parts] if len(parts) <= MAX_ITEMS else []
    if solutions and all(map(is_assignment, solutions)):
        names = {frozenset(item.name for item in solution.items) for solution in solutions}
        if len(names) == 1:
            return Compound("set", tuple(solutions))  # p = 5, q = 2; p = 7, q = 2
    return _set([item for items in parts for item in items], depth)


def _is_about(sides: set[str], part: str) -> bool:
    """Whether a part is a relation or gives a value for one of the sides of the others."""
    name, equals, _ = part.partition("=")
    return bool(RELATION.search(part) or (equals and name.strip() in sides))


def _list(text: str, depth: int) -> Answer | None:
    """Parts between commas; beside ", " a comma without space may separate thousands."""
    thousands = THOUSANDS.search(text)
    if thousands and "," not in THOUSANDS.sub("", text):
        return None
    parts = split(text, ", " if thousands and ", " in text else ",")
    return None if len(parts) < 2 else _set(parts, depth)


def _set(parts: list[str], depth: int) -> Answer | None:
    if len(parts) > MAX_ITEMS:
        return None
    items = []
    for part in parts:
        item = _parse(part, depth + 1)
        nested = isinstance(item, Compound) and item.kind == "set" and not part.strip().startswith(r"\lbrace")
        items.extend(item.items if nested else [item])  # \pm 1, \pm 2
    names = {item.name for item in items if isinstance(item, Equation)}
    if len(names) == 1 and names != {""} and all(isinstance(item, Equation) for item in items):
        items = [item.value for item in items]  # x = 1, x = 2
    elif len(items) > 1 and isinstance(items[0], Equation) and not any(isinstance(i, Equation) for i in items[1:]):
        items[0] = items[0].value  # x = 1, 2
    return Compound("set", tuple(items))


def _relation(text: str, depth: int) -> Answer | None:
    member = MEMBER.match(text)
    if member:
        return _parse(text[member.end() :], depth + 1)
    exact, *rounded = split(text, ROUNDED)
    if rounded:
        return _rounded(exact, rounded, depth)
    if len(split(text, RELATION)) > 1:
        return _inequality(text, depth)
    sides = split(text, UNEQUAL)
    if len(sides) == 2 and re.fullmatch(VARIABLE, sides[0].strip()) and not re.search(r"[A-Za-z]\s*\Z|[?_]", sides[1]):
        return _reals_without(sides[1], depth)
    sides = split(text, EQUALS)
    return _equation(sides, depth) if len(sides) > 1 else None


def _real_line(text: str, depth: int) -> Answer | None:
    r"""The real numbers but for some: ``\\mathbb{R} \\setminus \\{2\\}``, or ``x \\in \\mathbb{R}, x \\ne 2``."""
    match = EXCEPT.fullmatch(text) if "R" in text or "real" in text else None
    return _reals_without(match["points"], depth) if match else None


def _reals_without(text: str, depth: int) -> Answer | None:
    points = _parse(text, depth + 1)
    return without(REAL_LINE, points.items if isinstance(points, Compound) and points.kind == "set" else (points,))


def _rounded(exact: str, rounded: list[str], depth: int) -> Answer | None:
    r"""``x \approx 5`` names a value, ``\frac23 \approx 0.67`` notes a rounding beside one."""
    if len(rounded) > 1 or not exact.strip() or not rounded[0].strip():
        return None
    note = _parse(rounded[0], depth + 1)
    name = name_of(exact)
    if name:
        return Equation(name, exact.strip(), rounded[0].strip(), note)
    return Noted("rounded", _parse(exact, depth + 1), note)


def _equation(sides: list[str], depth: int) -> Answer | None:
    """Sides that are names are no steps; without a name all sides have to agree, and not by being the same text."""
    if not all(side.strip() for side in sides) or len(sides) > MAX_ITEMS:
        return None
    sides = [CAPITALS.sub(r"\1", side.strip()) for side in sides]
    name = name_of(sides[0])
    if name is None and len(sides) == 2 and name_of(sides[1]):
        sides = sides[::-1]
        name = name_of(sides[0])
    values = [_parse(side, depth + 1) for side in sides]
    steps = [value for side, value in zip(sides, values, strict=True) if not name_of(side) or len(sides) == 2]
    if name is not None:
        steps = [step for step in steps[-len(sides) + 1 :] if _letters(step) == _letters(values[-1])]
        steps = [] if len(sides) == 2 else steps
    elif len({compact(side) for side in sides}) == 1 or len(set(map(_letters, values))) > 1:
        steps = []
    return Equation(name or "", sides[0], sides[-1], values[-1], steps=tuple(steps))


def _letters(answer: Answer) -> frozenset[str] | None:
    """The letters of a scalar that may be names; None for other shapes."""
    if not isinstance(answer, Scalar):
        return None
    return frozenset(re.findall(r"[A-Za-z]", re.sub(r"\\[A-Za-z]+", " ", answer.text)))


def _part(text: str, depth: int) -> Answer | None:
    """``Anna: 7`` or ``Anna has 7``."""
    part = names_part(text)
    return None if part is None else Equation(part[0], part[0], part[1], _parse(part[1], depth + 1))


def _inequality(text: str, depth: int) -> Answer | None:
    """``a < x <= b``, ``x > a`` and their mirror images; the value is the interval of the one variable."""
    parts, signs = split(text, RELATION), [sign.strip() for sign in RELATION.findall(text)]
    if len(parts) not in (2, 3) or len(parts) != len(signs) + 1 or not all(part.strip() for part in parts):
        return None
    if signs[0] in (">", ">=", r"\ge"):
        parts, signs = parts[::-1], signs[::-1]
        signs = [{">": "<", ">=": "<=", r"\ge": r"\le"}.get(sign, "?") for sign in signs]
    if any(sign not in ("<", "<=", r"\le") for sign in signs):
        return None
    value = _solved([part.strip() for part in parts], [sign == "<" for sign in signs], depth)
    if len(parts) == 3:
        return value
    return Equation("", parts[0].strip(), parts[1].strip(), value, "<" if signs[0] == "<" else "<=")


def _solved(parts: list[str], strict: list[bool], depth: int) -> Answer | None:
    place = next((i for i, part in enumerate(parts) if name_of(part.removeprefix("-"))), None)
    if place is None or (len(parts) == 3 and place != 1):
        return None
    low = parts[place - 1] if place > 0 else r"-\infty"
    high = parts[place + 1] if place < len(parts) - 1 else r"\infty"
    opening = "(" if place == 0 or strict[place - 1] else "["
    closing = ")" if place == len(parts) - 1 or strict[place] else "]"
    ends = _parse(low, depth + 1), _parse(high, depth + 1)
    if not parts[place].startswith("-"):
        return Compound(opening + closing, ends)
    ends = tuple(_parse(negated(end), depth + 1) for end in (high, low))
    return Compound(("(" if closing == ")" else "[") + (")" if opening == "(" else "]"), ends)


def _union(text: str, depth: int) -> Answer | None:
    whole, *taken = split(text, MINUS)
    if len(taken) == 1 and whole.strip() and taken[0].strip().startswith(r"\lbrace"):
        points = _parse(taken[0], depth + 1)
        return without(_parse(whole, depth + 1), points.items if isinstance(points, Compound) else (points,))
    parts = split(text, CUP)
    return union(tuple(_parse(part, depth + 1) for part in parts)) if 1 < len(parts) <= MAX_ITEMS else None


def _brackets(text: str, depth: int) -> Answer | None:
    """Tuples, intervals and sets; brackets around one value are dropped."""
    span = outer_brackets(text)
    if span is None:
        return None
    opening, inner, closing = span
    parts = split(inner, ",") if inner else []
    if opening == r"\lbrace":
        if not inner:
            return Scalar(r"\emptyset")
        return _builder(inner, depth) if "|" in inner or len(split(inner, ":")) > 1 else _set(parts, depth)
    if len(parts) == 1 and ";" in inner:
        parts = split(inner, ";")  # (0; 0)
    both = both_signs(text) if len(parts) > 1 else None
    if both:
        return Compound("set", tuple(_parse(part, depth + 1) for part in both))
    if opening == "{" or (len(parts) == 1 and (opening == "(" or inner.startswith(r"\begin"))):
        return _parse(inner, depth + 1)
    brackets = "()" if opening == r"\langle" else opening + closing
    if len(parts) > MAX_ITEMS or brackets not in ("()", "[]", "[)", "(]"):
        return None
    return Compound(brackets, tuple(_parse(part, depth + 1) for part in parts))


def _builder(inner: str, depth: int) -> Answer | None:
    """The set of all x with a property, as the interval or union that the property is."""
    sign = "|" if "|" in inner else ":"
    name, _, rule = inner.partition(sign)
    answer = as_interval(_parse(rule, depth + 1)) if BUILDER.fullmatch(name.strip()) else None
    return answer if isinstance(answer, Compound) and answer.kind not in ("set", "ratio") else None


def _base(text: str, depth: int) -> Answer | None:
    match = BASE.fullmatch(text)
    if match is None:
        return None
    return Compound("base", tuple(Scalar(part, number=None) for part in (match["digits"], match["b"] or match["b1"])))


def _scalar(text: str, depth: int) -> Answer:
    r"""A value with or without unit; ``a \pm b`` is the set of both; ``a:b`` of plain numbers is a ratio."""
    bare, percent = split_percent(text)
    bare, unit = (bare, "") if percent else split_unit(bare)
    if bare != text:
        value = _parse(bare, depth + 1)
        if isinstance(value, Scalar) and not value.unit and not value.percent:
            return Scalar(value.text, unit, percent, value.number)
        return value if isinstance(value, Compound) and value.kind in ("set", "ratio", "()") else Scalar(text)
    ratio = [(part.strip(), parse_number(part)) for part in text.split(":")]
    if len(ratio) in (2, 3) and all(number for _, number in ratio):
        return Compound("ratio", tuple(Scalar(part, number=number) for part, number in ratio))
    both = both_signs(text)
    if both:
        return Compound("set", tuple(_parse(part, depth + 1) for part in both))
    return Scalar(text)
