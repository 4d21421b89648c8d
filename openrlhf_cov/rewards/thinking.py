"""The part of a response that can hold its answer: what follows the thinking of the model (pure)."""

import re
from functools import lru_cache

from openrlhf_cov.config import RewardConfig

# The default of ``--thinking_markers``: the opening and the closing marker.
DEFAULT_MARKERS: tuple[str, str] = RewardConfig().thinking_markers
# Characters on each side of a marker in which quotation marks are looked for.
REACH = 200
# A quotation mark that can open a quotation, also with a prefix of Python; no apostrophe, inches or derivative.
OPENING_QUOTE = re.compile(r"(?<![A-Za-z0-9])(?:[\"`']|[bfru]{1,2}\"|[bfru]{1,2}'(?![\s(=+*/,.;:)^-]))", re.IGNORECASE)
# A quotation mark that can close a quotation.
CLOSING_QUOTE = re.compile(r"[\"`'](?![A-Za-z0-9])")
# What stands before the marker with which a response begins: a new line, a special token or the name of the role.
START_OF_TURN = re.compile(r"(?:\A|[\n>\]▷]|assistant\s?:)[ \t]{0,8}\Z", re.IGNORECASE)
# What begins another turn: a special token, or the name of a role on a line.
NEXT_TURN = re.compile(
    r"<[|｜][^<>|｜\s]{1,40}[|｜]>|</s>|<end_of_turn>|\[/?INST\]"
    r"|^[ \t]{0,8}(?:user|human|assistant|question|problem)[ \t]{0,8}:",
    re.IGNORECASE | re.MULTILINE,
)
# Characters at the end of a prompt in which an opened thinking is looked for.
MAX_PREFILL = 20_000
WORDS_OR_SIGNS = re.compile(r"\w+|[^\w\s]")


def final_part(response: str, markers: tuple[str, str] = DEFAULT_MARKERS, *, opened: bool = False) -> str:
    """Return what follows the thinking in a response, "" if the thinking was not closed.

    The final part begins behind the last closing marker. If an opening marker follows there, the model went on
    thinking and gave no answer. A response without markers is returned as a whole, unless the thinking was opened
    before it began. Case and white space inside a marker do not matter. A marker in quotation marks, backticks or
    braces is a part of the text, such as a program that prints it.

    Args:
        response: The text that the model wrote.
        markers: The texts that open and close the thinking.
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
    """Return True if the prompt ends inside the thinking, so that the response begins there.

    The prompt ends with the opening marker, or with the first words of the thinking behind a marker that begins a line
    or the turn of the model. A marker that the prompt closes, or that stands in an earlier turn, opens nothing.

    Args:
        prompt: Text of the prompt, with the chat template.
        markers: The texts that open and close the thinking, as in ``final_part``.
    """
    opening, closing = (_pattern(marker) for marker in markers)
    tail = prompt.rstrip()[-MAX_PREFILL:]
    openings = list(opening.finditer(tail))
    if not openings:
        return False
    found = openings[-1]
    behind = tail[found.end() :]
    if not behind:
        return True
    if closing.search(behind) or NEXT_TURN.search(behind):
        return False
    return START_OF_TURN.search(tail[: found.start()]) is not None and not _is_quoted(tail, found)


@lru_cache(maxsize=16)
def _pattern(marker: str) -> re.Pattern[str]:
    """Return a pattern that matches a marker in any case, with up to three spaces between its words and signs."""
    parts = WORDS_OR_SIGNS.findall(marker)
    return re.compile(r"\s{0,3}".join(map(re.escape, parts)), re.IGNORECASE)


def _is_quoted(text: str, marker: re.Match[str]) -> bool:
    """Return True if the marker stands in braces of its own, or between quotation marks on its line."""
    before = text[max(0, marker.start() - REACH) : marker.start()].rpartition("\n")[2]
    after = text[marker.end() : marker.end() + REACH].partition("\n")[0]
    if before.endswith("{") and after.startswith("}"):
        return True
    quote = _open_quote(before)
    place = after.find(quote) if quote else -1
    return place >= 0 and CLOSING_QUOTE.match(after, place) is not None


def _open_quote(line: str) -> str:
    """Return the quotation mark that is open at the end of a line, "" if none is."""
    place = 0
    while opening := OPENING_QUOTE.search(line, place):
        quote = opening[0][-1]
        place = line.find(quote, opening.end())
        while place >= 0 and not CLOSING_QUOTE.match(line, place):
            place = line.find(quote, place + 1)
        if place < 0:
            return quote
        place += 1
    return ""
