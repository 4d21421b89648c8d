"""Signs of clean texts: the negative, and both that a plus-minus sign stands for."""

import re

PLUS_MINUS = re.compile(r"\\(?P<kind>pm|mp)(?![a-z])\s?")


def negated(text: str) -> str:
    """The text of the negative."""
    text = text.strip()
    if re.fullmatch(r"[-+]?[^-+]*", text):
        return text[1:] if text.startswith("-") else "-" + text.removeprefix("+")
    return f"-({text})"


def both_signs(text: str) -> list[str] | None:
    """The two texts that one ``\\pm`` stands for, also with one ``\\mp`` beside it; None without or with more."""
    kinds = [match["kind"] for match in PLUS_MINUS.finditer(text)]
    if not kinds or len(kinds) > len(set(kinds)):
        return None
    return [PLUS_MINUS.sub(lambda m, s=sign: s[m["kind"] == "mp"], text) for sign in ("+-", "-+")]
