"""The program in a response (pure)."""

import re

from openrlhf_cov.rewards.extraction import MAX_RESPONSE
from openrlhf_cov.rewards.wording import without_end_tokens

FENCE = re.compile(r"^[ \t]{0,3}(?P<mark>`{3,}|~{3,})[ \t]*(?P<language>[\w+.#-]*)[^\n`]*$", re.MULTILINE)
PYTHON = frozenset(("", "python", "py", "python3", "python2"))


def last_fence(response: str) -> str | None:
    """What stands in the last closed fence that is Python's or nobody's; None if there is none, or it is empty."""
    found, opened = None, None
    for line in FENCE.finditer(response[-MAX_RESPONSE:]):
        if opened is None:
            opened = line
        elif line["mark"].startswith(opened["mark"]) and not line["language"]:
            if opened["language"].lower() in PYTHON:
                found = response[-MAX_RESPONSE:][opened.end() + 1 : line.start()]
            opened = None
    return found if found and found.strip() else None


def whole(response: str) -> str | None:
    """All of it, without the end-of-text token; None if that is empty."""
    return without_end_tokens(response[-MAX_RESPONSE:]).strip("\n") or None


EXTRACTORS = {"fence": last_fence, "whole": whole}
"""--code_extract -> how a program is found in a response."""
