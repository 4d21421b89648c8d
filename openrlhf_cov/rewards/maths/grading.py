r"""Grades: is the final answer of a response equal to the gold answer? Bounded in time and memory, from any thread."""

import logging
import time
from dataclasses import replace
from typing import Any

from openrlhf_cov.rewards.grades import Grade, Status
from openrlhf_cov.rewards.maths.comparison import EXACT, compare, size
from openrlhf_cov.rewards.maths.derivatives import same_derivatives
from openrlhf_cov.rewards.maths.extraction import extract_answer, last_answer_tag, last_boxed
from openrlhf_cov.rewards.maths.normalization import clean, compact, without_end_mark
from openrlhf_cov.rewards.maths.structure import parse_clean
from openrlhf_cov.rewards.maths.wording import without_lead, without_marks
from openrlhf_cov.rewards.pool import (
    COMPARE_TARGET,
    SECOND_OPINION_TARGET,
    WorkerCrashed,
    WorkerDied,
    WorkerError,
    WorkerTimeout,
    shared_pool,
)
from openrlhf_cov.rewards.responses import without_end_tokens
from openrlhf_cov.rewards.thinking import DEFAULT_MARKERS, final_part

logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT = 3.0
MAX_WAITS = 10
"""Timeouts that a call may wait for a free process when many threads grade at once."""
MAX_ANSWER = 4_000
"""Characters; a longer answer is right only if it is spelt as the gold answer is."""

MAX_PAIRS = 1_000
"""Pairs of values that are compared in the caller's process; larger lists go to a worker, which can be killed."""


def grade(
    response: str,
    answer: str,
    *,
    mode: str = "boxed",
    timeout: float = DEFAULT_TIMEOUT,
    thinking_markers: tuple[str, str] | None = DEFAULT_MARKERS,
) -> Grade:
    """The grade of ``response`` against the gold ``answer``; ``mode`` is a key of ``extraction.EXTRACTORS``.

    Only what follows the thinking between ``thinking_markers`` is read; with None the whole response is.

    Takes ``timeout`` seconds at most, after a wait for a free process of at most ``MAX_WAITS`` times that. Raises
    ValueError for an unknown mode and WorkerDied where this machine cannot keep a worker alive, never for a response.
    """
    started = time.perf_counter()
    final = response if thinking_markers is None else final_part(response, thinking_markers)
    extracted = extract_answer(final, mode)
    if extracted is None:
        return Grade(False, "no_answer", None, time.perf_counter() - started)
    correct, status = _judge(extracted, answer, timeout)
    return Grade(correct, status, extracted, time.perf_counter() - started)


def answers_equal(answer: str, gold: str, *, timeout: float = DEFAULT_TIMEOUT) -> bool:
    """Whether two bare answers are equal; False also where one is empty, unreadable or takes too long. Symmetric.

    Raises WorkerDied as ``grade`` does.
    """
    return _judge(answer, gold, timeout)[0]


def with_second_opinion(grade: Grade, gold: str, *, timeout: float = DEFAULT_TIMEOUT) -> Grade:
    """The grade of the grader ``published`` for a response whose own ``grade`` this is: right if either says so.

    Math-Verify is asked only where our grade is not right. Where it fails or crashes on the answer it did not say so,
    and our grade stands; after ``timeout`` seconds the status is timeout. Raises WorkerDied as ``grade`` does.
    """
    if grade.correct or grade.answer is None or max(len(grade.answer), len(gold)) > MAX_ANSWER:
        return grade
    started, changes = time.perf_counter(), {}
    try:
        if _in_worker(SECOND_OPINION_TARGET, grade.answer, gold, timeout):
            changes = {"correct": True, "status": "graded"}
    except WorkerTimeout:
        changes = {"status": "timeout"}
    except (WorkerError, WorkerCrashed) as error:
        logger.warning("Math-Verify gives no verdict: %s", error)
    return replace(grade, seconds=grade.seconds + time.perf_counter() - started, **changes)


def _judge(answer: str, gold: str, timeout: float) -> tuple[bool, Status]:
    try:
        return _verdict(answer, gold, timeout)
    except RecursionError:  # nested deeper than any answer: hostile, and never right
        return False, "unparsable"


def _verdict(answer: str, gold: str, timeout: float) -> tuple[bool, Status]:
    if len(answer) > MAX_ANSWER or len(gold) > MAX_ANSWER:
        equal = answer.strip() == gold.strip()
        return equal, "graded" if equal else "unparsable"
    answer, gold = same_derivatives(bare_answer(answer), bare_answer(gold))
    if not answer or not gold:
        return False, "unparsable"
    first, second = parse_clean(answer), parse_clean(gold)
    small = size(first) * size(second) <= MAX_PAIRS
    verdict = compare(first, second, EXACT) if small else None
    if verdict is None:
        try:
            verdict = _in_worker(COMPARE_TARGET, answer, gold, timeout)
        except WorkerTimeout:
            return False, "timeout"
        except WorkerError:  # the worker is alive and refuses: out of its memory or stack, so hostile and never right
            return False, "unparsable"
    if verdict is not None:
        return bool(verdict), "graded"
    equal = compact(answer) == compact(gold)
    return equal, "graded" if equal else "unparsable"


def _in_worker(target: str, answer: str, gold: str, timeout: float) -> Any:
    """The verdict of ``target`` on two answers, for which a second worker is asked where the first one died.

    A dead worker says something about the machine (no memory, no descriptors, a kill), not about the answer. Where
    the second one dies too, WorkerDied is raised: such a response has no grade, and must not be trained on as wrong.
    """
    pool = shared_pool(target=target)
    try:
        return pool.call(answer, gold, timeout=timeout, wait=MAX_WAITS * timeout)
    except WorkerDied as error:
        logger.warning("a grading process was lost and is replaced: %s", error)
        return pool.call(answer, gold, timeout=timeout, wait=MAX_WAITS * timeout)


def bare_answer(text: str) -> str:
    r"""Return the clean text of an answer without what frames it; every rule reads answers through this function.

    Marks, "the answer is", end-of-text tokens and the like are dropped. A ``\boxed{}`` or an answer tag stands for the
    whole.
    """
    text = without_end_tokens(text)
    for inside in (last_answer_tag, last_boxed):
        inner = inside(text) if "box" in text or "</" in text else None
        text = text if inner is None else inner
    text = without_end_mark(clean(without_marks(text))).lstrip(" ,;")
    return without_end_mark(without_marks(without_lead(text))).strip()
