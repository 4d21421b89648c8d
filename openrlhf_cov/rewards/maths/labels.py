r"""The type of a label.

Labels are trusted, so they may be written more freely than answers: any words, conditions and units around the value
are split off. The value has one ``kind``: integer, fraction, decimal, formula, equation, inequality, reals, list,
tuple, matrix, family, base, ratio, time, infinity, choice, word, or "spelling" for what fits no other kind.
"""

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from openrlhf_cov.rewards.maths import shapes
from openrlhf_cov.rewards.maths.extraction import last_boxed
from openrlhf_cov.rewards.maths.latex import Refused, parse_formula
from openrlhf_cov.rewards.maths.names import Family, family, has_derivative, name_key, tuple_name
from openrlhf_cov.rewards.maths.normalization import clean, compact, without_end_mark
from openrlhf_cov.rewards.maths.numerals import INTEGER, Number, parse_number
from openrlhf_cov.rewards.maths.shapes import (
    EMPTY,
    EQUALS,
    GROUP,
    INFINITY,
    LETTER,
    RELATION,
    TEXT_GROUP,
    WORDS,
    YES_OR_NO,
    RealSet,
)
from openrlhf_cov.rewards.maths.units import split_percent, split_unit
from openrlhf_cov.rewards.maths.values import exact_value
from openrlhf_cov.rewards.verdicts import without_end_tokens

NUMERIC = frozenset({"integer", "fraction", "decimal"})
SCALAR = NUMERIC | {"formula"}
PAIRED_MARKS = ("**", "__", "```", "`", '"', "*", "$", "'")
MARKS = (*((mark, mark) for mark in PAIRED_MARKS), ("“", "”"))
ENVIRONMENT = re.compile(
    r"\\begin\s?\{(?P<name>(?:equation|align|aligned|gather)\*?)\}(?P<body>.*)\\end\s?\{(?P=name)\}", re.DOTALL
)
# Labels of rows that have no answer.
NOTHING = frozenset({"nan", r"\text{}", "inf", "-inf", "+inf", "infinity", "-infinity", ""})
# Words before an answer that say that it is one.
LEAD = re.compile(
    r"\A(?:\\text\s?\{\s?)?(?:(?:The |the )?(?:[Ff]inal |[Cc]orrect )?[Aa]nswer\s?(?:is|:)\s?:?|"
    r"(?:[Tt]hus|[Tt]herefore|[Hh]ence|[Ss]o),?\s)\s?\}?\s?|\A\\(?:therefore|implies)(?![a-z])\s?"
)
# What may also stand before a label, whose author means the value, and a decimal point without digits behind it.
ABOUT = re.compile(r"\A\\(?:approx|sim)(?![a-z])\s?|\A~\s?")
IDLE_POINT = re.compile(r"(?<=\d)\.(?=/\d)")
# The letters of several options in one font.
OPTIONS = re.compile(r"[A-H](?:\s?,\s?[A-H])+")
# Labels that are a number in words.
NUMBER_WORDS = {
    word: number
    for number, word in enumerate("zero one two three four five six seven eight nine ten eleven twelve".split())
}
# Levels of lists in lists.
MAX_DEPTH = 4


@dataclass(frozen=True)
class Label:
    """A typed label."""

    kind: str
    # The value in clean text.
    text: str
    # The whole label without white space.
    key: str
    number: Number | None = None
    unit: str = ""
    percent: bool = False
    # The name of the value, as in ``x = 5``.
    name: str = ""
    # The opening and the closing bracket of a tuple; "matrix" or "determinant" for a matrix.
    brackets: str = ""
    # Items of a list, tuple or ratio, cells of a matrix by row, or the two ends of each interval in turn.
    items: tuple["Label", ...] = ()
    # Cells in each row of a matrix.
    rows: tuple[int, ...] = ()
    reals: RealSet | None = None
    family: Family | None = None
    # Hour, minute and second on 24 hours.
    time: tuple[int, int, int] | None = None
    # True for a formula with a rational value.
    rational: bool = False
    # True for a formula with names in it.
    has_names: bool = False


def bare_answer(text: str) -> str:
    r"""Return the clean text of an answer without the marks around all of it.

    End-of-text tokens, Markdown marks, dollar signs, quotation marks, an answer tag or an environment around all of
    the answer are dropped, and so is a full stop.
    """
    text = without_end_tokens(text).strip()
    if text.lower().startswith("<answer>") and text.lower().endswith("</answer>"):
        text = text[len("<answer>") : -len("</answer>")]
    text = clean(_without_marks(text))
    environment = ENVIRONMENT.fullmatch(text)
    if environment and "&" not in text and r"\begin" not in environment["body"]:
        text = environment["body"].strip()
    return without_end_mark(text).strip()


def _without_marks(text: str) -> str:
    text = text.strip()
    for opening, closing in MARKS * 2:
        if len(text) > 2 * len(opening) and text.startswith(opening) and text.endswith(closing):
            inner = text[len(opening) : -len(closing)]
            if opening not in inner and not inner.endswith("\\"):
                text = inner.strip()
    return text


@lru_cache(maxsize=4096)
def read_label(label: str) -> Label:
    """Return the type of a label as it stands in the data."""
    inner = last_boxed(label, is_label=True)
    text = bare_answer((label if inner is None else inner).replace("np.", "").replace("math.", "")).rstrip(",;")
    text = IDLE_POINT.sub("", ABOUT.sub("", LEAD.sub("", text)))
    key = compact(bare_answer(label))
    if key.casefold() in NOTHING:
        return Label("spelling", "", "")
    return replace(typed(text), key=key)


def typed(text: str, depth: int = 0) -> Label:
    """Return the type of a clean label, or of a part of one.

    Args:
        text: The label without a box, markup and white space around it.
        depth: Number of lists, tuples and the like around the text, which limits their nesting.
    """
    text = shapes.without_braces(text)
    group = TEXT_GROUP.fullmatch(text)
    inner = group[1].strip() if group else ""
    if group and (OPTIONS.fullmatch(inner) or not WORDS.fullmatch(inner)):
        text = inner  # a number or letters in another font
    label = Label("spelling", text, compact(text))
    return (
        _number(label)
        or _family(label)
        or _word(label)
        or _quantity(label, depth)
        or _matrix(label, depth)
        or _reals(label, depth)
        or _list(label, depth)
        or _tuple(label, depth)
        or _relation(label, depth)
        or _formula(label)
        or _sentence(label)
        or label
    )


def _number(label: Label) -> Label | None:
    text = label.text
    number = parse_number(text)
    if number is None:
        return None
    kind = "integer" if INTEGER.fullmatch(text) or (number.exact and number.value.denominator == 1) else "fraction"
    return replace(label, kind=kind if number.exact else "decimal", number=number, rational=True)


def _family(label: Label) -> Label | None:
    found = family(label.text)
    return None if found is None else replace(label, kind="family", family=found)


def _word(label: Label) -> Label | None:
    """Return a label that is not mathematics: a base, a time, a ratio, an option or plain words."""
    text = label.text
    if base := shapes.number_in_base(text):
        return replace(label, kind="base", text=base)
    if (time := shapes.time_of_day(text)) and re.search(r"[a-z]|\A0\d", text, re.IGNORECASE):
        return replace(label, kind="time", time=time[0])
    if items := shapes.ratio_items(text):
        return replace(label, kind="ratio", items=tuple(map(typed, items)))
    if INFINITY.fullmatch(text):
        return replace(label, kind="infinity")
    if shapes.REALS.fullmatch(text):
        return None
    flat = GROUP.sub("", text).strip()
    if flat.casefold().rstrip(".!") in YES_OR_NO:
        return replace(label, kind="word", text=shapes.text_key(flat))
    if match := LETTER.fullmatch(flat):
        return replace(label, kind="choice", text=match["letter"])
    if shapes.text_key(flat) == "emptyset" or label.key in EMPTY:
        return replace(label, kind="word", text="emptyset")
    option = shapes.option_of(text)
    if option and (option[1][:1].isalpha() or parse_number(option[1]) is not None):
        return replace(label, kind="choice", text=option[0], items=(typed(option[1], MAX_DEPTH),))
    if not shapes.is_words(text):
        return None
    word = shapes.text_key(text)
    number = parse_number(str(NUMBER_WORDS[word])) if word in NUMBER_WORDS else None
    return replace(label, kind="word", text=word, number=number)


def _quantity(label: Label, depth: int) -> Label | None:
    """Return a value with a percent sign or a unit."""
    bare, percent = split_percent(label.text)
    bare, unit = (bare, "") if percent else split_unit(bare, any_noun=True)
    if bare == label.text or depth > MAX_DEPTH:
        return None
    value = typed(bare, depth + 1)
    if value.kind not in SCALAR or value.unit or value.percent:
        return None
    return replace(value, key=label.key, unit=unit, percent=percent)


def _matrix(label: Label, depth: int) -> Label | None:
    found = shapes.matrix_rows(label.text)
    if found is None:
        return None
    brackets, rows = found
    cells = tuple(typed(cell, depth + 1) for row in rows for cell in row)
    return replace(label, kind="matrix", brackets=brackets, rows=tuple(map(len, rows)), items=cells)


def _reals(label: Label, depth: int) -> Label | None:
    """Return a set of real numbers; ``(1, 2)`` is a tuple, ``[1, 2]`` an interval if its ends are in order."""
    found = shapes.real_set(label.text)
    if found is None or all(piece.low == piece.high for piece in found.pieces):  # x = 1 or x = 2 is a list
        return None
    span = shapes.tuple_items(label.text)
    if span and "infty" not in label.text and span[0] in ("()", "[]"):
        low, high = (parse_number(item) for item in span[1])
        if span[0] == "()" or low is None or high is None or low.value >= high.value:
            return None
    ends = tuple(typed(end, depth + 1) for piece in found.pieces for end in (piece.low, piece.high))
    if any(end.has_names for end in ends) and len(shapes.split(label.text, RELATION)) == 2:
        return None  # y < 2 - x may be solved for the other name
    return replace(label, kind="reals", reals=found, items=ends)


def _list(label: Label, depth: int) -> Label | None:
    items = shapes.list_items(label.text) if depth < MAX_DEPTH else None
    if items is None:
        return None
    labels = [typed(item, depth + 1) for item in items]
    if len(labels) == 1 and labels[0].kind in ("reals", "inequality"):
        return replace(labels[0], key=label.key)  # \{n \ge 13\}
    if not label.text.startswith(r"\lbrace") and any(item.kind == "spelling" for item in labels):
        return None
    if len({item.name for item in labels}) == 1:  # x = 1, x = 2
        labels = [replace(item, name="") for item in labels]
    return replace(label, kind="list", items=tuple(labels))


def _tuple(label: Label, depth: int) -> Label | None:
    found = shapes.tuple_items(label.text) if depth < MAX_DEPTH else None
    if found is None:
        return None
    return replace(label, kind="tuple", brackets=found[0], items=tuple(typed(item, depth + 1) for item in found[1]))


def _relation(label: Label, depth: int) -> Label | None:
    """Return a named value as the value and its name, and anything else with an equals sign as an equation."""
    sides = sides_of(label.text)
    if len(sides) > 1 and all(sides):
        values = set(map(_numeric_value, sides))
        if len(values) == 1 and None not in values and depth < MAX_DEPTH:
            return replace(typed(sides[-1], depth + 1), key=label.key)  # 2^{10} - 1 = 1023
        if len(sides) == 2 and name_key(sides[1]) and parse_number(sides[0]):
            sides.reverse()  # 5 = x
        name = "" if has_derivative(label.text) else name_key(sides[0]) or tuple_name(sides[0])
        value = typed(sides[-1], depth + 1) if depth < MAX_DEPTH else label
        if name and value.kind not in ("spelling", "equation", "word") and not value.name:
            return replace(value, key=label.key, name=name)
        if len(sides) == 2:
            return replace(label, kind="equation")
    if len(shapes.split(label.text, RELATION)) == 2:
        return replace(label, kind="inequality")
    return None


def _numeric_value(text: str) -> Fraction | None:
    """Return the value of a number, a percentage or a computation with numbers; None for anything else."""
    bare, percent = split_percent(text)
    try:
        value = exact_value(parse_formula(bare))
    except (Refused, RecursionError):
        return None
    return value / 100 if value is not None and percent else value


def _formula(label: Label) -> Label | None:
    try:
        node = parse_formula(label.text)
    except (Refused, RecursionError):
        return None
    return replace(label, kind="formula", rational=exact_value(node) is not None, has_names=node.has("sym"))


def _sentence(label: Label) -> Label | None:
    """Return words with punctuation between them, such as a sentence."""
    flat = GROUP.sub(" ", label.text)
    has_word = re.search(r"[A-Za-z]{3}", re.sub(r"\\[A-Za-z]+", " ", flat))
    if not has_word or re.search(r"[\\^_=<>+*/]", flat):
        return None
    return replace(label, kind="word", text=shapes.text_key(label.text.replace(r"\text", "")))


def sides_of(text: str) -> list[str]:
    """Return the sides of an equation or a chain of equations."""
    return [side.strip() for side in shapes.split(text, EQUALS)]
