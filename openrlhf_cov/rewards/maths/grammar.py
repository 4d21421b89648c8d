r"""The typed grammar: how an answer is read as the type of its label, and as nothing else.

See the table in ``docs/rewards.md``. A verdict on an answer is True or False, or None for a text that does not have
the form which the label asks for. Formulas are compared by a function of the caller, which may do so in a child
process.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from openrlhf_cov.rewards.maths import shapes
from openrlhf_cov.rewards.maths.labels import LEAD, NUMERIC, SCALAR, Label, sides_of, typed
from openrlhf_cov.rewards.maths.latex import Refused, parse_formula
from openrlhf_cov.rewards.maths.names import (
    COMPOSED_NAME,
    NAME_SIGN,
    family,
    is_derivative,
    is_same_name,
    name_key,
    quotient_of_names,
    tuple_name,
    without_domain,
)
from openrlhf_cov.rewards.maths.normalization import clean, compact
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
from openrlhf_cov.rewards.maths.prompt import COUNTS, MEASURES, PERCENT, PERCENTAGES, SOLVED, ProblemText
from openrlhf_cov.rewards.maths.shapes import (
    EMPTY,
    GROUP,
    INFINITY,
    LETTER,
    MEMBER,
    RELATION,
    SECOND_LETTER,
    THOUSANDS,
    YES_OR_NO,
    Piece,
)
from openrlhf_cov.rewards.maths.units import COUNTED_UNITS, UNITS, split_percent, split_unit
from openrlhf_cov.rewards.maths.values import WHOLE_NAMES, exact_value, names_in

Verdict = bool | None
# Compares the text of a formula, an equation or an inequality with a label.
Computed = Callable[[str, Label, ProblemText], Verdict]


# Sides of a chain of equations, and characters of a side that is computed.
MAX_SIDES = 8
MAX_COMPUTATION = 60
IMPLIES = re.compile(r"\\(?:implies|to)(?![a-z])")
# What says that a decimal is rounded.
ABOUT = re.compile(
    r"\A(?:\\(?:approx|sim)(?![a-z])|(?:\\text\s?\{\s?)?(?:about|approximately|approx\.|roughly)\s?\}?)\s?|"
    r"\s?(?:\\text\s?\{)?\s?\(approximately\)\s?\}?\Z"
)
# Names of what problems ask for.
MEASURE = re.compile(
    rf"(?:total |surface |shaded |maximum |minimum )?(?P<measure>{MEASURES})(?: of [A-Z]{{2,4}})?", re.IGNORECASE
)
# Words for one measure.
SAME_MEASURE = {"total": "sum", "mean": "average", "price": "cost", "distance": "length"}
# A function or a sequence at a place that has a name, such as f(x) and a_n.
GENERAL_NAME = re.compile(r"([A-Za-z](?:\(|_))[a-z]\)?")
CALLED = re.compile(r"(?P<head>[A-Za-z]\()[A-Za-z0-9]\)")
ANGLE = re.compile(r"m?\\angle\{?([A-Z]{1,3})\}?")
DENIALS = frozenset("not no never wrong incorrect false untrue maybe unless except".split())
MODIFIED_NAME = re.compile(r"\\(?:Delta|overline|hat|text)(?![a-z])|[{}']")
# Words of a question that asks for the conjugate, the change or the derivative of a name.
ASKS_MODIFIED = re.compile(r"conjugat|differentiat|derivativ|change|difference|estimat|average", re.IGNORECASE)
ARGUMENT_WORD = re.compile(r"(?<![A-Za-z\\])[A-Za-z]{3,}")
# How the value of an option begins: ``(B) 12``, and not ``(B) + 12``.
OPTION_VALUE = re.compile(r"[\d\\.]|[A-Za-z]")
# The letter of a second option, where it may be any.
FREE_LETTER = re.compile(r"(?<![A-Za-z\\])[A-H](?![A-Za-z])")
FURTHER_LETTER = re.compile(r"(?<![A-Za-z\\])(?:\([A-Za-z]\)|[A-Z]\s?[.:)])")
# How the text of an option that the problem does not have may begin and end: not with an operator or a mark. Two
# boxes for the letter and the text are one answer with a comma.
OPTION_TEXT = re.compile(
    r",?\s?(?:-?(?:[\d.]|\\(?:frac|sqrt|pi)(?![a-z]))|[A-Za-z(\[|]|\\(?!(?:ne|in|notin|approx|equiv|sim|to|times|cdot|div|"
    r"pm|mp|cap|cup|setminus|neg|lnot|le|ge|vee|wedge|implies|iff)(?![a-z]))|[^\x00-\x7f]).*(?<![!?,;=+*/^_&#<>-])",
    re.DOTALL,
)
# Signs that words may have beside those of their label.
WORD_MARKS = frozenset(".,:;()-'’\"")
STRAY_MARK = re.compile(r"'\Z|\?|[.!]{2}|[A-Za-z]\.[A-Za-z]\.?\Z|\A[-+!~¬]|\A\\(?:neg|lnot|sim|pm|mp)(?![a-z])")
PRODUCT_SIGN = re.compile(r"\s?(?:\\(?:cdot|times)(?![a-z])|\*)\s?")
# What a problem says that asks for a time of day, and one that asks to leave out the half of the day.
ASKS_TIME = re.compile(
    r"\b(?:what|find|determine)\s(?:is\s)?(?:the\s)?(?:(?:exact|earliest|latest|next|first|correct)\s)?time\b",
    re.IGNORECASE,
)
WITHOUT_HALF = re.compile(
    r"without\s(?:(?:including|writing|using|the)\s)?[\"'“`]{0,2}(?:am|a\.m\.|AM|pm|p\.m\.|PM)(?![a-z])"
)
HALF = re.compile(r"(?P<half>[ap])\.?\s?m\.?[\s}]*\Z", re.IGNORECASE)
HALVES = {
    "a": re.compile(r"\b(?:AM|a\.m|A\.M)\b|morning|\d\s?am\b"),
    "p": re.compile(r"\b(?:PM|p\.m|P\.M)\b|afternoon|evening|\d\s?pm\b"),
}
INTERVAL_WORDS = re.compile(
    r"interval|inequal|range|domain|values? of|solution|for (?:which|what)|set of", re.IGNORECASE
)


def accepts(text: str, label: Label, problem: ProblemText, computed: Computed) -> Verdict:
    """Return whether a bare answer has the form that its label asks for, and its value.

    Args:
        text: The answer, without a box and without what leads to it.
        label: The label with its type.
        problem: What the text of the problem says; an empty one if it is not known.
        computed: Compares a formula with its label where the text alone does not decide.

    Returns:
        True or False; None if the answer does not have the form of its label.
    """
    return _Reader(problem, computed).accepts(_option_value(text, label, problem), label)


def _option_value(text: str, label: Label, problem: ProblemText) -> str:
    """Return the text of the option that an answer names by its letter, alone or with the text; else the answer.

    A label that is a letter itself is compared with the answer as it stands.
    """
    options = problem.option_texts
    if not options or label.kind == "choice" or compact(text) == label.key:
        return text
    bare = LEAD.sub("", shapes.without_braces(text.removeprefix("="))) if label.kind != "word" else text
    letter = LETTER.fullmatch(GROUP.sub("", bare).strip())
    if letter:
        return options.get(letter["letter"], text)
    option = shapes.option_of(bare)
    is_whole = option and _ungrouped(options.get(option[0], "")) == _ungrouped(option[1])
    return option[1] if option and is_whole else text


def _ungrouped(text: str) -> str:
    return compact(GROUP.sub("", text))


def choice_of(text: str, problem: ProblemText, *, any_letter: bool = False) -> str | None:
    """Return the letter of the one option that an answer names; None if it names none or several.

    The text of the option may follow its letter. If the problem has options, it must be the text of this option.

    Args:
        text: The answer, without a box and without what leads to it.
        problem: What the text of the problem says; ``NO_PROBLEM`` if it is not known.
        any_letter: True if a letter beyond H, or a small one, is that of an option as well, as it is where no formula
            can be the answer.
    """
    flat = re.sub(r"\A(?:option|choice)\s+", "", GROUP.sub("", text).strip(), flags=re.IGNORECASE)
    if match := LETTER.fullmatch(flat):
        return match["letter"]
    option = shapes.option_of(flat, shapes.ANY_OPTION if any_letter else shapes.OPTION)
    if option is None or SECOND_LETTER.search(option[1]) or (any_letter and FURTHER_LETTER.search(option[1])):
        return None
    letter, text = option
    if _is_other_option(letter, text, problem):
        return None
    spellings = (letter, letter.swapcase()) if any_letter else (letter,)
    if any(problem.has_option(each, text) for each in spellings):
        return letter.upper()
    has_letter = any(map(problem.has_option, spellings))
    return letter.upper() if not has_letter and OPTION_TEXT.fullmatch(text) else None


def _is_other_option(letter: str, text: str, problem: ProblemText) -> bool:
    """Return True if a text is that of another option than that of its letter, or names another option."""
    number = parse_number(clean(text))

    def is_same(other: str) -> bool:
        value = parse_number(other)
        return compact(text) == compact(other) or bool(number and value and numbers_equal(number, value))

    same = {each for each, other in problem.option_texts.items() if is_same(other)}
    named = set(FREE_LETTER.findall(text)) & problem.option_texts.keys()
    return letter not in same and bool(same or named - {letter})


@dataclass(frozen=True)
class _Reader:
    """Reads answers to one problem. Each method reads one type, and returns a verdict."""

    problem: ProblemText
    computed: Computed

    def accepts(self, text: str, label: Label) -> Verdict:
        key = compact(text)
        is_yes_or_no = label.kind == "word" and label.text in YES_OR_NO
        has_new_thousands = label.kind == "list" and THOUSANDS.search(text) and not THOUSANDS.search(label.text)
        if key == label.key and not is_yes_or_no and not has_new_thousands:
            return bool(key)
        if label.has_names:
            text = without_domain(text, label.text)
        return self.read(text.strip(), label)

    def read(self, text: str, label: Label) -> Verdict:
        text = shapes.without_braces(text.removeprefix("="))
        if label.kind not in ("word", "choice"):
            # A font around all of the text goes: ``\text{5}``, which ``clean`` makes of ``\mathbf{5}``, is 5.
            span = shapes.outer_brackets(text[5:].lstrip()) if text.startswith(r"\text") else None
            if span and span[0] == "{":
                text = span[1]
            text = LEAD.sub("", text)
        if not text or label.kind == "spelling":
            return None
        return getattr(self, f"read_{'scalar' if label.kind in SCALAR else label.kind}")(text, label)

    def each(self, texts: Sequence[str], labels: Sequence[Label]) -> Verdict:
        """Read as many texts as there are labels, in order."""
        if len(texts) != len(labels):
            return False
        return _all_true([self.read(text, label) for text, label in zip(texts, labels, strict=True)])

    # Values: integers, fractions, decimals and formulas

    def read_scalar(self, text: str, label: Label) -> Verdict:
        """Read a value with a name before it, or a chain of equations that ends with it.

        Every side of a chain is a name, an accepted answer, or a computation with exactly the value of the label.
        """
        option = shapes.option_of(text)
        if option and OPTION_VALUE.match(option[1]) and (not self.problem.text or self.problem.has_option(*option)):
            text = option[1]
        if label.number:
            text = self.without_parts(text, label.number)
        if label.kind == "decimal":
            text = ABOUT.sub("", text).replace(r"\approx", "=").strip(" =")
        sides = sides_of(text)
        if len(sides) > MAX_SIDES or not all(sides) or len(set(map(compact, sides))) < len(sides):
            return None
        if len(sides) > 1:
            # An equation of the problem is no answer to it.
            if not self.problem.keys.isdisjoint({compact("=".join(sides)), compact("=".join(sides[::-1]))}):
                return False
            if len(sides) == 2 and name_key(sides[1]) is not None and name_key(sides[0]) is None:
                sides.reverse()  # 5 = x
            name = self.name_of(sides[0], label)
            if name is not None and not label.has_names and not label.name and self.is_other_name(sides[0]):
                return False
            has_other_name = name is not None and not is_same_name(name, label.name)
            is_relation = name is None and len(sides) == 2 and label.has_names
            if label.name and (has_other_name or is_relation):
                return self.as_equation(text, label)
            if name is not None:
                sides = [side for side in sides[1:-1] if name_key(side) is None] + sides[-1:]  # AB = BC = 5
        if label.percent and not self.problem.text and _mixes_scales(sides):
            return False
        verdicts = [self.value(sides[-1], label)]
        verdicts += [_is_worked_out(side, label) or self.value(side, label) for side in sides[:-1]]
        return _all_true(verdicts)

    def without_parts(self, text: str, total: Number) -> str:
        """Return the end of ``p = 50, q = 21, p + q = 71`` if the numbers before it have the value ``total`` in it.

        An end whose left side the problem does not ask for is no name of a value, and so no answer.
        """
        items = shapes.list_items(IMPLIES.sub(",", text)) if "=" in text else None
        if items is None or len(items) < 2:
            return text
        *parts, last = items
        last = LEAD.sub("", last)
        numbers = {}
        for part in parts:
            name, value = _named(part)
            number = parse_number(value)
            if not name or name in numbers or number is None:
                return text
            numbers[name] = number.value
        try:
            formula = parse_formula(sides_of(last)[0])
        except (Refused, RecursionError):
            return text
        is_total = names_in(formula) == numbers.keys() and exact_value(formula, numbers) == total.value
        return last if is_total else text

    def as_equation(self, text: str, label: Label) -> Verdict:
        """Return the verdict on an equation whose label is solved for its name, such as ``y = 2x + 3``.

        An equation in another form is not accepted if the problem asks for the form of its label.
        """
        if not label.has_names or len(sides_of(text)) != 2 or self.problem.asks(SOLVED):
            return False
        # With another argument, as in f(2x), a name of a function would be read as a factor.
        called = CALLED.fullmatch(compact(label.name))
        if called and compact(text).count(called["head"]) != compact(text).count(called[0]):
            return False
        equation = replace(label, kind="equation", text=f"{label.name}={label.text}", name="")
        return self.computed(text, equation, self.problem)

    def name_of(self, text: str, label: Label) -> str | None:
        """Return the name that stands before a value; None if the text names nothing."""
        key = name_key(text)
        words = ARGUMENT_WORD.findall(text.partition("(")[2])
        is_random = text.startswith(("P", r"\Pr", r"\mathbb", "E"))
        if (words and not is_random) or not DENIALS.isdisjoint(ARGUMENT_WORD.findall(text)):
            return None
        base = compact(MODIFIED_NAME.sub("", text))
        is_asked = compact(text) in self.problem.question or ASKS_MODIFIED.search(self.problem.question)
        if base != compact(text) and base in self.problem.names and not is_asked:
            return None  # the conjugate, the change or the derivative of what is asked for
        if is_derivative(text) or (key is not None and compact(text) != label.key):
            argument = re.fullmatch(r"[A-Za-z]\(([A-Za-z0-9])\)", key or "")
            is_free = label.has_names and key not in self.problem.keys
            if is_free and argument and argument[1] not in NAME_SIGN.findall(label.text):
                return None  # f(2) = x^2 + 1
            if label.has_names and key in NAME_SIGN.findall(label.text):
                return None  # x = x + 1
            return key or compact(text)
        key = compact(text)
        if re.search(r"[A-Za-z]", key) and key in self.problem.keys and key in self.problem.question:
            return key
        if not self.problem.text and COMPOSED_NAME.fullmatch(text):
            return key
        return key if _measure(text) else None

    def is_other_name(self, text: str) -> bool:
        """Return True for a name or a formula that is not what the problem asks for, if it can be told what that is.

        A name that the problem does not have is free: S for a sum.
        """
        problem = self.problem
        spelt = compact(text)
        measure = _measure(text)
        if measure:
            own = {SAME_MEASURE.get(word, word) for word in problem.asked_measures}
            return bool(own) and SAME_MEASURE.get(measure, measure) not in own
        key = name_key(text)
        if not problem.asked:
            is_formula = key is None and any(sign.isdigit() for sign in spelt)
            return is_formula and (bool(problem.asked_measures) or problem.asks(COUNTS))
        # A probability, a derivative and a determinant have several spellings.
        has_spellings = text.startswith((r"\Pr", r"\mathbb", "|")) or is_derivative(text) or "'" in text
        if has_spellings or any(_is_asked(key or spelt, own) for own in problem.asked):
            return False
        if ANGLE.fullmatch(spelt) and any(map(ANGLE.fullmatch, problem.asked)):
            return True
        base = MODIFIED_NAME.sub("", spelt).partition("(")[0].replace(r"\angle", "")
        letters = NAME_SIGN.findall(base)
        return key is None or problem.names.issuperset(letters)

    def value(self, text: str, label: Label) -> Verdict:
        """Read one value with at most one unit or percent sign behind it."""
        if label.unit:
            bare, unit = split_unit(text, self.problem.words, any_noun=True, letters=True)
            has_no_scale = unit == "degree" and label.unit.startswith("degree ")
            if unit and unit != label.unit and not has_no_scale:
                return False
            return self.number(bare, replace(label, unit=""), percent=False)
        bare, percent = split_percent(text)
        may_have_unit = label.kind in NUMERIC or not label.has_names or r"\text" in bare or r"\circ" in bare
        if not percent and not label.percent and may_have_unit:
            bare, unit = split_unit(bare, self.problem.words)
            measure = unit.split(" ")[0]
            is_angle = measure == "degree" and label.kind == "formula" and not (label.rational or label.has_names)
            if is_angle or self.problem.lacks_unit(measure):
                return False
            is_measure = measure.partition("^")[0] in UNITS - COUNTED_UNITS
            if is_measure and self.problem.asks_for_other_unit(unit):
                return False
        return self.number(bare, label, percent=percent)

    def number(self, text: str, label: Label, *, percent: bool) -> Verdict:
        """Read a literal number, or leave a formula to ``computed``."""
        text = _unbracketed(text)
        number = parse_number(text)
        gold = label.number
        if gold is None:
            if percent != label.percent:
                return None
            if number and (not label.rational or self.problem.has_number(number.value)):
                return False
            return self.computed(text.replace(",", "") if number else text, label, self.problem)
        if number is None or not self.is_form_of(text, number, label, percent=percent):
            is_rounded = label.kind == "decimal" and gold.digits >= SIGNIFICANT_DIGITS and percent == label.percent
            return self.computed(text, label, self.problem) if is_rounded else None
        if label.kind != "integer" and not self.has_form_asked_for(text, number, gold, label, percent=percent):
            return False
        is_unasked = percent and self.problem.text and not self.problem.asks(PERCENTAGES)
        if is_unasked and label.kind == "integer" and not label.percent:
            return False
        number, gold = self.same_scale(number, gold, label, percent=percent)
        return number.value == gold.value if percent else numbers_equal(number, gold)

    def is_form_of(self, text: str, number: Number, label: Label, *, percent: bool) -> bool:
        """Return True if a literal number has a form of its label: for an integer digits or scientific notation."""
        if label.kind != "integer" or (label.percent and not percent):  # 0.25 for 25 %
            return True
        if INTEGER.fullmatch(text) or SPACED_THOUSANDS.fullmatch(text.lstrip("+-")):
            return True
        return is_scientific(text) and not self.problem.has_number(number.value)

    def has_form_asked_for(self, text: str, number: Number, gold: Number, label: Label, *, percent: bool) -> bool:
        """Return False for a number of the problem that the label has in another form, or rounded."""
        if self.problem.has_number(gold.hundredth.value if label.percent else gold.value):
            has_same_scale = percent == label.percent or (label.percent and number.value == gold.value)
            return number_form(text) == number_form(label.text) and has_same_scale
        return number.value == gold.value or not self.problem.has_number(number.value)

    def same_scale(self, number: Number, gold: Number, label: Label, *, percent: bool) -> tuple[Number, Number]:
        """Return the numbers without percent signs: a sign is a unit where percent is asked for, else a hundredth.

        If the problem is not known, the label decides: a sign behind the answer is a unit for a label above 1, and a
        hundredth for a smaller one or a fraction. An answer without the sign of its label then means a percentage
        above 1, and a share up to 1.
        """
        problem = self.problem
        if percent and not label.percent:
            is_unit = problem.asks(PERCENTAGES) if problem.text else gold.value > 1 and label.kind != "fraction"
            number = number if is_unit else number.hundredth
        if label.percent and not percent:
            is_share = not problem.asks(PERCENT) if problem.text else abs(number.value) <= 1
            gold = gold.hundredth if is_share else gold
        return number, gold

    # Several values

    def read_list(self, text: str, label: Label) -> Verdict:
        """Read items in any order. If the label has names, items without names keep the order of the label."""
        names = [item.name for item in label.items]
        own_name = f"({','.join(names)})" if all(names) else ""
        name, value = _named(text)
        if name and (name == own_name or value.startswith(r"\lbrace")):
            text = value
        items = shapes.list_items(text)
        if items is None and own_name and (found := shapes.tuple_items(text)):
            items = found[1]
        if items is None:
            return None
        has_plain_items = not any("=" in item for item in items)
        if own_name and len(set(names)) == len(names) and has_plain_items:
            return self.each(items, label.items)
        own_names = {_named(item)[0].partition("_")[0] for item in items}
        if not any(names) and len(own_names) > 1 and "" not in own_names:  # a = 1, b = 2
            return self.each(items, label.items)
        return _match(items, label.items, self.accepts)

    def read_tuple(self, text: str, label: Label) -> Verdict:
        """Read items in order and in the brackets of the label, with one name or a tuple of names before it."""
        name, text = _named(text)
        if name.startswith("(") and self.problem.has_in_other_order(name):
            return False
        if name and label.name and not is_same_name(name, label.name):
            return False
        member = MEMBER.match(text)
        if member and (member["name"][0] == "(" or not self.problem.asks_for_tuple):
            text = text[member.end() :]
        found = shapes.tuple_items(text)
        if found is None:
            return self.assignment(text, label) or self.bounds(text, label)
        brackets, items = found
        if brackets != label.brackets:
            return False
        if any("=" in item for item in items) and not any("=" in item.text for item in label.items):
            return self.assignment(", ".join(items), label, in_brackets=True)  # (x = 1, y = 2)
        return self.each(items, label.items)

    def assignment(self, text: str, label: Label, *, in_brackets: bool = False) -> Verdict:
        """Read ``x = 1, y = 2`` for a problem that asks for ``(x, y)``.

        In brackets, names in the order of the alphabet are accepted where the problem has no tuple of names.
        """
        items = None if shapes.OR.search(text) else shapes.list_items(text)
        sides = [sides_of(item) for item in items or []]
        if len(sides) != len(label.items) or any(len(side) != 2 or name_key(side[0]) is None for side in sides):
            return None
        names = [str(name_key(side[0])) for side in sides]
        order = f"({','.join(names)})"
        is_asked = (
            order in self.problem.keys
            or order == label.name
            or (
                names == sorted(names) and (not self.problem.text or (in_brackets and not self.problem.asks_for_tuple))
            )
        )
        if len(set(names)) < len(names) or not is_asked:
            return None
        return self.each([side[1] for side in sides], label.items)

    def bounds(self, text: str, label: Label) -> Verdict:
        r"""Read ``1 \le x \le 2`` for ``[1, 2]``.

        ``1 < x < 2`` is ``(1, 2)`` only if the problem may ask for an interval.
        """
        if label.brackets not in ("()", "[]") or len(label.items) != 2 or not RELATION.search(text):
            return None
        may_be_point = label.brackets == "()" and bool(self.problem.text)
        if may_be_point and (self.problem.asks_for_tuple or not INTERVAL_WORDS.search(self.problem.text)):
            return None
        found = shapes.real_set(text) or shapes.bounded_set(text)
        if found is None or len(found.pieces) != 1:
            return None
        opening, closing = label.brackets
        return self.piece(found.pieces[0], Piece(opening, "", "", closing), label.items)

    def read_reals(self, text: str, label: Label) -> Verdict:
        """Read a union of intervals, inequalities in one variable and points."""
        found = shapes.real_set(_named(text)[1]) or shapes.real_set(text) or shapes.bounded_set(text)
        if found is None or label.reals is None:
            return None
        if found.variable and label.reals.variable and compact(found.variable) != compact(label.reals.variable):
            return False
        own = [(piece, label.items[2 * i : 2 * i + 2]) for i, piece in enumerate(label.reals.pieces)]
        return _match(found.pieces, own, lambda piece, gold: self.piece(piece, *gold))

    def piece(self, piece: Piece, gold: Piece, ends: Sequence[Label]) -> Verdict:
        if (piece.opening, piece.closing) != (gold.opening, gold.closing):
            return False
        return _all_true([self.end(text, end) for text, end in zip((piece.low, piece.high), ends, strict=True)])

    def end(self, text: str, label: Label) -> Verdict:
        """Read an end of an interval, which may be infinite."""
        infinite = [INFINITY.fullmatch(side) for side in (text, label.text)]
        if any(infinite):
            return all(infinite) and len({found and found["minus"] for found in infinite}) == 1
        # A name before an end, as in ``(a = 3, 5)``, is a part of no interval.
        return None if len(sides_of(text)) > 1 else self.read(text, label)

    def read_family(self, text: str, label: Label) -> Verdict:
        r"""Read ``2k+1, k \in \mathbb{Z}`` for ``2n+1, n \in \mathbb{Z}``.

        The integer may have another name. If it is any integer, it may be counted from another one, and the condition
        may be left out.
        """
        own = label.family
        if own is None:
            return None
        found = family(text)
        if found is None and own.domain == "Z":
            letters = {sign for sign in NAME_SIGN.findall(_named(text)[1]) if sign.startswith(WHOLE_NAMES)} - {"i"}
            found = family(rf"{text}, {min(letters)} \in \mathbb{{Z}}") if len(letters) == 1 else None
        if found is None or found.domain != own.domain or (found.name and own.name and found.name != own.name):
            return None
        if found.index != own.index and own.index in NAME_SIGN.findall(found.formula):
            return None
        starts = [f"({own.index}{shift})" for shift in ("+1", "-1")] if own.domain == "Z" else []
        formulas = [replace(label, kind="formula", text=own.renamed(start)) for start in (own.index, *starts)]
        verdicts = [self.computed(found.renamed(own.index), formula, self.problem) for formula in formulas]
        return True in verdicts

    def read_infinity(self, text: str, label: Label) -> Verdict:
        return self.end(text, label) if INFINITY.fullmatch(text) else None

    def read_matrix(self, text: str, label: Label) -> Verdict:
        found = shapes.matrix_rows(_named(text)[1])
        if found is None:
            return None
        kind, rows = found
        if kind != label.brackets or tuple(map(len, rows)) != label.rows:
            return False
        return self.each([cell for row in rows for cell in row], label.items)

    def read_ratio(self, text: str, label: Label) -> Verdict:
        sides = sides_of(text)
        is_named = len(sides) == 2 and all(name_key(part) is not None for part in sides[0].split(":"))
        items = shapes.ratio_items(sides[1] if is_named else text)
        if items is None:
            return self.clock(text, label) if self.problem.asks(ASKS_TIME) else None
        return self.each(items, label.items)

    def clock(self, text: str, label: Label) -> Verdict:
        """Read ``9:24 AM`` or ``09:24`` for the time ``9:24``.

        The half of the day is free, unless the problem names only the other one.
        """
        gold = shapes.time_of_day(label.text)
        time = shapes.time_of_day(_named(text)[1])
        if gold is None or time is None:
            return None
        half = HALF.search(text)
        if half is None:
            return time == gold
        has_half = {name: self.problem.asks(pattern) for name, pattern in HALVES.items()}
        is_other = has_half["p" if half["half"].lower() == "a" else "a"] and not has_half[half["half"].lower()]
        return not is_other and _on_dial(time[0]) == _on_dial(gold[0])

    # Equations, words and letters

    def read_equation(self, text: str, label: Label) -> Verdict:
        sides = sides_of(text)
        own = sides_of(label.text)
        if len(sides) == 1 and (is_derivative(own[0]) or COMPOSED_NAME.fullmatch(own[0])):
            return self.accepts(text, typed(own[1]))
        if len(sides) == 2 and quotient_of_names(sides[0]) == quotient_of_names(own[0]) != "":
            return self.accepts(sides[1], typed(own[1]))  # TM/MK = 2
        return self.computed(text, label, self.problem) if len(sides) == 2 else None

    def read_inequality(self, text: str, label: Label) -> Verdict:
        if len(shapes.split(text, RELATION)) == 2:
            return self.computed(text, label, self.problem)
        # An interval, if the label is solved for its name: [1/n, \infty) for x >= 1/n.
        found = shapes.real_set(_named(text)[1])
        own = shapes.real_set(label.text)
        if found is None or own is None or (len(found.pieces), len(own.pieces)) != (1, 1):
            return None
        if found.variable and compact(found.variable) != compact(own.variable):
            return False
        piece = own.pieces[0]
        return self.piece(found.pieces[0], piece, [typed(piece.low), typed(piece.high)])

    def read_base(self, text: str, label: Label) -> Verdict:
        number = shapes.number_in_base(_named(text)[1])
        return None if number is None else number == label.text

    def read_time(self, text: str, label: Label) -> Verdict:
        """Read a time of day with its half of the day, unless the problem asks to leave this out."""
        time = shapes.time_of_day(_named(text)[1])
        if time is None or label.time is None:
            return None
        if not HALF.search(label.text) and label.text[0] == "0":  # 05:00
            return self.clock(text, label)
        if not time[1] and self.problem.asks(WITHOUT_HALF):
            return _on_dial(time[0]) == _on_dial(label.time)
        return time == (label.time, True)

    def read_choice(self, text: str, label: Label) -> Verdict:
        letter = choice_of(text, self.problem)
        option = shapes.option_of(GROUP.sub("", text).strip())
        if letter == label.text and option and label.items:
            return self.accepts(option[1], label.items[0])
        if letter is not None:
            return letter == label.text
        # The number of an option stands for its letter, if no other option has this number.
        number = parse_number(text)
        numbers = {each: parse_number(value) for each, value in self.problem.option_texts.items()}
        equal = [each for each, own in numbers.items() if number and own and numbers_equal(number, own)]
        return equal == [label.text] if equal else None

    def read_word(self, text: str, label: Label) -> Verdict:
        if compact(text) in EMPTY:
            return label.text == "emptyset"
        if label.number and parse_number(text):
            return self.value(text, replace(label, kind="integer"))  # 4 for four
        flat = PRODUCT_SIGN.sub("", GROUP.sub("", text)).strip()
        strange = set(re.sub(r"[\w\s]", "", flat)) - WORD_MARKS - set(label.key.replace(":", "=:"))
        if strange or STRAY_MARK.search(flat) or (label.text in YES_OR_NO and " " in flat):
            return None
        is_equal = shapes.text_key(flat) == label.text
        return is_equal if is_equal or shapes.is_words(text) or shapes.is_words(flat) else None


def _measure(text: str) -> str:
    """Return the measure such as ``area`` that a name is, "" for none."""
    found = MEASURE.fullmatch(re.sub(r"\s+", " ", GROUP.sub("", text)).strip())
    return found["measure"].lower() if found else ""


def _is_asked(key: str, own: str) -> bool:
    """Return True if a name is the quantity ``own`` of the problem, maybe without its argument or index."""
    own = (name_key(own) or own).replace("[", "(").replace("]", ")")
    key = key.replace("[", "(").replace("]", ")")
    general = GENERAL_NAME.fullmatch(own)
    if general and key.startswith(general[1]):
        return True  # f(2) for f(x)
    vertices = [found and found[1][len(found[1]) // 2] for found in (ANGLE.fullmatch(key), ANGLE.fullmatch(own))]
    if vertices[1]:
        return (vertices[0] or key) == vertices[1]
    return is_same_name(key, own) or own.startswith((f"{key}(", f"{key}_")) or key.startswith(f"{own}_")


def _named(text: str) -> tuple[str, str]:
    """Return the name or the tuple of names before a value, "" for none, and the value."""
    sides = sides_of(text)
    name = (tuple_name(sides[0]) or name_key(sides[0])) if len(sides) == 2 else None
    return (name, sides[1]) if name else ("", text)


def _on_dial(time: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return a time of day as a dial of 12 hours shows it."""
    return (time[0] % 12, *time[1:])


def _all_true(verdicts: Sequence[Verdict]) -> Verdict:
    if False in verdicts:
        return False
    return None if None in verdicts else True


def _match(items: Sequence, labels: Sequence, accepts: Callable[..., Verdict]) -> Verdict:
    """Return True if every item has a label of its own, the first that accepts it."""
    if len(items) != len(labels):
        return False
    left = list(labels)
    verdict: Verdict = True
    for item in items:
        found = [accepts(item, label) for label in left]
        if True in found:
            del left[found.index(True)]
        elif False in found:
            return False
        else:
            verdict = None
    return verdict


def _mixes_scales(sides: Sequence[str]) -> bool:
    """Return True for a chain of numbers with two values, as ``25 = 0.25``, those with a percent sign left out."""
    numbers = [(parse_number(split_percent(side)[0]), split_percent(side)[1]) for side in sides]
    return len({number.value for number, percent in numbers if number and not percent}) > 1


def _unbracketed(text: str) -> str:
    text = text.strip()
    span = shapes.outer_brackets(text[1:].lstrip()) if text.startswith(("-(", "- (")) else None
    if span and span[1][:1] in "0123456789\\" and parse_number(span[1]):
        return f"-{span[1]}"
    for _ in range(3):
        span = shapes.outer_brackets(text)
        if span is None or span[0] not in "({" or span[2] not in ")}" or "," in span[1]:
            return text
        text = span[1]
    return text


def _is_worked_out(text: str, label: Label) -> bool:
    """Return True for a computation without names that has exactly the value of the label."""
    if label.number is None or not label.number.exact or len(text) > MAX_COMPUTATION:
        return False
    try:
        return exact_value(parse_formula(text)) == label.number.value
    except (Refused, RecursionError):
        return False
