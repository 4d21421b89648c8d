"""When two problem texts are the same: three forms of a text, from coarse to fine (pure).

All start from Unicode's compatible form (NFKC: one spelling for full-width characters, ligatures and superscripts)
without case.
"""

import re
import unicodedata

STATEMENT_TOKEN = re.compile(r"[a-z]+|[0-9]+(?:[.,][0-9]+)*|[^\s$\\{}.,;:!?'\"`~]")
WORD = re.compile(r"[a-z]+|[0-9]+(?:[.,][0-9]+)*|[^\W_]")


def letters(text: str) -> str:
    """Return the letters and digits of a text alone.

    Two texts that share them are mostly one problem, set in type differently; but ``2n - 1`` and ``2n + 1`` share them
    as well.
    """
    return "".join(filter(str.isalnum, _folded(text)))


def statement(text: str) -> str:
    r"""Return words, numbers and mathematical signs, without the marks of typesetting and punctuation.

    Left out: white space, ``$ \ { } . , ; : ! ? ' " ` ~``, but for the point or comma inside a number. Two texts that
    share it ask the same; they share their ``letters`` then as well.
    """
    return " ".join(STATEMENT_TOKEN.findall(_folded(text)))


def words(text: str) -> list[str]:
    """Return the words in order: runs of Latin letters, numbers, and every other letter by itself."""
    return WORD.findall(_folded(text))


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()
