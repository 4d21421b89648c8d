"""The program in a response (pure)."""

import re
import textwrap

from openrlhf_cov.rewards.verdicts import MAX_RESPONSE, without_end_tokens

# The parts of the line may have characters in common. Each takes all that it can, once: a line takes linear time.
FENCE = re.compile(
    r"^(?P<before>[^\n`~]*+)(?P<mark>`{3,}+|~{3,}+)[ \t]*+\{?\.?(?P<language>[\w+.#-]*+)[^\n`]*+$", re.MULTILINE
)
PYTHON = re.compile(r"py(thon|py)?[\d.]*", re.IGNORECASE)
# Spaces that a closing fence may stand further to the right than the one that it closes.
MAX_INDENT = 3


def last_fence(response: str) -> str | None:
    """Return the text of the last closed Python fence or, without one, of the last fence without a language.

    Where no fence is closed, what follows the one that was opened. None if there is none, or it is empty. What is
    indented as a whole, as in a list, is moved to the left.
    """
    text = response[-MAX_RESPONSE:].replace("\r\n", "\n")
    python = None
    plain = None
    opened = None
    for line in FENCE.finditer(text):
        ours = PYTHON.fullmatch(line["language"])
        if opened is not None and _closes(line, opened):
            if PYTHON.fullmatch(opened["language"]):
                python = opened.end() + 1, line.start()
            elif not opened["language"]:
                plain = opened.end() + 1, line.start()
            opened = None
        elif (ours and (opened is None or line["mark"] == opened["mark"])) or (
            opened is None and not line["before"].strip()
        ):  # also within a fence that was left open
            opened = line
    found = python or plain
    if found:
        return _program(text[slice(*found)])
    if opened is None or not (PYTHON.fullmatch(opened["language"]) or not opened["language"]):
        return None
    return _program(without_end_tokens(text[opened.end() + 1 :].partition(opened["mark"])[0]))


def _closes(line: re.Match[str], opened: re.Match[str]) -> bool:
    indent = len(line["before"].expandtabs(4))
    return (
        line["mark"].startswith(opened["mark"])
        and not line["language"]
        and not line["before"].strip()
        and indent <= len(opened["before"].expandtabs(4)) + MAX_INDENT
    )


def _program(text: str) -> str | None:
    if not text.strip():
        return None
    return textwrap.dedent(text) if text.lstrip("\n")[0] in " \t" else text


def whole(response: str) -> str | None:
    """Return the response without the end-of-text token; None if that is empty."""
    return without_end_tokens(response[-MAX_RESPONSE:]).strip("\n") or None


# --code_extract -> how a program is found in a response.
EXTRACTORS = {"fence": last_fence, "whole": whole}
