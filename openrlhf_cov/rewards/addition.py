"""The rule of the embedded task: the number after the last ``;``, digit by digit (pure)."""

import re

# Text of the token that ends a complete response.
EOS_TOKEN = "<eos>"
DATASOURCE = "tiny_addition"

_NUMBER = re.compile("[0-9]+")


def extract_answer(response: str) -> str | None:
    """Return the number after the last ``;`` of a response (all of it if it has none), without leading zeros.

    One ``<eos>`` at the end is ignored. None if anything but decimal digits 0-9 stands there, or nothing.
    """
    final = response.removesuffix(EOS_TOKEN).rpartition(";")[2]
    return without_leading_zeros(final) if is_number(final) else None


def is_right(response: str, label: str) -> bool:
    """Return True for a complete response whose final number is the label.

    Args:
        response: Text of the response. A complete one ends with ``<eos>``.
        label: The number, as decimal digits; leading zeros do not count.
    """
    return response.endswith(EOS_TOKEN) and extract_answer(response) == without_leading_zeros(label)


def is_number(text: str) -> bool:
    """Return True if ``text`` is one or more of the digits 0-9 and nothing else."""
    return _NUMBER.fullmatch(text) is not None


def without_leading_zeros(digits: str) -> str:
    """Return digits without leading zeros; equal strings are equal numbers, however long they are."""
    return digits.lstrip("0") or "0"
