r"""The type of a label, which decides how answers to it are read.

A label is trusted: words, conditions and units around its value are split off by patience rather than by grammar. What
is left has one ``kind``: integer, fraction, decimal, formula, equation, inequality, reals, list, tuple, matrix, base,
ratio, time, infinity, choice, word, or spelling for what fits nothing else. ``docs/rewards.md`` has a table.
"""

import re
from dataclasses import dataclass, replace
from functools import lru_cache

from openrlhf_cov.rewards.maths.brackets import outer_brackets, split
from openrlhf_cov.rewards.maths.derivatives import has_derivative
from openrlhf_cov.rewards.maths.extraction import last_answer_tag, last_boxed
from openrlhf_cov.rewards.maths.formula_value import exact_value
from openrlhf_cov.rewards.maths.latex import parse_formula
from openrlhf_cov.rewards.maths.normalization import clean, compact, without_end_mark
from openrlhf_cov.rewards.maths.numerals import INTEGER, Number, parse_number
from openrlhf_cov.rewards.maths.shapes import (
    BRACKETS,
    EQUALS,
    RELATION,
    VARIABLE,
    RealSet,
    list_items,
    matrix_rows,
    real_set,
    system_lines,
    tuple_items,
)
from openrlhf_cov.rewards.maths.tokens import FUNCTIONS, Refused
from openrlhf_cov.rewards.maths.units import split_percent, split_unit
from openrlhf_cov.rewards.verdicts import without_end_tokens

NUMERIC = frozenset({"integer", "fraction", "decimal"})
SCALAR = NUMERIC | {"formula"}

MARKS = ("**", "__", "```", "`", '"', "*", "$", "'", "“”")
ARGUMENT = r"\s?(?:\(\s?-?(?:[^()+*/^-]|\([^()]{1,20}\)|\^\{-1\}){1,30}\)|\[[A-Z]\])"
LETTER_NAME = (
    rf"(?:\\Delta\s)?(?:{VARIABLE}|\\(?:hat|vec|mathbb|text)\s?\{{?\s?[A-Za-z]\s?\}}?|\\Pr\s?)"
    rf"(?:\^\s?(?:\*|\{{-1\}}))?(?:{ARGUMENT})?'*"
)
SEGMENT = (
    r"\\overline\s?(?:\{[^{}]{1,20}\}|\w)|[A-Z]{2,4}|\|[A-Z]\||m?\s?\\angle\s?\{?\s?[A-Z]{1,3}\s?\}?|\\triangle\s?[A-Z]{3}|"
    r"\|\s?(?:[A-Z]{2,3}|\\vec\s?\{[A-Z]{2}\})\s?\||\\text\s?\{[A-Z]{2,4}\}|\[[A-Z]{3,6}\]"
)
NAME = re.compile(rf"{LETTER_NAME}|{SEGMENT}")
"""A name of a value: a letter with an index or an argument, a segment, an angle, a length, an area."""
PLAIN_NAME = rf"(?:{VARIABLE}|[A-Z]{{2,3}})"
COMPOSED_NAME = re.compile(
    rf"\\frac\s?\{{\s?{PLAIN_NAME}\s?\}}\s?\{{\s?{PLAIN_NAME}\s?\}}|{PLAIN_NAME}\s?[/:]\s?{PLAIN_NAME}|"
    rf"{PLAIN_NAME}\s?\^\s?\{{?[23]\}}?|\\(?:sin|cos|tan)\s?(?:\\angle\s?)?\(?{PLAIN_NAME}\)?|"
    rf"\({PLAIN_NAME}\\circ\s?{PLAIN_NAME}\){ARGUMENT}"
)
"""A quotient, a power or a function of names, which names a value if the problem has it or is not known."""
MEMBERSHIP = re.compile(
    rf",?\s?\(?(?P<name>{VARIABLE})\s?\\in\s?\\mathbb\s?\{{?[ZNR]\}}?(?:\s?[\^_]\s?\{{?[+*]\}}?)?\)?\Z"
)
LABEL_CONDITION = re.compile(
    r",?\s?(?:\\text\s?\{\s?,?\s?(?:for|where|if|when|with|whenever|provided)(?![a-z])|"
    r"(?<![A-Za-z\\{])(?:for|where|if|when|with)(?![A-Za-z])|"
    rf",\s?\(?(?:{VARIABLE}\s?,\s?){{0,4}}{VARIABLE}\s?\\in(?![a-z])|\s\(?{VARIABLE}\s?\\in\s?\\mathbb).*\Z",
    re.DOTALL,
)
RELATION_BEHIND = re.compile(
    rf"(?:,\s?|\s?\()(?P<name>{VARIABLE})\s?(?:\\(?:ne|le|ge)(?![a-z])|<|>|!=)\s?[^,()=]{{1,30}}\)?\Z"
)
BEGINS_WITH_RELATION = re.compile(rf"{VARIABLE}\s?(?:\\ne|<|>|\\[lg]e)")
NAME_SIGN = re.compile(r"\\[A-Za-z]+|[A-Za-z]")
MODULUS = re.compile(r"\s?(?:\\pmod\s?\{?\s?\d+\s?\}?|\(\s?\\?(?:mod|text\s?\{\s*mod\s*\})\s?\{?\s?\d+\s?\}?\s?\))\Z")
YES_OR_NO = frozenset({"yes", "no", "true", "false"})
TWO_LETTERS = frozenset("am as at be do go he if in is it me my of on or so to up us we".split())
LETTER = re.compile(r"\(?\s?(?P<letter>[A-H])\s?\)?[.:]?")
OPTION = re.compile(
    r"\(\s?(?P<letter>[A-H])\s?\)[.:]?\s*(?P<rest>\S.*)|(?P<bare>[A-H])\s?[.:)]\s*(?P<more>\S.*)", re.DOTALL
)
TEXT_GROUP = re.compile(r"\\text\s?\{([^{}]*)\}")
WORDS = re.compile(r"[^\W\d_]+(?:['’\- .,:]+[^\W\d_]+)*[.!]?")
BASE = re.compile(r"\(?(?P<digits>-?\d[0-9A-F]*)\)?\s?_\s?(?:\{\s?(?P<b>\d{1,2})\s?\}|(?P<b1>\d{1,2}))")
TIME = re.compile(
    r"(?P<hour>\d{1,2})(?:\s?[:.]\s?(?P<minute>\d\d)(?:\s?:\s?(?P<second>\d\d))?)?\s?"
    r"(?:(?P<half>[ap])\.?\s?m\.?|(?P<word>noon|midnight))",
    re.IGNORECASE,
)
CLOCK = re.compile(r"(?P<hour>\d{1,2})\s?:\s?(?P<minute>\d\d)(?:\s?:\s?(?P<second>\d\d))?")
GROUP = re.compile(r"\\text\s?(?=\{)|[{}]")
INFINITY = re.compile(r"(?P<minus>-)?\+?\s?\\infty")
NOTHING = frozenset({"nan", r"\text{}", "inf", "-inf", "+inf", "infinity", "-infinity", ""})
EMPTY = frozenset({r"\emptyset", r"\lbrace\rbrace"})
NO_SOLUTION = re.compile(
    r"(?:there(?:is|are|exists?))?no(?:real|such)?(?:solutions?|roots?|integers?|numbers?|values?)(?:exists?)?|none"
)
MAX_DEPTH = 4
"""Levels of lists in lists."""


@dataclass(frozen=True)
class Label:
    """A typed label.

    ``text`` is its value in clean text, ``key`` the whole label without white space. ``name`` is the name of the value
    as in ``x = 5``, ``condition`` what follows it as in ``2k for integers k``. ``time`` is (hour, minute, second,
    "am" or "pm" or "").
    """

    kind: str
    text: str
    key: str
    number: Number | None = None
    unit: str = ""
    percent: bool = False
    name: str = ""
    condition: str = ""
    brackets: str = ""
    items: tuple["Label", ...] = ()
    rows: tuple[int, ...] = ()
    reals: RealSet | None = None
    time: tuple[int, int, int, str] | None = None
    rational: bool = False
    has_names: bool = False


def bare_answer(text: str) -> str:
    r"""Return the clean text of an answer without the marks around all of it.

    End-of-text tokens, Markdown marks, dollar signs, quotation marks and a full stop are dropped. A ``\boxed{}`` or an
    answer tag stands for the whole.
    """
    text = without_end_tokens(text)
    for inside in (last_answer_tag, last_boxed):
        inner = inside(text) if "box" in text or "</" in text else None
        text = text if inner is None else inner
    return without_end_mark(clean(_without_marks(text))).lstrip(" ,;").strip()


def _without_marks(text: str) -> str:
    text = text.strip()
    for mark in MARKS * 2:
        opening, closing = ("“", "”") if mark == "“”" else (mark, mark)
        if len(text) > 2 * len(opening) and text.startswith(opening) and text.endswith(closing):
            inner = text[len(opening) : -len(closing)]
            if opening not in inner and not inner.endswith("\\"):
                text = inner.strip()
    return text


@lru_cache(maxsize=4096)
def read_label(label: str) -> Label:
    """Return the type of a label, raw as it stands in the data."""
    text = bare_answer(label.replace("np.", "").replace("math.", ""))
    key = compact(bare_answer(label))
    if key.casefold() in NOTHING:
        return Label("spelling", "", "")
    return replace(typed(text), key=key)


def typed(text: str, depth: int = 0) -> Label:
    """Return the type of a label, or of a part of one, that is clean."""
    text = _unbraced(text)
    label = Label("spelling", text, compact(text))
    return (
        _number(label)
        or _base_ratio_or_time(label)
        or _word(label)
        or _quantity(label, depth)
        or _matrix(label, depth)
        or _reals(label, depth)
        or _list(label, depth)
        or _tuple(label, depth)
        or _relation(label, depth)
        or _formula(label)
        or _conditional(label, depth)
        or _text(label)
        or label
    )


def _unbraced(text: str) -> str:
    """Drop braces and a font around all of a text."""
    text = text.strip()
    while (span := outer_brackets(text)) and span[0] == "{" and span[1]:
        text = span[1]
    if (group := TEXT_GROUP.fullmatch(text)) and not WORDS.fullmatch(group[1].strip()):
        text = group[1].strip()
    return text


def _number(label: Label) -> Label | None:
    text = label.text
    number = parse_number(text)
    if number is None and (span := outer_brackets(text)) and span[0] == "(" and "," not in text:
        number = parse_number(span[1])
    if number is None:
        return None
    kind = "integer" if INTEGER.fullmatch(text) or (number.exact and number.value.denominator == 1) else "fraction"
    return replace(label, kind=kind if number.exact else "decimal", number=number, rational=True)


def _word(label: Label) -> Label | None:
    """A letter of a choice, yes or no, or plain words."""
    if INFINITY.fullmatch(label.text):
        return replace(label, kind="infinity")
    flat = GROUP.sub("", label.text).strip()
    if flat.casefold().rstrip(".!") in YES_OR_NO:
        return replace(label, kind="word", text=text_key(flat))
    if match := LETTER.fullmatch(flat):
        return replace(label, kind="choice", text=match["letter"])
    if text_key(flat) == "emptyset" or label.key in EMPTY:
        return replace(label, kind="word", text="emptyset")
    option = option_of(label.text)
    if option and (option[1][:1].isalpha() or parse_number(option[1]) is not None):
        return replace(label, kind="choice", text=option[0], items=(typed(option[1], MAX_DEPTH),))
    if is_words(label.text):
        return replace(label, kind="word", text=text_key(label.text))
    return None


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


def option_of(text: str) -> tuple[str, str] | None:
    """Return the letter of an option and the text behind it, as in ``(B) 12``."""
    first = TEXT_GROUP.match(text)
    flat = f"{first[1].strip()} {text[first.end() :].strip()}".strip() if first else text
    match = OPTION.fullmatch(flat)
    if match is None:
        return None
    return match["letter"] or match["bare"], (match["rest"] or match["more"]).strip()


def text_key(text: str) -> str:
    """Return words in the spelling by which they are compared: without case, spaces and punctuation."""
    key = "".join(re.findall(r"\w", GROUP.sub("", text))).casefold()
    return "emptyset" if NO_SOLUTION.fullmatch(key) or key == "emptyset" else key


def _base_ratio_or_time(label: Label) -> Label | None:
    if base := BASE.fullmatch(label.text):
        return replace(label, kind="base", text=f"{base['digits']} {base['b'] or base['b1']}")
    time = time_of_day(label.text)
    if time and time[3]:
        return replace(label, kind="time", time=time)
    items = ratio_items(label.text)
    return None if items is None else replace(label, kind="ratio", items=tuple(map(typed, items)))


def ratio_items(text: str) -> list[str] | None:
    """Return the numbers of ``3:4`` or ``3 to 4``."""
    parts = [part.strip() for part in re.split(r":|\\text\s?\{\s?to\s?\}|(?<=\d)\sto\s(?=\d)", text)]
    return parts if len(parts) in (2, 3) and all(parse_number(part) for part in parts) else None


def time_of_day(text: str) -> tuple[int, int, int, str] | None:
    """Return (hour, minute, second, half of the day) of ``3:30 PM``, ``noon`` or ``15:30``; the half may be ""."""
    bare = re.sub(r"\s+", " ", GROUP.sub("", text)).strip() if len(text) < 40 else ""
    if bare.lower() in ("noon", "midnight"):
        bare = f"12 {bare}"
    match = TIME.fullmatch(bare) or CLOCK.fullmatch(bare)
    if match is None:
        return None
    parts = match.groupdict()
    half = (parts.get("half") or "").lower() and parts["half"].lower() + "m"
    if parts.get("word"):
        half = "pm" if parts["word"].lower() == "noon" else "am"
    hour, minute, second = (int(parts[part] or 0) for part in ("hour", "minute", "second"))
    return (hour, minute, second, half) if hour <= 24 and max(minute, second) < 60 else None


def _quantity(label: Label, depth: int) -> Label | None:
    """A value with a percent sign or a unit."""
    bare, percent = split_percent(label.text)
    bare, unit = (bare, "") if percent else split_unit(bare, any_noun=True)
    if bare == label.text or depth > MAX_DEPTH:
        return None
    value = typed(bare, depth + 1)
    if value.kind in SCALAR and not value.unit and not value.percent:
        return replace(value, key=label.key, unit=unit, percent=percent)
    if value.kind in ("list", "ratio", "tuple") and unit:
        return replace(value, key=label.key, unit=unit)
    return None


def _matrix(label: Label, depth: int) -> Label | None:
    found = matrix_rows(label.text)
    if found is None:
        lines = system_lines(label.text)
        if lines is None:
            return None
        if len(lines) == 1:
            return typed(lines[0], depth + 1)
        return replace(label, kind="list", items=tuple(typed(line, depth + 1) for line in lines))
    brackets, rows = found
    cells = tuple(typed(cell, depth + 1) for row in rows for cell in row)
    return replace(label, kind="matrix", brackets=brackets, rows=tuple(map(len, rows)), items=cells)


def _reals(label: Label, depth: int) -> Label | None:
    """A set of real numbers; ``(1, 2)`` is a tuple, ``[1, 2]`` an interval if its ends are in order."""
    found = real_set(label.text)
    if found is None:
        return None
    span = tuple_items(label.text)
    if span and "infty" not in label.text and span[0] in ("()", "[]"):
        numbers = [parse_number(item) for item in span[1]]
        in_order = all(numbers) and numbers[0].value < numbers[1].value  # type: ignore[union-attr]
        if span[0] == "()" or not in_order:
            return None
    ends = tuple(typed(end, depth + 1) for piece in found.pieces for end in (piece.low, piece.high))
    if any(end.has_names for end in ends) and len(split(label.text, RELATION)) == 2:
        return None  # y < 2 - x may be solved for the other name
    return replace(label, kind="reals", reals=found, items=ends)


def _list(label: Label, depth: int) -> Label | None:
    core, condition = without_condition(label.text)
    items = list_items(core) if depth < MAX_DEPTH else None
    if items is None:
        return None
    labels = [typed(item, depth + 1) for item in items]
    if not label.text.lstrip().startswith(r"\lbrace") and any(item.kind == "spelling" for item in labels):
        return None
    if labels[0].name and not any(item.name for item in labels[1:]):  # x = 1, 2
        labels[0] = replace(labels[0], name="")
    if len({item.name for item in labels}) == 1:  # x = 1, x = 2
        labels = [replace(item, name="") for item in labels]
    return replace(label, kind="list", text=core, condition=condition, items=tuple(labels))


def _tuple(label: Label, depth: int) -> Label | None:
    found = tuple_items(label.text) if depth < MAX_DEPTH else None
    if found is None or found[0] not in BRACKETS:
        return None
    items = tuple(typed(item, depth + 1) for item in found[1])
    return replace(label, kind="tuple", brackets=found[0], items=items)


def _relation(label: Label, depth: int) -> Label | None:
    """A named value is the value and its name; anything else with an equals sign is an equation."""
    core, condition = without_condition(label.text)
    sides = [side.strip() for side in split(core, EQUALS)]
    if len(sides) > 1 and all(sides):
        if name_key(sides[0]) is None and len(sides) == 2 and name_key(sides[1]) is not None:
            sides.reverse()
        name = "" if has_derivative(core) else name_key(sides[0]) or tuple_name(sides[0])
        value = typed(sides[-1], depth + 1) if depth < MAX_DEPTH else label
        if name and value.kind not in ("spelling", "equation", "word") and not value.name:
            return replace(value, key=label.key, name=name, condition=condition)
        if len(sides) == 2:
            return replace(label, kind="equation", text=core, condition=condition)
    if len(split(core, RELATION)) == 2:
        return replace(label, kind="inequality", text=core, condition=condition)
    return None


def name_key(text: str) -> str | None:
    """Return the name that a text is, in one spelling; None if it is a formula or anything else."""
    text = text.strip()
    if not NAME.fullmatch(text):
        return None
    key = re.sub(r"\\(?:overline|text|vec)(?![a-z])|[{}\s|]|m(?=\\angle)", "", text)
    return "".join(sorted(key)) if re.fullmatch(r"[A-Z]{2}", key) else key  # AB is BA


def tuple_name(text: str) -> str:
    """Return ``(x,y)`` for a tuple of names, "" for anything else."""
    found = tuple_items(text)
    names = [name_key(item) for item in found[1]] if found and found[0] == "()" else [None]
    return f"({','.join(map(str, names))})" if all(names) else ""


def _formula(label: Label) -> Label | None:
    try:
        node = parse_formula(label.text)
    except (Refused, RecursionError):
        return None
    has_names = any(part.kind == "sym" for part in node.walk())
    return replace(label, kind="formula", rational=exact_value(node) is not None, has_names=has_names)


def _conditional(label: Label, depth: int) -> Label | None:
    core, condition = without_condition(label.text)
    if not condition or depth >= MAX_DEPTH:
        return None
    value = typed(core, depth + 1)
    return None if value.kind in ("spelling", "word") else replace(value, key=label.key, condition=condition)


def without_condition(text: str) -> tuple[str, str]:
    """Split the condition under which it holds from the value of a label."""
    found = LABEL_CONDITION.search(text) or MODULUS.search(text)
    if found is None and not BEGINS_WITH_RELATION.match(text):
        found = RELATION_BEHIND.search(text)
        if found and found["name"].strip() not in NAME_SIGN.findall(text[: found.start()]):
            found = None
    if found is None or found.start() == 0:
        return text, ""
    return text[: found.start()].strip(" ,;"), text[found.start() :]


def _text(label: Label) -> Label | None:
    """Words with other signs between them, such as a sentence."""
    flat = GROUP.sub(" ", label.text)
    if len(re.findall(r"[A-Za-z]{3,}", re.sub(r"\\[A-Za-z]+", " ", flat))) < 1 or re.search(r"[\\^_=<>+*/]", flat):
        return None
    return replace(label, kind="word", text=text_key(label.text.replace(r"\text", "")))
