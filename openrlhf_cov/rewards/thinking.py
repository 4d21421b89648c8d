"""The part of a response that can hold its answer: what follows the thinking of the model (pure)."""

import re
from functools import lru_cache

from openrlhf_cov.config import RewardConfig

DEFAULT_MARKERS: tuple[str, str] = RewardConfig().thinking_markers
"""The default of ``--thinking_markers``: the opening and the closing marker."""
REACH = 200
"""Characters on each side of a marker in which quotation marks are looked for."""
QUOTES = re.compile(r"[\"`]|(?<![A-Za-z0-9])'|'(?![A-Za-z0-9])")
WORDS_OR_SIGNS = re.compile(r"\w+|[^\w\s]")


def final_part(response: str, markers: tuple[str, str] = DEFAULT_MARKERS, *, opened: bool = False) -> str:
    """Return what follows the thinking in a response, "" if the thinking was not closed.

    The final part begins behind the last closing marker. If an opening marker follows there, the model went on
    thinking and gave no answer. A response without markers is returned as a whole, unless the thinking was opened
    before it began. Case and white space inside a marker do not matter. A marker in quotation marks, backticks or
    braces is a part of the text, such as a program that prints it.

    Args:
        response: the text that the model wrote.
        markers: the texts that open and close the thinking.
        opened: True if the prompt opened the thinking, see ``opens_thinking``.
    """
    opening, closing = (_pattern(marker) for marker in markers)
    closed = [found.end() for found in closing.finditer(response) if not _is_quoted(response, found)]
    if opened and not closed:
        return ""
    start = closed[-1] if closed else 0
    if any(not _is_quoted(response, found) for found in opening.finditer(response, start)):
        return ""
    return response[start:]


def opens_thinking(prompt: str, markers: tuple[str, str] = DEFAULT_MARKERS) -> bool:
    """Return True if the prompt ends with the opening marker, so that the response begins inside the thinking."""
    tail = prompt.rstrip()[-4 * len(markers[0]) - 16 :]
    return any(found.end() == len(tail) for found in _pattern(markers[0]).finditer(tail))


@lru_cache(maxsize=16)
def _pattern(marker: str) -> re.Pattern[str]:
    """Match a marker in any case, with up to three characters of white space between its words and signs."""
    parts = WORDS_OR_SIGNS.findall(marker)
    return re.compile(r"\s{0,3}".join(map(re.escape, parts)), re.IGNORECASE)


def _is_quoted(text: str, marker: re.Match[str]) -> bool:
    """Return True if the marker stands in braces of its own, or between quotation marks on its line."""
    before = text[max(0, marker.start() - REACH) : marker.start()].rpartition("\n")[2]
    after = text[marker.end() : marker.end() + REACH].partition("\n")[0]
    if before.endswith("{") and after.startswith("}"):
        return True
    # a quotation mark of the same kind is open before the marker and is closed behind it
    opened = [quote for quote in "\"`'" if QUOTES.findall(before).count(quote) % 2]
    return any(quote in QUOTES.findall(after) for quote in opened)
