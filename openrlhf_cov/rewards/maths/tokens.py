r"""The signs of a formula: a whitelist of commands, names and numbers. Anything else is refused."""

import re

FUNCTIONS = frozenset(
    "sin cos tan cot sec csc arcsin arccos arctan acot asin acos atan asec acsc arcsec arccsc arccot sinh cosh tanh "
    "sech csch coth asinh acosh atanh acoth arcsinh arccosh arctanh arccoth arsinh arcosh artanh arcoth tg ctg arctg "
    "arcctg ln log exp".split()
)
LIST_FUNCTIONS = frozenset({"gcd", "lcm", "min", "max"})
INVERSES = {name: "a" + name for name in "sin cos tan cot sec csc sinh cosh tanh coth".split()}
ALIASES = {
    **{"arc" + name: inverse for name, inverse in INVERSES.items()},
    **{"ar" + name: inverse for name, inverse in INVERSES.items() if name.endswith("h")},
    "tg": "tan", "ctg": "cot", "arctg": "atan", "arcctg": "acot", "ln": "log",
}  # fmt: skip
ACCENTS = frozenset("overline hat vec tilde dot ddot".split())
BIG_OPERATORS = frozenset("sum prod int lim".split())
CONSTANTS = frozenset({"pi", "e", "i"})
GREEK = frozenset(
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau upsilon phi chi psi omega "
    "Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega ell hbar mho".split()
)
WORDS = sorted(FUNCTIONS | LIST_FUNCTIONS | {"sqrt", "pi"}, key=len, reverse=True)
TOKEN = re.compile(
    r"(?P<number>(?:\d{1,3}(?:,\d{3})+(?![\d,])|\d+)?\.?\d+|\d+\.?)|(?P<command>\\[A-Za-z]+|\\[|])|"
    rf"(?P<word>{'|'.join(WORDS)})(?![a-z])|(?P<letter>[A-Za-z])|(?P<sign>\*\*|[-+*/^_!'(){{}}\[\]|,=])|(?P<space>\s+)"
)
NAMED = re.compile(r"\\text\{\s*([A-Za-z][A-Za-z0-9 ]{0,30}?)\s*\}")


class Refused(ValueError):
    """The text is not a formula that this parser knows."""


def tokenize(text: str) -> list[str]:
    """The signs of a clean text: numbers, letters, ``\\\\commands``, ``name:words``. Refused for any other sign."""
    tokens, position = [], 0
    text = text.replace(r"\text ", r"\text")
    while position < len(text):
        named = NAMED.match(text, position)
        match = named or TOKEN.match(text, position)
        if match is None:
            raise Refused(f"unexpected {text[position]!r}")
        if named:
            word = named[1]
            known = word in FUNCTIONS | LIST_FUNCTIONS | CONSTANTS or word == "sqrt"
            tokens.append("\\" + word if known else word if len(word) == 1 else f"name:{word}")
        elif match.lastgroup == "word":
            tokens.append("\\" + match[0])
        elif match.lastgroup != "space":
            tokens.append("^" if match[0] == "**" else match[0])
        position = match.end()
    return tokens


def is_number(token: str | None) -> bool:
    """Whether a sign is a number."""
    return token is not None and (token[0].isdigit() or token[0] == ".")
