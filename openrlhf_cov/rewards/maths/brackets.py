"""Clean text cut where no bracket is open."""

import re
from functools import cache

OPENING = ("(", "[", "{", r"\lbrace", r"\langle")
BRACKET = r"\\(?:lbrace|langle|rbrace|rangle)(?![A-Za-z])|[()\[\]{}]"


def split(text: str, separator: str | re.Pattern) -> list[str]:
    """``text`` cut at every separator that is outside brackets; one part if the brackets do not match."""
    found = separator in text if isinstance(separator, str) else separator.search(text)
    if not found:
        return [text]
    parts, depth, start = [], 0, 0
    for match in _bracket_or(separator).finditer(text):
        if match["bracket"]:
            depth += 1 if match["bracket"] in OPENING else -1
        elif depth == 0:
            parts.append(text[start : match.start()])
            start = match.end()
    return [text] if depth != 0 else [*parts, text[start:]]


@cache
def _bracket_or(separator: str | re.Pattern) -> re.Pattern:
    pattern = re.escape(separator) if isinstance(separator, str) else separator.pattern
    return re.compile(rf"(?P<bracket>{BRACKET})|{pattern}")


def outer_brackets(text: str) -> tuple[str, str, str] | None:
    """(opening, inside, closing) if one pair of brackets, of any kind, encloses all of ``text``."""
    depth, first = 0, None
    for match in re.finditer(BRACKET, text):
        if first is None:
            if match.start() > 0:
                return None
            first = match
        depth += 1 if match[0] in OPENING else -1
        if depth == 0:
            inside = text[first.end() : match.start()].strip()
            return (first[0], inside, match[0]) if match.end() == len(text) else None
    return None
