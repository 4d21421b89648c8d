"""What a text says, whatever its sentences are: the facts that it states, in their order; and the line of an error."""

from collections.abc import Callable
from typing import Any

import pytest

from openrlhf_cov.errors import RunStopped, UsageError


def refusal_of(function: Callable[..., Any], *args: Any, **settings: Any) -> str:
    """Return the one line of the error with which a call is refused or stops."""
    with pytest.raises((UsageError, RunStopped)) as refused:
        function(*args, **settings)
    message = str(refused.value)
    assert "\n" not in message
    return message


def missing(text: str, *facts: str) -> list[str]:
    """Return the facts (names, numbers with their units, flags) that the text does not state in the given order.

    A fact is searched for after the one before it. How the text is broken into lines does not matter.
    """
    words = " ".join(text.split())
    absent = []
    place = 0
    for fact in facts:
        found = words.find(fact, place)
        if found < 0:
            absent.append(fact)
        else:
            place = found + len(fact)
    return absent
