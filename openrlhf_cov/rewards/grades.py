"""The outcome of grading one response, whatever rule grades it."""

from dataclasses import dataclass
from typing import Literal

Status = Literal["graded", "no_answer", "unparsable", "timeout"]


@dataclass(frozen=True)
class Grade:
    """Outcome of grading one response; ``correct`` is only ever True with status "graded".

    ``status`` is no_answer where the response has no answer in the form asked for, unparsable where the answer is none
    that can be read and is not spelt like the gold answer, timeout where the limit was hit. ``answer`` is the text
    that was extracted, ``seconds`` the wall clock time that grading took. The rest is that of a program:
    ``verdict`` a ``openrlhf_cov.rewards.code.judge.Status``, ``share`` of the tests that it passed, ``cached`` if it
    was judged before.
    """

    correct: bool
    status: Status
    answer: str | None = None
    seconds: float = 0.0
    verdict: str | None = None
    share: float = 0.0
    cached: bool = False
    detail: str = ""
