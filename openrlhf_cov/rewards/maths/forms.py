r"""The grammar of answers: an answer is read as the type of its label, and as nothing else.

Every rule answers True or False, or None for a text that does not have the form which the label asks for. Formulas are
compared by ``Computed``, in a child process.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from openrlhf_cov.rewards.maths.derivatives import is_derivative
from openrlhf_cov.rewards.maths.labels import (
    BASE,
    COMPOSED_NAME,
    EMPTY,
    GROUP,
    INFINITY,
    LETTER,
    MEMBERSHIP,
    NAME_SIGN,
    NUMERIC,
    QUANTIFIED,
    SCALAR,
    YES_OR_NO,
    Label,
    is_words,
    name_key,
    option_of,
    ratio_items,
    text_key,
    time_of_day,
    tuple_name,
    typed,
)
from openrlhf_cov.rewards.maths.latex import Refused, parse_formula
from openrlhf_cov.rewards.maths.normalization import compact
from openrlhf_cov.rewards.maths.numerals import (
    INTEGER,
    SIGNIFICANT_DIGITS,
    SPACED_THOUSANDS,
    Number,
    is_scientific,
    number_form,
    numbers_equal,
    parse_number,
)
from openrlhf_cov.rewards.maths.prompt import ProblemText
from openrlhf_cov.rewards.maths.shapes import (
    CONNECTOR,
    EQUALS,
    MEMBER,
    RELATION,
    THOUSANDS,
    Piece,
    list_items,
    matrix_rows,
    outer_brackets,
    real_set,
    split,
    system_lines,
    tuple_items,
)
from openrlhf_cov.rewards.maths.units import COUNTED_UNITS, NOT_UNITS, UNITS, split_percent, split_unit
from openrlhf_cov.rewards.maths.values import WHOLE_NAMES, exact_value

Verdict = bool | None
Computed = Callable[[str, Label, ProblemText], Verdict]
"""Compares the text of a formula, an equation or an inequality with a label."""

MAX_SIDES = 8
"""Sides of a chain of equations."""
SECOND_LETTER = re.compile(
    r"(?<![A-Za-z\\])(?:\([A-H]\)|[A-H]\s?[.:)]|[A-H](?![A-Za-z'^_(])(?! [a-z]))|"
    r"(?<![a-z])(?:not|or|and|both|is|isn't|wrong|incorrect|false|maybe|unknown|unless|guess|none|see|except|but)(?![a-z])",
)
OPTION_VALUE = re.compile(r"[\d\\.]|[A-Za-z]")
"""How the value of an option begins: ``(B) 12``, and not ``(B) + 12``."""
LEAD = re.compile(
    r"\A(?:\\text\s?\{\s?)?(?:(?:The |the )?(?:final |correct )?[Aa]nswer\s?(?:is|:)\s?:?|(?:Thus|Therefore|Hence|So),?\s)\s?\}?\s?|"
    r"\A\\(?:therefore|implies)(?![a-z])\s?"
)
"""Words before an answer that say that it is one."""
ABOUT = re.compile(
    r"\A(?:\\(?:approx|sim)(?![a-z])|(?:\\text\s?\{\s?)?(?:about|approximately|approx\.|roughly)\s?\}?)\s?|"
    r"\s?(?:\\text\s?\{)?\s?\(approximately\)\s?\}?\Z"
)
"""What says that a decimal is rounded."""
MEASURE = re.compile(
    r"(?:[Tt]otal |[Ss]urface |[Ss]haded |[Mm]aximum |[Mm]inimum )?(?:[Aa]rea|[Vv]olume|[Pp]erimeter|[Cc]ircumference|[Ll]ength|"
    r"[Ww]idth|[Hh]eight|[Rr]adius|[Dd]iameter|[Dd]istance|[Ss]peed|[Pp]robability|[Ss]um|[Pp]roduct|[Tt]otal|[Cc]ost|[Pp]rice|"
    r"[Pp]rofit|[Aa]verage|[Mm]ean|[Mm]edian|[Ss]lope|[Rr]emainder)(?: of [A-Z]{2,4})?"
)
"""What a problem asks for."""
DENIALS = frozenset("not no never wrong incorrect false untrue maybe unless except".split())
ARGUMENT_WORD = re.compile(r"(?<![A-Za-z\\])[A-Za-z]{3,}")
MAX_COMPUTATION = 60
MAX_CONDITION = 80
FUNCTION_NAME = re.compile(r"([fghFGHy])\([a-z](?:,[a-z])*\)")
STRAY_MARK = re.compile(r"\?|[.!]{2}|[A-Za-z]\.[A-Za-z]\.?\Z")
PRODUCT_SIGN = re.compile(r"\s?(?:\\(?:cdot|times)(?![a-z])|\*)\s?")
TEXT_NUMBER = re.compile(r"\A\\text\s?\{\s?(-?[\d.,]+)\s?\}")
NAMED_WORDS = re.compile(r"(?:\\text\s?\{\s?)?(?P<words>[A-Za-z]{3,}(?: [A-Za-z]{1,12}){0,4})\s?\}?")
INTERVAL_WORDS = re.compile(
    r"interval|inequal|range|domain|values? of|solution|for (?:which|what)|set of", re.IGNORECASE
)


def accepts(text: str, label: Label, problem: ProblemText, computed: Computed) -> Verdict:
    """Return True if the bare answer ``text`` has the form that its label asks for, and its value."""
    key = compact(text)
    is_yes_or_no = label.kind == "word" and label.text in YES_OR_NO
    if (
        key == label.key
        and not is_yes_or_no
        and not (label.kind == "list" and THOUSANDS.search(text) and not THOUSANDS.search(label.text))
    ):
        return bool(key)
    if label.condition and key.endswith(compact(label.condition)):
        text = _without_suffix(text, label.condition)
    elif label.has_names:
        text = _without_domain(text, label)
    return _read(text.strip(), label, problem, computed)


def _without_domain(text: str, label: Label) -> str:
    """Drop what says that a name of the label is a whole or a real number; only letters such as n and k are whole."""
    found = QUANTIFIED.search(text, max(0, len(text) - MAX_CONDITION)) or MEMBERSHIP.search(text)
    if found is None or compact(found["name"]) not in compact(label.text):
        return text
    parts = found.groupdict()
    says = (parts.get("noun") or "") + (parts.get("kind") or "") + (found["set"] or "")
    if not (says or parts.get("all")) or (
        re.search("integer|[ZN]", says) and not found["name"].startswith(WHOLE_NAMES)
    ):
        return text
    return re.sub(r"\s?\\text\s?\{\s?,?\s?\Z", "", text[: found.start()]).rstrip(" ,;(")


def _without_suffix(text: str, condition: str) -> str:
    """Drop the condition of the label, whatever its white space, from the end of a text that has it there."""
    left = len(re.sub(r"\s", "", condition))
    end = len(text)
    while left and end:
        end -= 1
        left -= not text[end].isspace()
    return text[:end].rstrip(" ,;")


def _read(text: str, label: Label, problem: ProblemText, computed: Computed) -> Verdict:
    text = text.removeprefix("=").strip()
    while (span := outer_brackets(text)) and span[0] == "{":
        text = span[1]
    if label.kind not in ("word", "choice"):
        text = _unfonted(LEAD.sub("", _unfonted(text)))
    if not text:
        return None
    return READERS[label.kind](text, label, problem, computed)


def _unfonted(text: str) -> str:
    r"""Drop a font around all of a text: ``\text{5}``, which ``clean`` makes of ``\mathbf{5}``, is 5."""
    span = outer_brackets(text[5:].lstrip()) if text.startswith(r"\text") else None
    return span[1] if span and span[0] == "{" else text


def _every(verdicts: Sequence[Verdict]) -> Verdict:
    if False in verdicts:
        return False
    return None if None in verdicts else True


# Values: integers, fractions, decimals and formulas


def _scalar(text: str, label: Label, problem: ProblemText, computed: Computed) -> Verdict:
    """A value with a name before it, or a chain of equations that ends with it.

    Every side of a chain is a name, an accepted answer, or a computation with exactly the value of the label.
    """
    option = option_of(text)
    if option and OPTION_VALUE.match(option[1]) and (not problem.text or _is_option(*option, problem)):
        text = option[1]
    if label.kind == "decimal":
        text = ABOUT.sub("", text).replace(r"\approx", "=").strip(" =")
    sides = [side.strip() for side in split(text, EQUALS)]
    if len(sides) > MAX_SIDES or not all(sides) or len(set(map(compact, sides))) < len(sides):
        return None
    if len(sides) > 1 and not problem.keys.isdisjoint({compact("=".join(sides)), compact("=".join(sides[::-1]))}):
        return False  # an equation of the problem
    if len(sides) > 1:
        if len(sides) == 2 and name_key(sides[1]) is not None and name_key(sides[0]) is None:
            sides.reverse()  # 5 = x
        name = _name_of(sides[0], label, problem)
        if name is not None:
            if label.name and not _is_same_name(name, label.name):
                return _as_equation(text, label, problem, computed)
            sides = [side for side in sides[1:-1] if name_key(side) is None] + sides[-1:]  # AB = BC = 5
        elif len(sides) == 2 and label.name and label.has_names:
            return _as_equation(text, label, problem, computed)
    verdicts = [_value(side, label, problem, computed) for side in sides[-1:]]
    verdicts += [_is_worked_out(side, label) or _value(side, label, problem, computed) for side in sides[:-1]]
    return _every(verdicts)


def _is_worked_out(text: str, label: Label) -> bool:
    """Return True for a computation without names that has exactly the value of the label."""
    if label.number is None or not label.number.exact or len(text) > MAX_COMPUTATION:
        return False
    try:
        return exact_value(parse_formula(text)) == label.number.value
    except (Refused, RecursionError):
        return False


def _as_equation(text: str, label: Label, problem: ProblemText, computed: Computed) -> Verdict:
    """Compare an equation with a label such as ``y = 2x + 3``, which is solved for its name."""
    if not label.has_names or len(split(text, EQUALS)) != 2 or problem.asks_factors:
        return False
    return computed(text, replace(label, kind="equation", text=f"{label.name}={label.text}", name=""), problem)


def _name_of(text: str, label: Label, problem: ProblemText) -> str | None:
    """Return the name that stands before a value; None if the text names nothing."""
    key = name_key(text)
    is_random = text.startswith(("P", r"\Pr", r"\mathbb", "E"))
    words = ARGUMENT_WORD.findall(text.partition("(")[2])
    if words and not (is_random and DENIALS.isdisjoint(words)):
        return None
    if is_derivative(text) or (key is not None and compact(text) != label.key):
        argument = re.fullmatch(r"[A-Za-z]\(([A-Za-z0-9])\)", key or "")
        if (
            argument
            and label.has_names
            and key not in problem.keys
            and argument[1] not in NAME_SIGN.findall(label.text)
        ):
            return None  # f(2) = x^2 + 1
        return key or compact(text)
    key = compact(text)
    has_letter = re.search(r"[A-Za-z]", key)
    if has_letter and key in problem.keys and key in problem.question:
        return key
    if not problem.text and COMPOSED_NAME.fullmatch(text):
        return key
    words = NAMED_WORDS.fullmatch(text)
    if MEASURE.fullmatch(re.sub(r"\s+", " ", GROUP.sub("", text)).strip()):
        return key
    if words and problem.text:
        found = [word.lower() for word in words["words"].split()]
        known = problem.text.lower()
        if all(word in known and word not in NOT_UNITS for word in found):
            return "".join(found)
    return None


def _is_same_name(name: str, own: str) -> bool:
    """Return True for one name in two spellings; ``y`` and ``f(x)`` name the same function."""
    name, own = compact(name), compact(own)
    if name == own:
        return True
    functions = [FUNCTION_NAME.fullmatch(side) for side in (name, own)]
    letters = [found[1] if found else side for found, side in zip(functions, (name, own), strict=True)]
    return any(functions) and (letters[0] == letters[1] or "y" in letters)


def _value(text: str, label: Label, problem: ProblemText, computed: Computed) -> Verdict:
    """One value with at most one unit or percent sign behind it."""
    text = TEXT_NUMBER.sub(r"\1", text)
    if label.unit:
        bare, unit = split_unit(text, problem.words, any_noun=True, letters=True)
        if unit and unit != label.unit:
            return False
        return _number_or_formula(bare, replace(label, unit=""), problem, computed, percent=False)
    bare, percent = split_percent(text)
    may_have_unit = label.kind in NUMERIC or not label.has_names or r"\text" in bare or r"\circ" in bare
    if not percent and not label.percent and may_have_unit:
        bare, unit = split_unit(bare, problem.words)
        measure = unit.split(" ")[0]
        if problem.units and measure.partition("^")[0] in UNITS - COUNTED_UNITS and measure not in problem.units:
            return False
    return _number_or_formula(bare, label, problem, computed, percent=percent)


def _number_or_formula(text: str, label: Label, problem: ProblemText, computed: Computed, *, percent: bool) -> Verdict:
    text = _unbracketed(text)
    number = parse_number(text)
    gold = label.number
    if gold is None:
        if percent != label.percent:
            return None
        if number is not None and not label.rational:
            return False
        return computed(text, label, problem)
    if number is None or not _is_form_of(text, label, problem):
        if label.kind == "decimal" and gold.digits >= SIGNIFICANT_DIGITS and percent == label.percent:
            return computed(text, label, problem)
        return None
    if label.kind != "integer" and not _has_form_asked_for(text, number, percent, label, problem):
        return False
    if percent and label.kind == "integer" and not label.percent and problem.text and not problem.asks_percent:
        return False
    number, gold = _same_scale(number, label, percent, problem)
    return number.value == gold.value if percent else numbers_equal(number, gold)


def _unbracketed(text: str) -> str:
    text = text.strip()
    if text.startswith("-(") and (span := outer_brackets(text[1:])) and parse_number(span[1]) and span[1][0].isdigit():
        return f"-{span[1]}"
    for _ in range(3):
        span = outer_brackets(text)
        if span is None or span[0] not in "({" or span[2] not in ")}" or "," in span[1]:
            return text
        text = span[1]
    return text


def _is_form_of(text: str, label: Label, problem: ProblemText) -> bool:
    """Return True if a literal number is one of the forms for its label: an integer has digits, or is in scientific notation."""
    if label.kind != "integer" or label.percent:
        return True
    is_literal = INTEGER.fullmatch(text) or SPACED_THOUSANDS.fullmatch(text.lstrip("+-"))
    return bool(is_literal) or (is_scientific(text) and compact(text) not in problem.keys)


def _has_form_asked_for(text: str, number: Number, percent: bool, label: Label, problem: ProblemText) -> bool:
    """Return False for a number of the problem where the label has the same number in another form, or rounds it."""
    gold = label.number or number
    if problem.has_number(gold.hundredth.value if label.percent else gold.value):
        return number_form(text) == number_form(label.text) and percent == label.percent
    return number.value == gold.value or not problem.has_number(number.value)


def _same_scale(number: Number, label: Label, percent: bool, problem: ProblemText) -> tuple[Number, Number]:
    """Return both numbers without percent signs: a sign is a unit where percent is asked for, and else a hundredth."""
    gold = label.number or number
    if percent and not label.percent:
        asks = problem.asks_percent if problem.text else gold.value > 1
        number = number if asks else number.hundredth
    if label.percent and not percent and (not problem.has_percent or (not problem.text and number.value < gold.value)):
        gold = gold.hundredth
    return number, gold


# Several values


def _list(text: str, label: Label, problem: ProblemText, computed: Computed) -> Verdict:
    """Items in any order, as many as the label has. Beside a label with names, items without names keep the order."""
    own = list(label.items)
    names = [item.name for item in own]
    sides = [side.strip() for side in split(text, EQUALS)]
    if len(sides) == 2 and all(names) and tuple_name(sides[0]) == f"({','.join(names)})":
        text = sides[1]
    items = _items(text, label, problem)
    if items is None:
        return None
    if len(items) != len(own):
        return False
    if all(names) and len(set(names)) == len(names) and not any("=" in item for item in items):
        return _every([_read(item, gold, problem, computed) for item, gold in zip(items, own, strict=True)])
    return _match(items, own, problem, computed)


def _items(text: str, label: Label, problem: ProblemText) -> list[str] | None:
    """Return the items of a list, without the one name before all of them."""
    text = TEXT_NUMBER.sub(r"\1", text)
    if label.unit:
        bare, unit = split_unit(text, problem.words, any_noun=True)
        text = bare if unit == label.unit else text
    sides = [side.strip() for side in split(text, EQUALS)]
    braced = outer_brackets(sides[-1])
    if len(sides) == 2 and name_key(sides[0]) is not None and braced and braced[0] == r"\lbrace":
        text = sides[1]
    lines = system_lines(text)
    if lines is not None:
        return lines
    items = list_items(text)
    names = [item.split("=")[0].strip() for item in items or [] if "=" in item]
    if items and names and len(names) == 1 and "=" in items[0] and len(items) > 1 and name_key(names[0]) is not None:
        items = [items[0].partition("=")[2].strip(), *items[1:]]  # x = 1, 2
        first = items[0]
        if label.items and all(item.kind == "tuple" for item in label.items) and not first.startswith("("):
            return None
    if items is None and (found := tuple_items(text)) and label.items and all(item.name for item in label.items):
        return found[1]  # (5, 2) for p = 5, q = 2
    return items


def _match(items: list[str], own: list[Label], problem: ProblemText, computed: Computed) -> Verdict:
    """Return True if every item has a label of its own, the first that fits."""
    left = list(own)
    unread = False
    for item in items:
        verdicts = []
        for place, gold in enumerate(left):
            verdict = accepts(item, gold, problem, computed)
            if verdict:
                del left[place]
                break
            verdicts.append(verdict)
        else:
            if False in verdicts:
                return False
            unread = True
    return None if unread else True


def _tuple(text: str, label: Label, problem: ProblemText, computed: Computed) -> Verdict:
    """Items in order and in the brackets of the label, with one name or the tuple of their names before it."""
    sides = [side.strip() for side in split(text, EQUALS)]
    if len(sides) == 2 and (name_key(sides[0]) is not None or tuple_name(sides[0])):
        names = tuple_name(sides[0])
        if names and problem.text and names not in problem.keys and _in_other_order(names, problem):
            return False
        if label.name and not _is_same_name(tuple_name(sides[0]) or name_key(sides[0]) or "", label.name):
            return False
        text = sides[1]
    if member := MEMBER.match(text):
        text = text[member.end() :]
    found = tuple_items(text)
    if found is None:
        return _assignment(text, label, problem, computed) or _as_reals(text, label, problem, computed)
    brackets, items = found
    if brackets != label.brackets or len(items) != len(label.items):
        return False
    return _every([_read(item, own, problem, computed) for item, own in zip(items, label.items, strict=True)])


def _in_other_order(names: str, problem: ProblemText) -> bool:
    """Return True if the problem has a tuple of the same names in another order."""
    letters = sorted(names[1:-1].split(","))
    return any(key[0] == "(" and key[-1] == ")" and sorted(key[1:-1].split(",")) == letters for key in problem.keys)


def _assignment(text: str, label: Label, problem: ProblemText, computed: Computed) -> Verdict:
    """``x = 1, y = 2`` for a problem that asks for ``(x, y)``."""
    items = system_lines(text) or list_items(text) or []
    sides = [[side.strip() for side in split(item, EQUALS)] for item in items]
    if len(items) != len(label.items) or any(len(side) != 2 or name_key(side[0]) is None for side in sides):
        return None
    names = [name_key(side[0]) for side in sides]
    order = f"({','.join(map(str, names))})"
    is_asked = order in problem.keys or order == label.name or (not problem.text and names == sorted(map(str, names)))
    if len(set(names)) < len(names) or not is_asked:
        return None
    return _every([_read(side[1], own, problem, computed) for side, own in zip(sides, label.items, strict=True)])


def _as_reals(text: str, label: Label, problem: ProblemText, computed: Computed) -> Verdict:
    """``1 < x < 2`` for ``(1, 2)``, if the problem may ask for an interval."""
    ends = [item.number for item in label.items]
    if label.brackets != "()" or len(ends) != 2 or not RELATION.search(text):
        return None
    if problem.text and not INTERVAL_WORDS.search(problem.text):
        return None
    found = real_set(text)
    if found is None or len(found.pieces) != 1:
        return None
    piece = found.pieces[0]
    if (piece.opening, piece.closing) != ("(", ")"):
        return False
    return _every(
        [_end(side, own, problem, computed) for side, own in zip((piece.low, piece.high), label.items, strict=True)]
    )


def _reals(text: str, label: Label, problem: ProblemText, computed: Computed) -> Verdict:
    """A union of intervals, inequalities in one variable and points."""
    sides = [side.strip() for side in split(text, EQUALS)]
    if len(sides) == 2 and name_key(sides[0]) is not None and real_set(sides[1]) is not None:
        text = sides[1]
    found = real_set(text)
    if found is None or label.reals is None:
        return None
    if found.variable and label.reals.variable and compact(found.variable) != compact(label.reals.variable):
        return False
    own = label.reals.pieces
    if len(found.pieces) != len(own):
        return False
    left = [(piece, label.items[2 * place : 2 * place + 2]) for place, piece in enumerate(own)]
    unread = False
    for piece in found.pieces:
        verdicts: list[Verdict] = []
        for place, (gold, ends) in enumerate(left):
            verdict = _piece(piece, gold, ends, problem, computed)
            if verdict:
                del left[place]
                break
            verdicts.append(verdict)
        else:
            if False in verdicts and None not in verdicts:
                return False
            unread = True
    return None if unread else True


def _piece(piece: Piece, gold: Piece, ends: tuple[Label, ...], problem: ProblemText, computed: Computed) -> Verdict:
    if (piece.opening, piece.closing) != (gold.opening, gold.closing):
        return False
    return _every(
        [_end(side, own, problem, computed) for side, own in zip((piece.low, piece.high), ends, strict=True)]
    )


def _end(text: str, label: Label, problem: ProblemText, computed: Computed) -> Verdict:
    infinite = [INFINITY.fullmatch(side) for side in (text, label.text)]
    if any(infinite):
        signs = [bool(found and found["minus"]) for found in infinite]
        return all(infinite) and signs[0] == signs[1]
    return _read(text, label, problem, computed)


def _matrix(text: str, label: Label, problem: ProblemText, computed: Computed) -> Verdict:
    sides = [side.strip() for side in split(text, EQUALS)]
    if len(sides) == 2 and name_key(sides[0]) is not None:
        text = sides[1]
    found = matrix_rows(text)
    if found is None:
        return None
    kind, rows = found
    if kind != label.brackets or tuple(map(len, rows)) != label.rows:
        return False
    cells = [cell for row in rows for cell in row]
    return _every([_read(cell, own, problem, computed) for cell, own in zip(cells, label.items, strict=True)])


def _ratio(text: str, label: Label, problem: ProblemText, computed: Computed) -> Verdict:
    sides = [side.strip() for side in split(text, EQUALS)]
    if len(sides) == 2 and all(name_key(part) is not None for part in sides[0].split(":")):
        text = sides[1]
    items = ratio_items(text)
    if items is None:
        return None
    if len(items) != len(label.items):
        return False
    return _every([_read(item, own, problem, computed) for item, own in zip(items, label.items, strict=True)])


# Equations, words and letters


def _equation(text: str, label: Label, problem: ProblemText, computed: Computed) -> Verdict:
    sides = split(text, EQUALS)
    own = [side.strip() for side in split(label.text, EQUALS)]
    if len(sides) == 1 and (is_derivative(own[0]) or COMPOSED_NAME.fullmatch(own[0])):
        return accepts(text, typed(own[1]), problem, computed)
    if len(sides) != 2 or CONNECTOR.search(text):
        return None
    return computed(text, label, problem)


def _inequality(text: str, label: Label, problem: ProblemText, computed: Computed) -> Verdict:
    return computed(text, label, problem) if len(split(text, RELATION)) == 2 else None


def _base(text: str, label: Label, problem: ProblemText, computed: Computed) -> Verdict:
    match = BASE.fullmatch(text)
    return None if match is None else f"{match['digits']} {match['b'] or match['b1']}" == label.text


def _time(text: str, label: Label, problem: ProblemText, computed: Computed) -> Verdict:
    """A time of day with its half; a time from 13 to 24 o'clock has said it."""
    time = time_of_day(text)
    if time is None or label.time is None:
        return None
    if not time[3] and time[0] < 13:
        return False
    return _on_24_hours(time) == _on_24_hours(label.time)


def _on_24_hours(time: tuple[int, int, int, str]) -> tuple[int, int, int]:
    hour, minute, second, half = time
    if half and hour <= 12:
        hour = hour % 12 + (12 if half == "pm" else 0)
    return hour % 24, minute, second


def choice_of(text: str, problem: ProblemText) -> str | None:
    """Return the letter of the one option that an answer names; None if it names none or several.

    The text of the option may follow its letter: any text without a second letter, or the text of the problem if the
    problem is known.
    """
    flat = GROUP.sub("", text).strip()
    flat = re.sub(r"\A(?:option|choice)\s+", "", flat, flags=re.IGNORECASE)
    if match := LETTER.fullmatch(flat):
        return match["letter"]
    option = option_of(flat)
    if option is None or SECOND_LETTER.search(option[1]) or re.match(r"[=+*/^_<>-]\s", option[1]):
        return None
    options = compact(GROUP.sub("", problem.cleaned))
    has_options = f"({option[0]})" in options or f"{option[0]})" in options
    return option[0] if not has_options or _is_option(*option, problem) else None


def _is_option(letter: str, text: str, problem: ProblemText) -> bool:
    """Return True if a text stands behind its letter in the problem."""
    options = compact(GROUP.sub("", problem.cleaned))
    rest = compact(GROUP.sub("", text))
    return any(f"{letter}{sign}{rest}" in options for sign in (")", ").", "):", ".", ":"))


def _choice(text: str, label: Label, problem: ProblemText, computed: Computed) -> Verdict:
    letter = choice_of(text, problem)
    option = option_of(GROUP.sub("", text).strip())
    if letter == label.text and option and label.items:
        return accepts(option[1], label.items[0], problem, computed)
    return None if letter is None else letter == label.text


def _word(text: str, label: Label, problem: ProblemText, computed: Computed) -> Verdict:
    if compact(text) in EMPTY:
        return label.text == "emptyset"
    flat = PRODUCT_SIGN.sub("", GROUP.sub("", text)).strip()
    if STRAY_MARK.search(flat) or (label.text in YES_OR_NO and " " in flat):
        return None
    if not is_words(text) and not is_words(flat) and text_key(flat) != label.text:
        return None
    return text_key(flat) == label.text


def _infinity(text: str, label: Label, problem: ProblemText, computed: Computed) -> Verdict:
    return _end(text, label, problem, computed) if INFINITY.fullmatch(text) else None


def _spelling(text: str, label: Label, problem: ProblemText, computed: Computed) -> Verdict:
    return None


READERS: dict[str, Callable[[str, Label, ProblemText, Computed], Verdict]] = {
    **dict.fromkeys(SCALAR, _scalar),
    "equation": _equation,
    "inequality": _inequality,
    "reals": _reals,
    "list": _list,
    "tuple": _tuple,
    "matrix": _matrix,
    "base": _base,
    "ratio": _ratio,
    "time": _time,
    "choice": _choice,
    "word": _word,
    "infinity": _infinity,
    "spelling": _spelling,
}
"""Kind of a label -> how its answers are read."""
