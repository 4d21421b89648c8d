"""Math-Verify's verdict, half of the grader ``published``. Runs in a killable child process, see ``pool``.

Math-Verify bounds its time by signals, which work in main threads only, and its memory not at all: both are off here,
the pool bounds them.
"""

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
from sympy import Basic

FORMS = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())


def accepts(answer: str, gold: str) -> bool:
    """Return True if Math-Verify accepts an answer, called as in the paper's code.

    A text without a dollar sign is put between two. A text that cannot be parsed is equal to nothing.

    Args:
        answer: The extracted answer.
        gold: The gold answer.
    """
    return verify(_parsed(gold), _parsed(answer), timeout_seconds=None)


def _parsed(text: str) -> list[Basic]:
    text = text if "$" in text else f"${text}$"
    return parse(text, FORMS, fallback_mode="no_fallback", parsing_timeout=None)
