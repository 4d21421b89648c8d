r"""Names of values, as they stand left of an equals sign: ``x``, ``f(2)``, ``AB^2``, ``\angle ABC``, ``P(A)``."""

import re

from openrlhf_cov.rewards.maths.normalization import compact

MAX_NAME = 120
"""Characters; longer texts name nothing."""

GREEK = frozenset(
    "alpha beta gamma delta epsilon theta lambda mu rho sigma tau phi psi omega eta xi zeta kappa nu Delta Omega Phi "
    "Gamma Sigma Theta Lambda Psi ell".split()
)
ACCENTS = frozenset("overline hat vec dot ddot tilde overrightarrow overleftrightarrow".split())
FIGURES = frozenset("angle triangle".split())
TRIGONOMETRY = frozenset("sin cos tan cot sec csc".split())
OPERATORS = frozenset(
    "lim sum prod int iint oint max min sup inf det dim deg Pr gcd lcm ker arg Re Im rank tr Var var".split()
)
MATH_WORDS = frozenset("sin cos tan cot sec csc log ln exp sqrt pi arcsin arccos arctan sinh cosh tanh frac".split())

BRACKETS = re.compile(r"[()\[\]{}]")
CLOSING = {"(": ")", "[": "]", "{": "}"}
TOKEN = re.compile(r"\\(?P<command>[A-Za-z]+)|(?P<group>\x00\d+\x00)|(?P<digits>\d+)|\S")
PLACE = re.compile(r"\x00(\d+)\x00")

# Each sign of a name as one letter: A capital, a small letter, D Delta, g other Greek, d digits, c accent,
# t \text, m \mathbb, n figure, f trigonometry, o operator, q \frac, * \cdot, x other command; P S B brackets.
SCRIPTS = r"(?:_[BAagdDx]|\^[BAd*x]|')*"
LETTER = rf"(?:[AagD]|c(?:B|[Aag])|m[BA]|tB){SCRIPTS}"
VALUE = rf"(?:D?{LETTER}(?:[PS]{SCRIPTS})?|PP{SCRIPTS})"
SEGMENT = rf"(?:A{{2,6}}{SCRIPTS}|S{SCRIPTS}|cB{SCRIPTS})"
FIGURE = rf"a?n(?:B|A{{1,6}}|[agd]){SCRIPTS}"
SIZE = r"\|(?:A|x|c[BA]|tB|_|\^|B|d|P)+\|"
TRIG = rf"f(?:\^[dB])?d?(?:{FIGURE}|{LETTER}|P)"
QUANTITY = rf"(?:{VALUE}|{SEGMENT}|{FIGURE}|{SIZE})"
NAME = re.compile(
    rf"(?:{QUANTITY}|{TRIG}|#{QUANTITY}|qBB|{QUANTITY}/{QUANTITY}|{QUANTITY}(?::{QUANTITY})+|o.+|tB(?![-+*/!^]).*|P)"
)
WORDS = re.compile(r"(?:[A-Z][a-z]+|[a-z]{4,20})(?: [A-Za-z]{1,20}){0,6}")
ONE_LETTER = re.compile(r"\\text\s?\{\s?([A-Za-z])\s?\}")
NEGATION = re.compile(
    r"(?<![A-Za-z])(?:not|isn't|isnt|(?:wrong|incorrect|false)(?:ly)?|never|except|guess(?:es|ed)?|option|choice|unless|"
    r"neither|nor|none|no[ -]?(?:body|one)|nothing|nowhere|hardly)(?![A-Za-z])",
    re.IGNORECASE,
)
PLAIN_ARGUMENTS = re.compile(r"(?<=[A-Za-z0-9}'])\((?:\\[a-z]+\s?|[a-z])(?:,(?:\\[a-z]+\s?|[a-z]))*\)")
COSMETIC = re.compile(r"[{}]|\\(?:overline|overrightarrow|text)(?![a-z])\s?")
POWER_WITH_NAME = re.compile(r"\A[ei]\s?\^|\^\s?\{[^{}a-z]*[a-z][^{}]*\}")


def name_of(text: str) -> str | None:
    r"""The name that the clean ``text`` is, in one spelling; None if it is a formula or anything else.

    Names are letters with indices and arguments, function values, segments, angles, sizes, quotients and ratios of
    those, powers of those, words, and what begins with an operator such as ``\lim``. ``2x`` and ``x+y`` are none.
    """
    text = ONE_LETTER.sub(r"\1", text.strip())
    if not text or len(text) > MAX_NAME or NEGATION.search(text) or POWER_WITH_NAME.search(text):
        return None
    if not (WORDS.fullmatch(text) and text not in MATH_WORDS) and not _is_name(text):
        return None
    key = compact(text)
    key = re.sub(r"\Am(?=\\angle)", "", key)
    if not key.startswith("("):
        key = PLAIN_ARGUMENTS.sub("", key)
    return COSMETIC.sub("", key).replace(" ", "").strip("|:") or None


def _is_name(text: str) -> bool:
    skeleton, groups = _without_groups(text)
    if skeleton is None:
        return False
    signs = "".join(_sign(match, groups) for match in TOKEN.finditer(skeleton))
    if not NAME.fullmatch(signs):
        return False
    top = [groups[int(match[1])] for match in PLACE.finditer(skeleton)]
    if signs == "qBB":
        return all(_is_name(inner[1:-1].strip()) for inner in top)
    if signs.startswith("PP"):
        return r"\circ" in top[0]
    if signs.startswith("P"):
        parts = top[0][1:-1].split(",")
        return len(parts) > 1 and all(re.fullmatch(r"\s*\\?[A-Za-z]+(?:_\w|_\{\w+\})?'*\s*", part) for part in parts)
    if signs.startswith("S"):
        return re.fullmatch(r"\[\s?[A-Z](?:\s?[A-Z]){2,6}\s?\]", top[0]) is not None
    return True


def _sign(match: re.Match, groups: list[str]) -> str:
    if match["group"]:
        return {"(": "P", "[": "S", "{": "B"}[groups[int(match["group"].strip("\x00"))][0]]
    if match["digits"]:
        return "d"
    name = match["command"]
    if name is None:
        char = match[0]
        return ("A" if char.isupper() else "a") if char.isascii() and char.isalpha() else char
    if name == "Delta":
        return "D"
    kinds = ((GREEK, "g"), (ACCENTS, "c"), (FIGURES, "n"), (TRIGONOMETRY, "f"), (OPERATORS, "o"))
    single = {"text": "t", "mathbb": "m", "mathcal": "m", "frac": "q", "cdot": "*", "times": "*"}
    return single.get(name) or next((sign for names, sign in kinds if name in names), "x")


def _without_groups(text: str) -> tuple[str | None, list[str]]:
    """``text`` with a mark for every outermost pair of brackets, and these; (None, []) if they do not match."""
    skeleton, groups, stack, start = [], [], [], 0
    for match in BRACKETS.finditer(text):
        if match[0] in CLOSING:
            if not stack:
                skeleton.append(text[start : match.start()])
                start = match.start()
            stack.append(CLOSING[match[0]])
        elif not stack or stack.pop() != match[0]:
            return None, []
        elif not stack:
            skeleton.append(f"\x00{len(groups)}\x00")
            groups.append(text[start : match.end()])
            start = match.end()
    return (None, []) if stack else ("".join(skeleton) + text[start:], groups)
