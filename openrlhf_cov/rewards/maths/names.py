"""Names of values, derivatives among them, and the conditions under which a formula holds."""

import re
from dataclasses import dataclass

from openrlhf_cov.rewards.maths.normalization import compact
from openrlhf_cov.rewards.maths.shapes import VARIABLE, tuple_items
from openrlhf_cov.rewards.maths.values import WHOLE_NAMES

ARGUMENT = r"\s?(?:\(\s?-?(?:[^()+*/^-]|\([^()]{1,20}\)|\^\{-1\}){1,30}\)|\[[A-Z]\])"
# A letter with an index or an argument, a segment, an angle, a length, an area.
NAME = re.compile(
    rf"(?:\\Delta\s)?(?:{VARIABLE}|\\(?:hat|vec|mathbb|text)\s?\{{?\s?[A-Za-z]\s?\}}?|\\Pr\s?)"
    rf"(?:\^\s?\*)?(?:{ARGUMENT})?'*|[A-Za-z]\s?\^\s?\{{-1\}}{ARGUMENT}|"
    r"(?:[A-Z]|\\text\s?\{\s?[A-Z]\s?\})\s?\^\s?\{-1\}|"
    r"\\overline\s?(?:\{[^{}]{1,20}\}|\w)|[A-Z]{2,4}|\|[A-Z]\||m?\s?\\angle\s?\{?\s?[A-Z]{1,3}\s?\}?|\\triangle\s?[A-Z]{3}|"
    r"\|\s?(?:[A-Z]{2,3}|\\vec\s?\{[A-Z]{2}\})\s?\||\\text\s?\{[A-Z]{2,4}\}|\[[A-Z]{3,6}\]"
)
PLAIN_NAME = rf"(?:{VARIABLE}|[A-Z]{{2,3}})"
# A quotient, a power or a function of names.
COMPOSED_NAME = re.compile(
    rf"\\frac\s?\{{\s?{PLAIN_NAME}\s?\}}\s?\{{\s?{PLAIN_NAME}\s?\}}|{PLAIN_NAME}\s?[/:]\s?{PLAIN_NAME}|"
    rf"{PLAIN_NAME}\s?\^\s?\{{?[23]\}}?|\\(?:sin|cos|tan)\s?(?:\\angle\s?)?\(?{PLAIN_NAME}\)?|"
    rf"\({PLAIN_NAME}\\circ\s?{PLAIN_NAME}\){ARGUMENT}"
)
QUOTIENT_OF_NAMES = re.compile(
    rf"\\frac\s?\{{\s?({PLAIN_NAME})\s?\}}\s?\{{\s?({PLAIN_NAME})\s?\}}|({PLAIN_NAME})\s?/\s?({PLAIN_NAME})"
)
FUNCTION_NAME = re.compile(r"([fghFGHy])\([a-z](?:,[a-z])*\)")
NAME_SIGN = re.compile(r"\\[A-Za-z]+|[A-Za-z]")

# The condition that an answer may have: a name is a whole or a real number, as in "for any integer n".
DOMAIN = r"\\mathbb\s?\{?\s?(?P<set>[ZNR])\s?\}?(?:\s?[\^_]\s?\{?(?P<sign>[+*])\}?)?"
MEMBERSHIP = re.compile(rf",?\s?\(?(?P<name>{VARIABLE})\s?\\in\s?{DOMAIN}\)?\Z")
FILL = r"[\s{}(),]{0,3}(?:\\text\s?\{)?\s?"
QUANTIFIED = re.compile(
    rf"(?<![A-Za-z(])(?:where|for|with|\(){FILL}(?P<all>(?:all|any|some|every|each)\s)?(?:positive |real )?"
    rf"(?P<noun>integers? |constants? |numbers? )?{FILL}(?P<name>{VARIABLE}){FILL}"
    rf"(?P<domain>\\in\s?{DOMAIN}|"
    r"(?:is )?(?:an?|any) (?:positive |real |arbitrary )?(?P<kind>integer|constant|number))?"
    r"[\s{}()]{0,3}\Z"
)
OPENED_TEXT = re.compile(r"\s?\\text\s?\{\s?[,(]?\s?\Z")
MAX_CONDITION = 80


def name_key(text: str) -> str | None:
    """Return the name that a text is, in one spelling; None if it is a formula or anything else."""
    text = text.strip()
    if not NAME.fullmatch(text):
        return None
    key = re.sub(r"\\(?:overline|text|vec)(?![a-z])|[{}\s|]|m(?=\\angle)", "", text)
    return "".join(sorted(key)) if re.fullmatch(r"[A-Z]{2}", key) else key  # AB is BA


def quotient_of_names(text: str) -> str:
    r"""Return ``AB/CD`` for a quotient of names such as ``\frac{AB}{CD}``, "" for anything else."""
    found = QUOTIENT_OF_NAMES.fullmatch(text)
    names = [name_key(name) for name in found.groups() if name] if found else []
    return "/".join(map(str, names)) if names and all(names) else ""


def tuple_name(text: str) -> str:
    """Return ``(x,y)`` for a tuple of names, "" for anything else."""
    found = tuple_items(text)
    names = [name_key(item) for item in found[1]] if found and found[0] == "()" else [None]
    return f"({','.join(map(str, names))})" if all(names) else ""


def is_same_name(name: str, own: str) -> bool:
    """Return True for one name in two spellings.

    ``y`` and ``f(x)`` name the same function, and so do a letter and this letter with an argument.

    Args:
        name: The name that an answer gives.
        own: The name that its label has.
    """
    name = compact(name)
    own = compact(own)
    if name == own:
        return True
    functions = [FUNCTION_NAME.fullmatch(side) for side in (name, own)]
    letters = [found[1] if found else side for found, side in zip(functions, (name, own), strict=True)]
    return any(functions) and (letters[0] == letters[1] or "y" in letters)


def without_domain(text: str, label_text: str) -> str:
    """Return an answer without the condition that a name of its label is an integer or a real number.

    Args:
        text: The clean answer. It is returned as it is if it has no such condition.
        label_text: The clean label. The condition is removed only if its name occurs in the label.
    """
    found = _condition(text)
    return text if found is None or found[1] not in compact(label_text) else found[0]


@dataclass(frozen=True)
class Family:
    r"""One value for every integer, such as ``x = n\pi, n \in \mathbb{Z}``: a formula in the name ``index``."""

    name: str
    formula: str
    index: str
    domain: str

    def renamed(self, index: str) -> str:
        """Return the formula with ``index``, which may be a sum in brackets, in the place of its own."""
        return NAME_SIGN.sub(lambda sign: index if sign[0] == self.index else sign[0], self.formula)


def family(text: str) -> Family | None:
    r"""Return the family that a text describes, with its condition; None for another text."""
    found = _condition(text)
    if found is None or not found[1].startswith(WHOLE_NAMES) or found[2][:1] not in ("Z", "N"):
        return None
    name, equals, formula = found[0].rpartition("=")
    if (equals and name_key(name) is None) or found[1] not in NAME_SIGN.findall(formula):
        return None
    return Family(name_key(name) or "", formula.strip(), index=found[1], domain=found[2])


def _condition(text: str) -> tuple[str, str, str] | None:
    """Return the text before a condition, the name that it is about, and its numbers: Z, N, R or "", Z+ for positive.

    Only letters such as n and k may be whole: ``x^2, x \\in \\mathbb{Z}`` says less than ``x^2``.
    """
    found = QUANTIFIED.search(text, max(0, len(text) - MAX_CONDITION)) or MEMBERSHIP.search(text)
    if found is None:
        return None
    parts = found.groupdict()
    words = (parts.get("noun") or "") + (parts.get("kind") or "")
    numbers = found["set"] or ""
    if words and not numbers:
        numbers = "Z" if "integer" in words else "R"
    is_whole = numbers in ("Z", "N")
    if not (numbers or parts.get("all")) or (is_whole and not found["name"].startswith(WHOLE_NAMES)):
        return None
    numbers += "+" if numbers and (found["sign"] or "positive" in found[0]) else ""
    return OPENED_TEXT.sub("", text[: found.start()]).rstrip(" ,;("), compact(found["name"]), numbers


# Derivatives

INDEX = r"_(?:\{[\w ]{1,12}\}|\w)"
FUNCTION = r"(?:\\(?!d?dot|frac|partial)[a-z]+\s?|[A-Za-z])(?:_(?:\{[\w ]{1,12}\}|\w))?"
OF_LETTER = r"(?:\(\s?[a-z]\s?\))?"
TOP = (
    r"(?P<d>d|\\text\s?\{\s?d\s?\}|\\partial)\s?"
    r"(?:\^\s?(?:\{\s?(?P<order>\d)\s?\}|(?P<order1>\d)))?\s?"
)
BOTTOM = (
    rf"(?P<below>d|\\text\s?\{{\s?d\s?\}}|\\partial)\s?(?P<by>{FUNCTION})\s?"
    r"(?:\^\s?(?:\{\s?(?P<again>\d)\s?\}|(?P<again1>\d)))?"
)
QUOTIENT = re.compile(
    rf"\\frac\s?\{{\s?{TOP}(?P<name>{FUNCTION})?\s?{OF_LETTER}\s?\}}\s?\{{\s?{BOTTOM}\s?\}}(?:\s?\(?(?P<after>{FUNCTION}))?"
)
SLASH = re.compile(rf"(?<![A-Za-z\\])d(?P<name>{FUNCTION})\s?/\s?d(?P<by>[a-z])(?![A-Za-z])")
DOT = re.compile(
    r"\\(?P<dots>d?dot)(?![a-z])\s?(?:\{\s?(?P<braced>\\?[A-Za-z]+)\s?\}|(?P<bare>\\[a-z]+|[A-Za-z]))"
    r"(?P<index>_(?:\{[\w ]{1,12}\}|\w))?"
)
GREEK = r"\\(?:alpha|beta|theta|phi|omega|psi|rho|sigma|lambda|mu)\s?"
PRIME = re.compile(
    rf"(?P<name>(?:{GREEK}|[A-Za-z])(?:{INDEX})?)(?:(?P<primes>'{{1,4}})|\^\s?\{{\s?\((?P<order>\d)\)\s?\}})(?P<index>{INDEX})?"
    r"|\\[A-Za-z]+"
)
ORDERED = re.compile(r"[a-z]\s?\^\s?\{\s?\(\d\)")
OF_TIME = re.compile(rf"(?P<name>{GREEK}|[A-Za-z](?:{INDEX})?'{{0,4}}|(?<=D\}})\s?)\s?\(\s?[a-z]\s?\)|\\[A-Za-z]+")


def same_derivatives(a: str, b: str) -> tuple[str, str]:
    r"""Return both texts with derivatives in one notation, and functions beside them without arguments.

    Texts without derivatives stay as they are. The variable of differentiation counts where both texts give one:
    :math:`dy/dx` is not :math:`dy/dt`, but both are :math:`y'`.

    Args:
        a: A clean text.
        b: The text that it is compared with, clean as well.
    """
    if any(map(has_derivative, (a, b))):
        forms = [_named(text, by=True) for text in (a, b)]
        if any(" by " not in form for form in forms):
            forms = [_named(text, by=False) for text in (a, b)]
        return forms[0], forms[1]
    if all("=" in text for text in (a, b)) and any(match["name"] for match in PRIME.finditer(a + b)):
        a, b = (OF_TIME.sub(_without_argument, text) for text in (a, b))
    return a, b


def is_derivative(text: str) -> bool:
    """Return True for a text that is one derivative."""
    return bool(
        QUOTIENT.fullmatch(text) or SLASH.fullmatch(text) or DOT.fullmatch(text) or re.fullmatch(r"[a-z]'{1,4}", text)
    )


def has_derivative(text: str) -> bool:
    """Return True for a text with a derivative in it that is written as a quotient, with dots or with an order."""
    if ORDERED.search(text):
        return True
    if "d" not in text and r"\partial" not in text:
        return False
    quotients = QUOTIENT.finditer(text)
    return any(_of_quotient(m, by=True) != m[0] for m in quotients) or bool(SLASH.search(text) or DOT.search(text))


def _without_argument(match: re.Match) -> str:
    return match[0] if match["name"] is None else match["name"]


def _named(text: str, *, by: bool) -> str:
    text = QUOTIENT.sub(lambda found: _of_quotient(found, by=by), text)
    text = SLASH.sub(lambda found: _name(found["name"], 1, found["by"] if by else ""), text)
    text = DOT.sub(_of_dots, text)
    return OF_TIME.sub(_without_argument, PRIME.sub(_of_primes, text))


def _of_dots(match: re.Match) -> str:
    return _name((match["braced"] or match["bare"]) + (match["index"] or ""), match["dots"].count("d"))


def _of_primes(match: re.Match) -> str:
    if match["name"] is None:
        return match[0]
    return _name(match["name"] + (match["index"] or ""), int(match["order"] or len(match["primes"])))


def _of_quotient(match: re.Match, *, by: bool) -> str:
    orders = [int(match[name] or match[name + "1"] or 1) for name in ("order", "again")]
    name = match["name"] or match["after"]
    is_mixed = match["name"] and match["after"] is None and match["d"] != match["below"]
    if orders[0] != orders[1] or name is None or is_mixed:
        return match[0]
    partial = "P" if "partial" in match["d"] else ""
    rest = match["after"] or "" if match["name"] else ""
    return _name(name, orders[0], match["by"] if by else "", partial) + rest


def _name(name: str, order: int, by: str = "", partial: str = "") -> str:
    letters = re.sub(r"[^A-Za-z0-9]", "", name)
    after = re.sub(r"[^A-Za-z0-9]", "", by)
    return rf"\text{{{letters} {partial}{order}{' by ' + after if after else ''} D}} "
