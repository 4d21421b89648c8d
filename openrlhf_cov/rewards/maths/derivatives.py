r"""One notation for derivatives: ``y'``, ``\dot y``, ``\frac{dy}{dx}`` and ``dy/dx`` become one name."""

import re

NAME = r"(?:\\(?!d?dot|frac|partial)[a-z]+\s?|[A-Za-z])(?:_(?:\{[\w ]{1,12}\}|\w))?"
ARGUMENT = r"(?:\(\s?[a-z]\s?\))?"
TOP = (
    r"(?P<d>d|\\text\s?\{\s?d\s?\}|\\partial)\s?"
    r"(?:\^\s?(?:\{\s?(?P<order>\d)\s?\}|(?P<order1>\d)))?\s?"
)
BOTTOM = (
    rf"(?P<below>d|\\text\s?\{{\s?d\s?\}}|\\partial)\s?(?P<by>{NAME})\s?"
    r"(?:\^\s?(?:\{\s?(?P<again>\d)\s?\}|(?P<again1>\d)))?"
)
QUOTIENT = re.compile(
    rf"\\frac\s?\{{\s?{TOP}(?P<name>{NAME})?\s?{ARGUMENT}\s?\}}\s?\{{\s?{BOTTOM}\s?\}}(?:\s?\(?(?P<after>{NAME}))?"
)
SLASH = re.compile(rf"(?<![A-Za-z\\])d(?P<name>{NAME})\s?/\s?d(?P<by>[a-z])(?![A-Za-z])")
DOT = re.compile(
    r"\\(?P<dots>d?dot)(?![a-z])\s?(?:\{\s?(?P<braced>\\?[A-Za-z]+)\s?\}|(?P<bare>\\[a-z]+|[A-Za-z]))"
    r"(?P<index>_(?:\{[\w ]{1,12}\}|\w))?"
)
INDEX = r"_(?:\{[\w ]{1,12}\}|\w)"
GREEK = r"\\(?:alpha|beta|theta|phi|omega|psi|rho|sigma|lambda|mu)\s?"
PRIME = re.compile(
    rf"(?P<name>(?:{GREEK}|[A-Za-z])(?:{INDEX})?)(?:(?P<primes>'{{1,4}})|\^\s?\{{\s?\((?P<order>\d)\)\s?\}})(?P<index>{INDEX})?"
    r"|\\[A-Za-z]+"
)
ORDERED = re.compile(r"[a-z]\s?\^\s?\{\s?\(\d\)")
OF_TIME = re.compile(rf"(?P<name>{GREEK}|[A-Za-z](?:{INDEX})?'{{0,4}}|(?<=D\}})\s?)\s?\(\s?[a-z]\s?\)|\\[A-Za-z]+")


def same_derivatives(a: str, b: str) -> tuple[str, str]:
    r"""Return both clean texts with derivatives in one notation, and functions beside them without arguments.

    Texts without derivatives stay as they are. The name after which is differentiated counts where both texts give
    one: :math:`dy/dx` is not :math:`dy/dt`, but both are :math:`y'`.
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
    text = QUOTIENT.sub(lambda m: _of_quotient(m, by=by), text)
    text = SLASH.sub(lambda m: _name(m["name"], 1, m["by"] if by else ""), text)
    text = DOT.sub(lambda m: _name((m["braced"] or m["bare"]) + (m["index"] or ""), len(m["dots"]) - 2, ""), text)
    text = PRIME.sub(
        lambda m: (
            _name(m["name"] + (m["index"] or ""), int(m["order"] or len(m["primes"] or "")), "") if m["name"] else m[0]
        ),
        text,
    )
    return OF_TIME.sub(_without_argument, text)


def _of_quotient(match: re.Match, *, by: bool) -> str:
    orders = [int(match[name] or match[name + "1"] or 1) for name in ("order", "again")]
    name = match["name"] or match["after"]
    if (
        orders[0] != orders[1]
        or name is None
        or (match["name"] and match["after"] is None and match["d"] != match["below"])
    ):
        return match[0]
    partial = "P" if "partial" in match["d"] else ""
    rest = match["after"] or "" if match["name"] else ""
    return _name(name, orders[0], match["by"] if by else "", partial) + rest


def _name(name: str, order: int, by: str, partial: str = "") -> str:
    letters = re.sub(r"[^A-Za-z0-9]", "", name)
    after = re.sub(r"[^A-Za-z0-9]", "", by)
    return rf"\text{{{letters} {partial}{order}{' by ' + after if after else ''} D}} "
