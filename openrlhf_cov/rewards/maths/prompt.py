r"""Reads the problem in a prompt: its formulas, which are no answers to it, its numbers, nouns and requests."""

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache

from openrlhf_cov.rewards.maths.latex import MAX_NODES, FormulaKeys, Node, Refused, parse_formula, size
from openrlhf_cov.rewards.maths.normalization import clean, compact
from openrlhf_cov.rewards.maths.numerals import parse_number
from openrlhf_cov.rewards.maths.shapes import EQUALS, GROUP, RELATION, split
from openrlhf_cov.rewards.maths.units import (
    COMPARED,
    COUNTED_NOUNS,
    COUNTED_UNITS,
    MARKED_SPELLINGS,
    POWERS,
    POWERS_AFTER,
    SPELLINGS,
    UNITS,
    singular,
)

# Characters of a problem that are read, from its end.
MAX_PROBLEM = 8_000
MAX_FORMULAS = 80
MAX_FORMULA = 400
MIN_LEAVES = 3
# A formula of the problem that is smaller than both may be a part of an answer: ``\sqrt{3}``, ``x + 1``.
MIN_OPERATIONS = 2

# Tokens of chat templates before and after a turn of the user.
USER_TURN = re.compile(
    r"<\|im_start\|>user\s|<\|user\|>|<\|start_header_id\|>user<\|end_header_id\|>|<[|｜]User[|｜]>|\[INST\]|"
    r"<start_of_turn>user\s",
    re.IGNORECASE,
)
TURN_END = re.compile(
    r"<\|im_end\|>|<\|eot_id\|>|<\|assistant\|>|<[|｜]Assistant[|｜]>|\[/INST\]|<end_of_turn>|<\|im_start\|>assistant",
    re.IGNORECASE,
)
# Words of templates in plain text. They may be words of a problem as well, see ``_in_plain_template``.
ROLE = re.compile(
    r"^(?:(?P<asks>user|human|question|problem)|(?P<answers>assistant|solution|answer))\s?:",
    re.IGNORECASE | re.MULTILINE,
)
# What a template may say behind its last word, such as "Let's think step by step." or "<think>".
PRIMER = re.compile(r"[^\d$?\\]{0,100}\Z")
DELIMITER = re.compile(r"\$\$?|\\[\[\]()]|\\(?:begin|end)\s?\{(?:align|equation|gather)\*?\}")
OPENING = {r"\[": r"\]", r"\(": r"\)", "$": "$", "$$": "$$"}
SEPARATOR = re.compile(r",(?!\d{3}(?!\d))|;|\\text\s?\{[^{}]*\}|\\(?:qquad|quad|implies|to|dots)(?![a-z])|\\\\|&")
SIDE = re.compile(r"\\(?:le|ge|ne|approx|equiv|in)(?![a-z])|[=<>]")
# A formula in text without delimiters.
RUN = re.compile(
    r"(?:\\?(?:sqrt|sin|cos|tan|cot|sec|csc|log|ln|exp|pi|frac|cdot|times|binom)(?![a-z])|(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])|"
    r"(?<=\d)[a-z](?![A-Za-z])|[\d.,()\[\]{}+*/^=<>!|_ -])+"
)
NUMBER = re.compile(
    r"(?:(?<!\d)\d{1,9}\s?)?\\frac\s?(?:\{\d{1,30}\}|\d)\s?(?:\{\d{1,30}\}|\d)|"
    r"(?<!\d)\d{0,30}\.\d{0,30}\\overline\s?\{\d{1,30}\}|(?<!\d)(?:\d{1,9}\s)?\d{1,30}\s?/\s?\d{1,30}|"
    r"(?<![\d.])\d{0,30}\.?\d{1,30}\s?(?:\\times|\\cdot|\*)\s?10\s?\^\s?(?:\{\s?-?\d{1,4}\s?\}|\d)|(?<![\d.])\d{0,30}\.\d{1,30}"
)
INTEGERS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3}){1,9}(?![\d.])|(?<![\d.,])\d{1,30}(?![\d.])")
PERCENTAGE = re.compile(r"(?<![\d.])(\d{0,30}\.?\d{1,30})\s?(?:\\?%|percent)")
ASKS = re.compile(
    r"\b(?:find|compute|what|determine|evaluate|express|calculate|enter|how|give|which)\b", re.IGNORECASE
)
# Where a sentence ends, and what a sentence that is no question in form asks with.
SENTENCE_END = re.compile(r"(?<=[.?!])(?<!Mr\.)(?<!Ms\.)(?<!Mrs\.)(?<!Dr\.)(?<!St\.)\s{1,5}(?=[A-Z$\\(])")
REQUEST = re.compile(r"\b(?:find|compute|what|determine|evaluate|calculate|how|which)\b", re.IGNORECASE)
# A unit as a word or a short form: how many miles, in cm^2, in $\text{m/s}$. A letter alone, as in "length in m",
# must end its phrase, because it may also be a name: "in m days". "In how many days" is no phrase with "in".
ASKED_UNIT = re.compile(
    r"\b(?P<ask>how many|in(?!\s+how\b))\s\$?(?:\\(?:text|mathrm)\s?\{[\s~]?)?(?P<power>(?:square|sq|cubic) )?"
    r"(?P<word>[A-Za-z]{2,}|[A-Za-z](?=\s?\}?\s?[/^])|[mgs](?=\s?(?:[.,;:?)]|\Z)))"
    r"\}?(?:\s?\^\s?\{?\s?(?P<index>-?[1-9])\s?\}?|\s(?P<after>squared|cubed)\b)?"
    r"(?:(?:\s?/\s?|\sper\s)(?:\\(?:text|mathrm)\s?\{\s?)?(?P<below>[A-Za-z]+))?(?![A-Za-z'’])",
    re.IGNORECASE,
)
# Short forms with a capital letter at the beginning. Others are names, as in "in Ms. Lee's class" and "points in S".
CAPITALS = frozenset("J K N W V L Hz Pa MHz GHz MPa GPa MeV GeV Myr Gyr Mpc AU Rs USD EUR".split())
ASKS_FOR = r"\b(?:find|compute|what|determine|evaluate|calculate|solve\sfor)\s(?:is\s)?(?:the\s)?"
# Quantities that problems ask for by a word.
MEASURES = (
    "area|volume|perimeter|circumference|length|width|height|radius|diameter|distance|speed|probability|sum|product|"
    "total|cost|price|profit|average|mean|median|slope|remainder"
)
ASKED_MEASURE = re.compile(rf"{ASKS_FOR}(?:\w+\s){{0,2}}?(?P<measure>{MEASURES})\b", re.IGNORECASE)
# A formula that is asked for: "find $x+y$", "what is the value of $f(2)$". The first of several is left out.
ASKED_FORMULA = re.compile(
    rf"{ASKS_FOR}(?:(?:(?:exact\s|numerical\s)?(?:values?|measure|length)\sof|(?:\w+\s)?(?:{MEASURES}))\s)?"
    r"(?:side\s|segment\s)?(?P<angle>angle\s)?"
    r"(?:(?:\$|\\\()(?P<formula>[^$]{1,80}?)(?:\$|\\\))|"
    r"(?P<plain>[A-Za-z](?:\(\w\)|(?:\s?[+-]\s?[A-Za-z])+)(?![\w^(])|(?<=angle\s)[A-Z]{1,3}\b))"
    r"(?!\s?(?:,\s?\$|and\s|or\s|,\sand\s))",
    re.IGNORECASE,
)
COUNTS = re.compile(r"how many|number of|\broots?\b|\bsolutions?\b|\bzeros\b", re.IGNORECASE)
ASKED_MONEY = re.compile(r"\bin\s\\\$(?!\s?[\d\\.])", re.IGNORECASE)
# The last part of a quotient of units, whose power is not compared: `` second^-1``, `` / second^2``.
BELOW = re.compile(r" (?:/ (?P<word>[^ /^]+)\^[1-9]|(?P<inverse>[^ /^]+)\^-[1-9])\Z")
CURRENCIES = frozenset({"dollar", "euro", "sterling", "yen", "rupee", "yuan", "cent"})
# Requests: what a problem says if it asks for a percentage, or for an answer in a form.
PERCENT = re.compile(r"percent|per cent|%|百分", re.IGNORECASE)
PERCENTAGES = re.compile(
    r"what\s(?:\w+\s){0,3}percent|how many percent|percentage|"
    r"\b(?:find|compute|determine|calculate|give|enter)\s(?:the\s)?percent\b|"
    r"percent (?:of|increase|decrease|change|profit|loss)[^.?]{0,80}\?|"
    r"(?:as|in|into|to) (?:a |the nearest (?:\w+ )?)?percent|百分之几|百分比",
    re.IGNORECASE,
)
FORM = re.compile(
    r"\b(?:fraction|decimal|lowest terms|simplest form|mixed number|scientific notation|convert)\b", re.IGNORECASE
)
SQUARE_FORM = r"\bin the form\b|\bvertex form|\bcomplet\w+ the square"
LINE_FORM = r"\b(?:slope-?\s?intercept|standard|general) form"
# A power of a sum.
SQUARES = re.compile(SQUARE_FORM, re.IGNORECASE)
# A product or a square of sums.
FACTORS = re.compile(rf"\bfactor(?:i[sz]e|ed|ing)?\b|{SQUARE_FORM}", re.IGNORECASE)
# A sum without products of sums in it.
TERMS = re.compile(rf"\bsimplif|\bexpand|\bcombine like|\bmultiply out|{LINE_FORM}", re.IGNORECASE)
# An equation that is solved for a name.
SOLVED = re.compile(
    rf"{FACTORS.pattern}|{LINE_FORM}|\bsolve\s[^.?:\n]{{0,120}}?\bfor\s\$?\\?[a-z]\b(?!\s[a-z]{{2}})|"
    r"(?<![a-z])[a-z]\$?\s(?:in terms|as a function) of\b|"
    r"\bmake\s\$?\\?[a-z]\$?\sthe subject\b|\bisolate\s\$?\\?[a-z]\b",
    re.IGNORECASE,
)
# Roots without square factors, none of them below a fraction bar.
SIMPLE_ROOTS = re.compile(r"\brationali[sz]|\bsimpl\w+ (?:\w+ )?(?:radical|form)|\bsimplif", re.IGNORECASE)
WORD = re.compile(r"[A-Za-z]+(?:-[A-Za-z]+)*|[\u4e00-\u9fff]")
# The words behind those that count: how many white cats, 5 dogs, in square feet.
COUNTED = re.compile(
    r"(?:how many|how much|number of|total of|amount of|in|of|are|\d)\s"
    r"((?:(?!(?:and|or|that|who|which|is|are|has|have|does|did|do|can|will|in|on|at|for|if|to|with|than|as|how|what|when)\s)"
    r"[A-Za-z-]{1,20}[ ,.?]{1,2}){1,3})",
    re.IGNORECASE,
)
# A noun with up to three words before it: how many real values, the number of perfect squares.
COUNTED_NOUN = re.compile(
    r"(?:how many|number of)\s"
    r"(?:(?!(?:and|or|of|in|on|with|than|are|is|have|has|do|does|did|can|will|the)\s)[a-z-]{1,20}\s){0,3}?"
    rf"(?P<noun>{'|'.join(sorted(COUNTED_NOUNS))})(?![a-z-])",
    re.IGNORECASE,
)
HOW_MANY_MORE = re.compile(rf"how (?:many|much) ({'|'.join(sorted(COMPARED))})\b", re.IGNORECASE)
# The letter of an option before its text: (A), \textbf{(A)}, A), and at the beginning of a line A. or A:.
OPTION_MARK = re.compile(
    r"(?:\\(?:text|math)?(?:bf|rm|sf|it)?\s?\{\s?)?(?:\((?P<inside>[A-H])\)|(?<![A-Za-z0-9\\({_])(?P<before>[A-H])\)|"
    r"^[ \t]{0,4}(?P<line>[A-H])[.:](?=\s))[.:]?(?:\s|\\ |~|\\q?quad(?![a-z])|\\indent(?![a-z]))*\}?",
    re.MULTILINE,
)
# The letters of at least three options.
OPTION_ROW = re.compile("ABC(?:D(?:E(?:F(?:GH?)?)?)?)?")
# What separates the letter of an option from its text: spaces and the end of its font.
OPTION_START = re.compile(r"\A(?:\\\s|[\s~$}]|\*\*)*")
# The space between two options.
OPTION_GAP = re.compile(r"\\q?quad(?![a-z])|\\indent(?![a-z])|\n")
MAX_OPTION = 120
TUPLE_OF_NAMES = re.compile(r"\((?:\\?[A-Za-z]+(?:_\w)?,)+\\?[A-Za-z]+(?:_\w)?\)")
# Units of time in the singular, which after "in" name a date: in hour three.
TIMES = frozenset("second minute hour day week month year decade century".split())
# Units of which one counts several things.
SEVERAL = frozenset({"pair", "triple", "week", "decade", "century"})
NAME = re.compile(r"\\[A-Za-z]+|[A-Za-z]")


@dataclass(frozen=True)
class ProblemText:
    """The text of a problem, "" if it is not known. Every property is computed when it is first used."""

    text: str = ""

    @cached_property
    def cleaned(self) -> str:
        """The problem with one spelling for each symbol."""
        return clean(self.text)

    def asks(self, request: re.Pattern) -> bool:
        """Return True if the problem has the words of a request, such as ``FACTORS``."""
        return request.search(self.text) is not None

    @cached_property
    def words(self) -> frozenset[str]:
        """The nouns that the problem counts, in the singular, and its runs of up to three Chinese characters.

        Those of ``COUNTED_NOUNS`` are in the plural, and only if the problem asks how many there are. With them stands
        "more", or a word like it, if the problem asks "how many more".
        """
        found = {singular(word) for run in COUNTED.findall(self.text) for word in WORD.findall(run) if word.islower()}
        found = (found - COMPARED) | {word.lower() for word in HOW_MANY_MORE.findall(self.text)}
        found |= {noun.lower() for noun in COUNTED_NOUN.findall(self.text)}
        chinese = re.findall(r"[\u4e00-\u9fff]+", self.text)
        found |= {run[i : i + n] for run in chinese for n in (1, 2, 3) for i in range(len(run) - n + 1)}
        return frozenset(found)

    @cached_property
    def snippets(self) -> tuple[str, ...]:
        """The formulas of the problem and the sides of its equations as clean text, each once."""
        found: dict[str, None] = {}
        spans, rest = _divided(self.text)
        plain = clean(rest)
        spans = [clean(span) for span in spans] + [run.strip(" .,-=") for run in RUN.findall(plain)]
        for span in spans:
            for piece in (span, *SEPARATOR.split(span)):
                for side in (piece, *SIDE.split(piece)):
                    side = side.strip(" .,;:?!") if not side.strip().endswith("!") else side.strip(" .,;:?")
                    if len(side) > 1 and len(side) <= MAX_FORMULA and len(found) < 4 * MAX_FORMULAS:
                        found[side] = None
        return tuple(found)

    @cached_property
    def keys(self) -> frozenset[str]:
        """The formulas of the problem without white space, to be compared with a name as it is spelt."""
        return frozenset(map(compact, self.snippets))

    @cached_property
    def names(self) -> frozenset[str]:
        """The letters and commands in the formulas of the problem."""
        spans, rest = _divided(self.text)
        return frozenset(name for span in (*spans, *RUN.findall(rest)) for name in NAME.findall(clean(span)))

    @cached_property
    def formulas(self) -> dict[str, Node]:
        """The formulas of the problem that can be read, by their keys."""
        found: dict[str, Node] = {}
        for snippet in self.snippets:
            if len(found) >= MAX_FORMULAS:
                break
            try:
                node = parse_formula(snippet)
            except (Refused, RecursionError):
                continue
            if node.args and size(node) <= MAX_NODES and parse_number(snippet) is None:
                found[FormulaKeys(node).key] = node
        return found

    @cached_property
    def relations(self) -> list[tuple[Node, Node]]:
        """The two sides of each equation and inequality of the problem that can be read."""
        found = []
        for snippet in self.snippets:
            sides = [side.strip() for part in split(snippet, EQUALS) for side in split(part, RELATION)]
            if len(sides) != 2 or len(found) >= MAX_FORMULAS:
                continue
            try:
                left, right = map(parse_formula, sides)
            except (Refused, RecursionError):
                continue
            if size(left) + size(right) <= MAX_NODES:
                found.append((left, right))
        return found

    @cached_property
    def reduced_keys(self) -> frozenset[str]:
        """The keys of these formulas, reduced."""
        return frozenset(FormulaKeys(node, reduced=True).key for node in self.formulas.values())

    @cached_property
    def large_formulas(self) -> list[FormulaKeys]:
        """The formulas of the problem that have many parts."""
        forms = map(FormulaKeys, self.formulas.values())
        return [
            each for each in forms if len(each.parts) >= MIN_OPERATIONS or (each.parts and each.leaves >= MIN_LEAVES)
        ]

    @cached_property
    def numbers(self) -> frozenset[Fraction]:
        """The fractions and decimals of the problem; integers and percentages, too, if it asks for another form."""
        found = [parse_number(text) for text in NUMBER.findall(self.cleaned)]
        values = {number.value for number in found if number is not None}
        if self.asks(FORM):
            integers = [parse_number(text) for text in INTEGERS.findall(self.cleaned)]
            percentages = [parse_number(text) for text in PERCENTAGE.findall(self.cleaned)]
            values |= {number.value for number in integers if number is not None}
            values |= {number.hundredth.value for number in percentages if number is not None}
        return frozenset(values)

    @cached_property
    def question(self) -> str:
        """The problem after its last question word, without white space; the whole problem without such a word."""
        return compact(ASKS.split(self.cleaned)[-1])

    @cached_property
    def asked(self) -> frozenset[str]:
        """The formulas with letters, without white space, whose value the problem asks for; empty if it says none."""
        found = set()
        for match in ASKED_FORMULA.finditer(self.text):
            formula = compact(clean(match["formula"] or match["plain"])).rstrip("=?.")
            if NAME.search(formula) and not SIDE.search(formula):
                found.add(rf"\angle{formula}" if match["angle"] else formula)
        return frozenset(found)

    @cached_property
    def asked_measures(self) -> frozenset[str]:
        """The quantities that the problem asks for by a word, such as ``area``, in small letters."""
        return frozenset(match["measure"].lower() for match in ASKED_MEASURE.finditer(self.text))

    @cached_property
    def request(self) -> str:
        """The last question, or the last sentence with a word such as "find", and what follows it.

        A unit before it belongs to the story of the problem. Without a question this is the whole problem.
        """
        sentences = SENTENCE_END.split(self.text)
        questions = [place for place, sentence in enumerate(sentences) if "?" in sentence]
        questions = questions or [place for place, sentence in enumerate(sentences) if REQUEST.search(sentence)]
        return " ".join(sentences[questions[-1] :] if questions else sentences)

    @cached_property
    def units(self) -> frozenset[str]:
        """The units that the problem asks for: how many square feet, in dollars, in m/s."""
        request = self.request
        found = {"dollar"} if ASKED_MONEY.search(request) else set()
        for match in ASKED_UNIT.finditer(request):
            word = match["word"]
            name = _unit_name(word)
            is_name = word[0].isupper() and name != singular(word.lower()) and word not in CAPITALS
            is_date = match["ask"].lower() == "in" and word.lower() in TIMES  # in week three
            if name not in UNITS - COUNTED_UNITS or is_name or is_date:
                continue
            power = POWERS.get((match["power"] or "").strip().lower(), "")
            name += power or POWERS_AFTER.get((match["after"] or "").lower(), "")
            name += f"^{match['index']}" if match["index"] not in (None, "1") else ""
            # The answer to "how many hours per week" is a number of hours.
            if match["below"] and match["ask"].lower() == "in":
                name += f" / {_unit_name(match['below'])}"
            found.add(name)
        return frozenset(found)

    def asks_for_other_unit(self, unit: str) -> bool:
        """Return True if the problem asks for units, and ``unit``, as ``split_unit`` spells it, is none of them."""
        spelt = BELOW.sub(lambda match: f" / {match['word'] or match['inverse']}", unit)
        measure = spelt.split(" ")[0]
        # An amount of money has its sign before the number, and the rest of a price per hour is often left out.
        accepted = {own.split(" ")[0] if measure in CURRENCIES else own for own in self.units}
        return bool(self.units) and spelt not in accepted and measure not in accepted

    @cached_property
    def options(self) -> str:
        """The problem without groups and white space, in which the text of an option follows its letter."""
        return compact(GROUP.sub("", self.cleaned))

    @cached_property
    def option_texts(self) -> dict[str, str]:
        """The letters of the options, from A without a gap, and their texts; empty without three options.

        The text of an option is on one line.
        """
        marks = list(OPTION_MARK.finditer(self.text))
        letters = "".join(match["inside"] or match["before"] or match["line"] for match in marks)
        # The last row of letters in their order, where the problem has several.
        for row in reversed(list(OPTION_ROW.finditer(letters))):
            places = marks[row.start() : row.end()]
            ends = [*(match.start() for match in places[1:]), len(self.text)]
            texts = [self.text[match.end() : end] for match, end in zip(places, ends, strict=True)]
            texts = [OPTION_GAP.split(OPTION_START.sub("", text))[0].rstrip(" \t~$,;\\") for text in texts]
            # The brace that closes the font of an option, as in ``\mathrm{(A) 5}``.
            texts = [text[:-1] if text.endswith("}") and text.count("{") < text.count("}") else text for text in texts]
            if all(0 < len(text) <= MAX_OPTION for text in texts):
                return dict(zip(row[0], map(clean, texts), strict=True))
        return {}

    def has_option(self, letter: str, text: str = "") -> bool:
        """Return True if the problem has an option with this letter.

        Args:
            letter: The letter of the option, as the problem writes it.
            text: The text of the option, compared without white space; "" to compare the letter alone.
        """
        rest = compact(GROUP.sub("", text))
        signs = (")", ").", "):", ".", ":") if text else (")",)
        return any(f"{letter}{sign}{rest}" in self.options for sign in signs)

    @cached_property
    def asks_for_tuple(self) -> bool:
        """True if the problem has a tuple of names, such as ``(x, y)``."""
        return any(TUPLE_OF_NAMES.fullmatch(key) for key in self.keys)

    def lacks_unit(self, unit: str) -> bool:
        """Return True for a unit of which one counts several things, such as a pair, and which the problem lacks."""
        return bool(self.text) and unit in SEVERAL and unit not in self.text.lower()

    def has_in_other_order(self, names: str) -> bool:
        """Return True if the problem has a tuple of the same names in another order only."""
        letters = sorted(names[1:-1].split(","))
        tuples = [key for key in self.keys if key[0] == "(" and key[-1] == ")"]
        return names not in tuples and any(sorted(key[1:-1].split(",")) == letters for key in tuples)

    def has_number(self, value: Fraction) -> bool:
        """Return True if a fraction or a decimal of the problem has this value, so that only its form is asked for."""
        return value in self.numbers or -value in self.numbers

    def is_repeated_in(self, answer: Node, label: Node) -> bool:
        """Return True if an answer only repeats a formula of the problem.

        Args:
            answer: The formula of the answer. It repeats the problem if it is a formula of the problem, or contains a
                large one.
            label: The formula of the label. What the label has as well does not count as repeated.
        """
        if not self.text:
            return False
        forms = FormulaKeys(answer)
        own = FormulaKeys(label)
        if forms.key == own.key:
            return False
        reduced = FormulaKeys(answer, reduced=True).key
        is_reduced = reduced in self.reduced_keys and reduced != FormulaKeys(label, reduced=True).key
        if forms.key in self.formulas or is_reduced:
            return True
        return any(forms.contains(formula) and not own.contains(formula) for formula in self.large_formulas)


NO_PROBLEM = ProblemText()


def _unit_name(word: str) -> str:
    """Return a word or a short form of a unit in one spelling."""
    spellings = SPELLINGS | MARKED_SPELLINGS
    single = singular(word.lower())
    return spellings.get(word.lower(), spellings.get(single, single))


def _divided(text: str) -> tuple[list[str], str]:
    """Return the formulas between delimiters, and the text without them."""
    spans = []
    plain = []
    start = 0
    opened = ""
    for mark in DELIMITER.finditer(text):
        if text[mark.start() - 1 : mark.start()] == "\\" and mark[0][0] == "$":
            continue  # an amount of money
        if opened and (mark[0] == OPENING.get(opened, "") or (opened.startswith(r"\begin") and r"\end" in mark[0])):
            spans.append(text[start : mark.start()])
            opened = ""
        elif opened or not (mark[0] in OPENING or r"\begin" in mark[0]):
            continue
        else:
            plain.append(text[start : mark.start()])
            opened = mark[0]
        start = mark.end()
    plain.append(text[start:])
    return spans, " ; ".join(plain)


@lru_cache(maxsize=256)
def read_problem(prompt: str) -> ProblemText:
    """Return the problem in a prompt: its last turn of the user, without the template around it."""
    turn = TURN_END.split(USER_TURN.split(prompt)[-1])[0]
    return ProblemText(_in_plain_template(turn)[-MAX_PROBLEM:].strip())


def _in_plain_template(text: str) -> str:
    """Return the last problem of a prompt that ends as a template in plain text does; otherwise the whole text.

    Such a prompt ends with "Answer:" or a word like it. Before it stands the last problem, which begins with the first
    "Question:" after the answer to an example before it. Elsewhere such words are a part of the problem.
    """
    roles = list(ROLE.finditer(text))
    if not roles or not roles[-1]["answers"] or not PRIMER.match(text, roles[-1].end()):
        return text
    start = 0
    may_begin = True
    for role in roles[:-1]:
        if role["asks"] and may_begin:
            start = role.end()
        may_begin = role["answers"] is not None
    return text[start : roles[-1].start()]
