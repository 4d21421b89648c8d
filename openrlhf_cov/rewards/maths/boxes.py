r"""Decides from the text beside a box whether the box is an answer, and not a part of a formula.

The text beside the box is cut into tokens. The first token that is no space, font or bracket decides:

=============================================  ============  =======================  =======================
kind of the token, with examples               in a formula  in prose, joined to box  in prose, after a space
=============================================  ============  =======================  =======================
relation: ``x > \boxed{5}``                    part          part                     part
operator: ``3 \cdot \boxed{5}``,               part          part                     part
``\boxed{5}^2``
function: ``\sqrt{\boxed{5}}``                 part          part                     part
factor: ``\pi \boxed{5}``                      part          part                     part
number, letter: ``2\boxed{5}``,                part          part                     answer
``\boxed{5}x``
bar: ``|\boxed{5}|``                           part          part                     answer
sign: ``-\boxed{5}``, ``\boxed{5}!``           part          part beside a number     answer
closing bracket before, opening one after      part          answer                   answer
word, unit, ``=``, comma, end of formula       answer        answer                   answer
=============================================  ============  =======================  =======================

Signs that stand right beside the formula of a box are read as those of prose, too: ``-$\boxed{5}$`` is a part.

A word that scales the value (``\boxed{5}`` thousand, minus ``\boxed{5}``) makes the box a part as well, and a word
that denies it (not ``\boxed{5}``, ``\boxed{5}`` is wrong) makes it no answer. So does another number that is given as
the answer behind it (``\boxed{5}``. Sorry, 6).
"""

import re
from typing import NamedTuple

from openrlhf_cov.rewards.maths.normalization import CHARACTERS, SUBSCRIPTS, SUPERSCRIPTS, clean
from openrlhf_cov.rewards.maths.numerals import parse_number
from openrlhf_cov.rewards.maths.units import COUNTED_UNITS, SPELLINGS, UNITS, singular

# Characters beside a box that are read, and characters before it in which the start of its formula is looked for.
MAX_BESIDE = 80
MAX_FORMULA = 400

COMMANDS = {
    "relation": "le ge leq geq leqslant geqslant nleq ngeq lt gt ll gg mid nmid prec succ",
    "operator": "cdot times div bmod mod pm mp ne neq neg lnot not choose cup cap setminus",
    "function": "sqrt frac dfrac tfrac binom sin cos tan cot sec csc arcsin arccos arctan ln log exp max min "
    "sinh cosh tanh det gcd lcm sum prod int lfloor rfloor lceil rceil",
    "bar": "vert lvert rvert",
    "factor": "pi alpha beta gamma delta epsilon varepsilon theta lambda mu nu rho sigma tau phi varphi chi psi omega "
    "infty",
    "end": "quad qquad begin end",
    "font": "left right displaystyle boldsymbol bm",
}  # fmt: skip
KIND_OF_COMMAND = {name: kind for kind, names in COMMANDS.items() for name in names.split()}
TOKEN = re.compile(
    # A tag of HTML, a token that ends a turn, an arrow and the sign of a quotation are no relations.
    r"(?P<tag></?[A-Za-z]\w{0,20}(?:\s[a-z]{1,20}\s?=[^<>]{0,60})?\s?/?>|<[|｜!]|[-=]{1,3}>|(?<=[\n\"'])\s?>)"
    r"|(?P<unit>(?:th|st|nd|rd)(?![a-z])|\^\s?\{?\s?(?:\\circ|°|\\text|\\mathrm|th|st|nd|rd)|\\?%|\\\$|°)"
    r"|(?P<end>\\\\|\$\$?|\\[()\[\]])"
    r"|(?P<thin>\\[,;:! ])|(?P<space>[ \t\n~&])"
    r"|(?P<operator>\\not\s?=?(?![a-z])|\\[{}]|\^|_(?=[\d{]))"
    r"|(?P<font>\\(?:text\w{0,2}|math\w\w|mbox|emph)(?![a-zA-Z])\s?\{?)"
    r"|\\(?P<command>[A-Za-z]+)(?:(?<=sqrt)\s?\[[^\[\]]{1,20}\])?"
    r"|(?P<number>\d+|[.,](?=\d)|\{,\}(?=\d))|(?P<word>[A-Za-z]{2,})|(?P<letter>[A-Za-z])"
    r"|(?P<relation>[<>≤≥≠∣])|(?P<emphasis>\*\*|[_\"“”])|(?P<bar>\|)"
    r"|(?P<open>[({\[])|(?P<close>[)}\]])|(?P<sign>[-+*/!:])|(?P<mark>.)",
    re.DOTALL,
)
# Signs of Unicode as the tokens of LaTeX that they stand for. Dashes, quotation marks and marks of sentences are no
# signs of formulas, the letter mu behind a box is one of a unit, and a raised dot may begin an item of a list.
SIGNS = {
    **{ord(sign): text for sign, text in CHARACTERS.items() if text.startswith("\\") and sign not in "\fµμ"},
    **{digit: f"^{{{chr(new)}}}" for digit, new in SUPERSCRIPTS.items()},
    **{digit: f"_{{{chr(new)}}}" for digit, new in SUBSCRIPTS.items()},
    **str.maketrans(dict.fromkeys("·⋅∙•∗", "*") | dict.fromkeys("−﹣－", "-") | dict.fromkeys("÷∕⁄", "/")),
    **str.maketrans({"＋": "+", "％": "%", "．": ".", "¬": r"\neg ", "‰": r"\cdot "}),
}
NO_VALUE = frozenset({"space", "thin", "font", "emphasis"})
# What begins and ends the formula of a box.
DELIMITERS = frozenset({"$", "$$", r"\(", r"\)", r"\[", r"\]"})
ALWAYS_PART = frozenset({"relation", "operator", "function", "factor"})
OPERAND = frozenset({"number", "letter", "close"})
# What may stand beside the box of a label, whose author means the box.
FREE_IN_LABEL = frozenset({"relation", "factor", "letter", "word", "bar"})
# Letters that are units behind a box, and factors before one.
UNIT_LETTERS = frozenset("mgshlLJNVWK")
OPTION = re.compile(r"\([A-Ha-h]\)")

FORMULA_MARK = re.compile(r"\\\$|\$\$?|\\[\[\]()]")
PROSE = re.compile(r"\n|(?<![\\A-Za-z{])[A-Za-z]{3,}\s")

SCALE = (
    "(?:hundred|thousand|million|billion|trillion|dozen|lakh|crore|tenth|hundredth|thousandth|millionth)s?(?![a-z])"
)
SCALE_BEFORE = re.compile(
    rf"(?<![a-z])(?:{SCALE}|minus|negative|plus|twice|double|triple|(?:square|cube) (?:root )?of|half of|"
    r"(?<!no )(?:greater|less|more|fewer|larger|smaller) than)\Z|[负負]\Z"
)
# Chinese words for powers of ten; 千克 and the like are units, 百分点 is a percentage point.
CHINESE_SCALE = "[十万萬亿億兆]|百(?!分)|千(?![克米瓦卡赫帕焦伏])|分之"
SCALE_AFTER = re.compile(
    rf"(?:{SCALE}|squared|cubed|factorial|plus|minus|divided by|multiplied by)(?![a-z])|times \d|{CHINESE_SCALE}"
)
# ，但这是错的; 。更正：6; ，或者 6; 。正确答案是 6
CHINESE_DENIAL = (
    r"[,，。;；]? ?(?:但|但是|而)?(?:这|它|这个答案|该答案)?(?:是|显然是|显然)?"
    r"(?:错|不对|不正确|有误|不是(?:正确|答案|对的|解|[,，.。]|\Z))"
)
CHINESE_LEAD = "或者?|更正|抱歉|其实|应该?(?=[是为])|(?:正确)?答案(?=[是为])"
CHINESE_ANSWER = rf"(?:\A|[.,;:!?(，。；：！？（] ?)(?:{CHINESE_LEAD})[,:，：]? ?(?:应该?)?[是为]? ?"
DENIED_BEFORE = re.compile(
    r"(?:(?<![a-z])(?:not|never|isn't|no longer|cannot|rather than|instead of|other than|anything but|except|neither|"
    r"opposite of|negation of|differs? from|different from|unequal|hardly|far from|reject|refuse|deny|"
    # "Without doubt, 5", "The number he got wrong is 5" and "6 is wrong, 5" deny nothing.
    r"(?<!without )(?<!without a )(?<!without any )(?<!no )(?<!beyond )doubt|(?:whoever|who) says|"
    r"(?<!\d is )(?:unlikely|impossible|(?<!he got )(?<!they got )wrong|incorrect|false|untrue))|n't)"
    r"(?: (?:be|equal|to|the|answer|is|say|claim|give|accept|that|it|write|final|could|believe)){0,6}[:,]?\Z"
    r"|(?:不是|并非|不等于|不为|不会是|不可能是|不应是)(?:答案)? ?[:：]?\Z"
)
DENIED_AFTER = re.compile(
    r"(?:[-,.;–—]{0,2} ?(?:but |and )?(?:(?:which|that|this|it) ?)?)(?:"
    # is wrong, would be an incorrect answer, is not the answer
    r"(?:is|'s|was|seems|looks|(?:would|must|will|cannot|could|may|might|has to) be) "
    r"(?:clearly |obviously |surely |certainly |probably )?(?:an? |the )?"
    r"(?:wrong|incorrect|false|mistaken|untrue|unlikely|impossible|invalid|"
    r"not(?: (?:an? |the |my |our )?(?:\w+ )?(?:answer|correct|right|true|it|so|possible|valid|solution)|[.!,]|\Z))"
    r"|(?:differs|is different) from the (?:correct |right |true |final )?answer"
    r"|(?:cannot|can't) be (?:correct|right)|(?:must|should) be (?:rejected|discarded)"
    r"|(?:is|was) (?:my|our|the|a) (?:first |initial |original )?(?:guess|attempt|mistake|error)"
    r"|(?:is|was|does|would)n't"
    r"|(?:\(not|[-–—(:] ?(?:wrong|incorrect|false))|(?:\?|\.{2,6}) ?no(?:t|pe)?|no,? (?:wait|it is))(?![a-z])"
    rf"|{CHINESE_DENIAL}"
)
# A number behind the box that is given as the answer, or as a second one.
OTHER_ANSWER = re.compile(
    r"(?:(?:\A|[.,;:!?()] ?)(?:or|actually|correction|sorry|rather|(?:no|wait)(?=[,:]))[,:]? "
    r"(?:maybe |perhaps |it is |it's |i mean )?|\A\\(?:lor|vee) ?|"
    r"(?<![a-z])the (?:final |correct |right |real )?answer is (?:actually |really )?|"
    rf"{CHINESE_ANSWER})"
    r"(?P<number>-?\d+(?:[.,/]\d+)?)"
)
# What makes such a number a part of another formula or of a number in words: 5^2, 4 + 1, 10/2 = m/n, 1.2 thousand,
# 3 out of 4.
GOES_ON = re.compile(
    r" ?(?:[-+*/^×·÷:] ?(?:[\d(]|[a-z](?![a-z])|\\[a-z])|= ?[a-z](?![a-z])|"
    r"\\(?:times|cdot|div|pi|sqrt|[dt]?frac)(?![a-z])|"
    rf"{SCALE}|out of \d)"
)
# The unit behind a number, or behind a box.
UNIT_BEHIND = re.compile(r" ?(?:(?P<percent>\\?%|percent(?![a-z]))|(?P<word>[a-z]+))")
# Signs of LaTeX and of Markdown between the words of a sentence.
BETWEEN_WORDS = re.compile(r"\\(?:text\w*|mathrm|mbox)\s?\{|\\[\[\](),;:! ]|[\s$*{}~_]+")


class Token(NamedTuple):
    """A token of the text beside a box."""

    kind: str
    text: str


NOTHING = Token("end", "")


class Box(NamedTuple):
    """A box: where it starts and ends in its text, and what is in it."""

    start: int
    end: int
    content: str


def is_answer(text: str, box: Box, *, is_label: bool) -> bool:
    """Return True if a box is an answer as it stands, is not taken back, and is no part of a formula.

    Args:
        text: The text with the box.
        box: The box.
        is_label: True for a label, whose box may have a relation or a factor beside it.
    """
    before = _words(text[max(0, box.start - MAX_BESIDE) : box.start])
    after = _words(text[box.end : box.end + MAX_BESIDE])
    if DENIED_BEFORE.search(before) or DENIED_AFTER.match(after):
        return False
    if not is_label and _has_other_answer(after, box.content):
        return False
    if changes_before(text, box.start, is_label=is_label) or _changes_after(text, box, is_label=is_label):
        return False
    return is_label or not _changes_formula(text, box)


def _has_other_answer(after: str, content: str) -> bool:
    """Return True if the words behind a box give a number as the answer that is not the number in the box.

    The same answer in another form is none: a percentage, another unit (120 minutes, or 2 hours), a formula.
    """
    found = OTHER_ANSWER.search(after)
    if found is None or GOES_ON.match(after, found.end()):
        return False
    own_unit = _unit_behind(after, 0)
    other_unit = _unit_behind(after, found.end())
    if own_unit != other_unit and (other_unit == "%" or (own_unit and other_unit)):
        return False
    own = parse_number(clean(content))
    other = parse_number(found["number"])
    if own is None or other is None:
        return False
    if own_unit == "%" and other.value == own.value / 100:
        return False
    return abs(own.value - other.value) > (0 if other.exact else other.unit / 2)


def _unit_behind(after: str, place: int) -> str:
    """Return the unit that stands at a place behind a box: "%", a unit of measurement, or "" for none."""
    found = UNIT_BEHIND.match(after, place)
    if found is None or found["percent"]:
        return "%" if found else ""
    single = singular(found["word"])
    name = SPELLINGS.get(found["word"], SPELLINGS.get(single, single))
    return name if name in UNITS - COUNTED_UNITS else ""


def changes_before(text: str, start: int, *, is_label: bool = False) -> bool:
    """Return True if the text before a box makes it a part of a formula or of a number in words.

    Args:
        text: A response, or a label with its solution.
        start: Place in ``text`` at which the box begins.
        is_label: True for a written solution, beside whose box more signs may stand than in a response.
    """
    in_formula = _in_formula(text, start)
    before = text[max(0, start - MAX_BESIDE) : start]
    if not is_label and SCALE_BEFORE.search(_words(before)):
        return True
    token, beyond, joined, _ = _beside(tokenize("\n" + before), "open")
    if is_label and token.kind in FREE_IN_LABEL:
        return False
    if token.kind == "close":
        return in_formula and not OPTION.search(before[-10:])
    if token.text in (".", ",", ":"):  # 3.\boxed{5}, 3 : \boxed{5}
        return in_formula and beyond.kind == "number" and (joined or token.text == ":")
    if token.text == "-" and not in_formula:  # -\boxed{5}, x = - \boxed{5}, and no dash
        return beyond.text != "-" if joined else beyond.text == "="
    if token.kind == "sign":
        return in_formula or (beyond.kind in OPERAND and (joined or token.text != "*"))
    return _is_part(token, near=joined or in_formula)


def _changes_after(text: str, box: Box, *, is_label: bool) -> bool:
    """Return True if the text after the box makes it a part of a formula or of a number in words."""
    in_formula = _in_formula(text, box.start)
    after = text[box.end : box.end + MAX_BESIDE]
    if not is_label and SCALE_AFTER.match(_words(after).lstrip("-) ")):
        return True
    token, beyond, joined, in_text = _beside(tokenize(after)[::-1], "close")
    if is_label and token.kind in FREE_IN_LABEL:
        return False
    if token.text == ":":
        return in_formula and beyond.kind == "number"
    if token.kind == "sign":
        return in_formula or (token.text != "!" and joined and beyond.kind in OPERAND)
    if token.text in ("(", "{"):  # \boxed{5}(x+1), and no option such as (B)
        has_operand = beyond.kind in OPERAND | ALWAYS_PART and not OPTION.match(f"({beyond.text})")
        return has_operand and (joined or in_formula)
    if token.kind == "word":  # \boxed{5}xy, and no unit
        is_unit = token.text.lower() in SPELLINGS or token.text.lower() in UNITS
        return joined and not in_text and len(token.text) < 4 and not is_unit
    if token.kind == "letter":
        is_unit = token.text in UNIT_LETTERS and beyond.kind not in ("sign", "operator")
        return not in_text and (joined or in_formula) and not (is_unit and not (joined and in_formula))
    return _is_part(token, near=joined or in_formula)


def _changes_formula(text: str, box: Box) -> bool:
    """Return True if a sign beside the formula that a box is alone in makes this formula a part of another one.

    The sign stands right beside it, or is a relation before it, on the same line.
    """
    if not _in_formula(text, box.start):
        return False
    before = tokenize("\n" + text[max(0, box.start - MAX_BESIDE) : box.start])
    after = tokenize(text[box.end : box.end + MAX_BESIDE])[::-1]
    for tokens in (before, after):
        while tokens and tokens[-1].kind in NO_VALUE:
            tokens.pop()
        if not tokens or tokens.pop().text not in DELIMITERS:
            return False
        line_ends = [place for place, token in enumerate(tokens) if "\n" in token.text]
        del tokens[: line_ends[-1] + 1 if line_ends else 0]
    for tokens, bracket in ((before, "open"), (after, "close")):
        token, beyond, joined, _ = _beside(tokens, bracket)
        has_operand = beyond.kind in OPERAND or beyond.text in DELIMITERS
        if token.kind == "relation" and not joined and bracket == "open" and has_operand:  # and no quotation
            return True
        if token.kind == "function" and bracket == "open":  # also with a space, as in \sqrt $\boxed{5}$
            return True
        if not joined:
            continue
        if token.kind in ALWAYS_PART or token.kind == "number":
            return True
        # -$\boxed{5}$ has a sign of its own; other signs, and those behind a formula, join it to a value.
        alone = token.text == "-" and bracket == "open" and beyond.text != "-"
        joins = beyond.kind in OPERAND or (token.text == "/" and has_operand)
        if token.kind == "sign" and token.text in "-+*/" and (alone or joins):
            return True
    return False


def _is_part(token: Token, *, near: bool) -> bool:
    return token.kind in ALWAYS_PART or (token.kind in ("number", "letter", "bar") and near)


def _beside(tokens: list[Token], bracket: str) -> tuple[Token, Token, bool, bool]:
    """Return the token beside a box that decides, the one beyond it, and how the first one stands there.

    Args:
        tokens: The tokens of one side, which end at the box.
        bracket: The kind of brackets that are passed over.

    Returns:
        the two tokens, True if no white space is between the first one and the box, and True for a text in a font.
    """
    joined = True
    in_text = False
    while tokens and (tokens[-1].kind in NO_VALUE or tokens[-1].kind == bracket):
        passed = tokens.pop()
        joined &= passed.kind != "space"
        in_text |= passed.kind == "font"
    token = tokens.pop() if tokens else NOTHING
    if token.text == "}":
        token = _group(tokens)
    beyond = next((other for other in reversed(tokens) if other.kind not in NO_VALUE), NOTHING)
    return token, beyond, joined, in_text


def _group(tokens: list[Token]) -> Token:
    r"""Take the group that ends before a box off the tokens, and return it as one token.

    ``\frac{1}{2}`` and ``x^{2}`` are factors, ``\text{Area: }`` and ``\color{red}`` are none.
    """
    depth = 1
    while tokens and depth:
        depth += {"}": 1, "{": -1}.get(tokens.pop().text[-1], 0)
    while tokens and tokens[-1].kind in NO_VALUE:
        tokens.pop()
    head = tokens.pop() if tokens else NOTHING
    if head.text == "}":
        return _group(tokens)
    return Token("function" if head.kind in ("function", "operator") else "mark", "}")


def tokenize(text: str) -> list[Token]:
    """Return the tokens of the text beside a box."""
    tokens = []
    for match in TOKEN.finditer(text if text.isascii() else text.translate(SIGNS)):
        kind = str(match.lastgroup)
        if kind == "command":
            kind = KIND_OF_COMMAND.get(match["command"], "mark")
        tokens.append(Token(kind, match[0]))
    return tokens


def _words(text: str) -> str:
    """Return the words beside a box in small letters, without the signs of LaTeX and Markdown between them."""
    return BETWEEN_WORDS.sub(" ", text).strip().lower().replace("’", "'")


def _in_formula(text: str, start: int) -> bool:
    """Return True if a formula is open at ``start``.

    A formula has no empty line in it. A single dollar sign before words or on an earlier line is money.
    """
    paragraph = text[max(0, start - MAX_FORMULA) : start].rpartition("\n\n")[2]
    opening = None
    for mark in FORMULA_MARK.finditer(paragraph):
        if mark[0] in ("$", "$$"):
            opening = mark if opening is None else None
        elif mark[0] != r"\$":
            opening = mark if mark[0] in (r"\(", r"\[") else None
    if opening is None:
        return False
    return opening[0] != "$" or not PROSE.search(paragraph, opening.end())
