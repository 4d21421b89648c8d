"""Grades responses against labels. Bounded in time and memory, and callable from any thread."""

import logging
import re
import time
from dataclasses import replace
from typing import Any

from openrlhf_cov.rewards.grades import Grade, Status
from openrlhf_cov.rewards.maths.extraction import extract_answer
from openrlhf_cov.rewards.maths.grammar import Verdict, accepts
from openrlhf_cov.rewards.maths.labels import Label, bare_answer, read_label
from openrlhf_cov.rewards.maths.normalization import is_refused
from openrlhf_cov.rewards.maths.prompt import ProblemText, read_problem
from openrlhf_cov.rewards.pool import (
    COMPARE_TARGET,
    SECOND_OPINION_TARGET,
    WorkerCrashed,
    WorkerDied,
    WorkerError,
    WorkerTimeout,
    shared_pool,
)
from openrlhf_cov.rewards.thinking import DEFAULT_MARKERS, final_part

logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT = 3.0
# Timeouts that a call may wait for a free process when many threads grade at once.
MAX_WAITS = 10
# Characters; a longer answer is right only if it is spelt as the gold answer is.
MAX_ANSWER = 4_000

# Characters of a prompt, from its end, that are read.
MAX_PROMPT = 20_000


# Text of a program. Math-Verify executes none of it, but takes the numbers in it for an answer.
CODE = re.compile(r"__\w|(?<![a-z\\])(?:import|exec|eval|lambda|open|system|print|getattr|globals)(?![a-z])")


class _NeedsWorker(Exception):
    """Raised if a formula has to be computed, which is done in a child process."""


def grade(
    response: str,
    answer: str,
    *,
    prompt: str = "",
    mode: str = "boxed",
    timeout: float = DEFAULT_TIMEOUT,
    thinking_markers: tuple[str, str] | None = DEFAULT_MARKERS,
) -> Grade:
    """Grade a response against its label.

    Args:
        response: The text that the model wrote.
        answer: The label.
        prompt: The prompt, whose own formulas are no answers to it; without one the rules about it do not apply.
        mode: Where the answer stands, a key of ``openrlhf_cov.rewards.maths.extraction.EXTRACTORS``.
        timeout: Seconds for the comparison, after a wait for a free process of at most ``MAX_WAITS`` times that.
        thinking_markers: The texts that open and close the thinking, which is not graded; None to grade the whole
            response.

    Raises:
        ValueError: The mode is unknown.
        WorkerDied: This machine cannot keep a child process alive. No response raises.
    """
    started = time.perf_counter()
    final = response if thinking_markers is None else final_part(response, thinking_markers)
    extracted = extract_answer(final, mode)
    if extracted is None:
        return Grade(False, "no_answer", None, time.perf_counter() - started)
    correct, status = _judge(extracted, answer, timeout, prompt)
    return Grade(correct, status, extracted, time.perf_counter() - started)


def answers_equal(answer: str, gold: str, *, timeout: float = DEFAULT_TIMEOUT) -> bool:
    """Return True if one of two bare answers is accepted for the other one as a label.

    Args:
        answer: A bare answer. Both may change places.
        gold: Another one.
        timeout: Seconds for each of the two comparisons.

    Raises:
        WorkerDied: This machine cannot keep a child process alive.
    """
    return _judge(answer, gold, timeout)[0] or _judge(gold, answer, timeout)[0]


def with_second_opinion(grade: Grade, gold: str, *, timeout: float = DEFAULT_TIMEOUT) -> Grade:
    """Return the grade of the grader ``published``: correct if ``strict`` or Math-Verify says so.

    Math-Verify is asked only where our grade is not correct. Where it fails or crashes on the answer, our grade
    stands.

    Args:
        grade: Result of ``grade``, with the extracted answer.
        gold: The label.
        timeout: Seconds for Math-Verify. After them the status is "timeout".

    Raises:
        WorkerDied: This machine cannot keep a child process alive.
    """
    if grade.correct or grade.answer is None or max(len(grade.answer), len(gold)) > MAX_ANSWER:
        return grade
    if is_refused(grade.answer) or CODE.search(grade.answer):
        return grade
    started = time.perf_counter()
    changes = {}
    try:
        if _in_worker(SECOND_OPINION_TARGET, timeout, grade.answer, gold):
            changes = {"correct": True, "status": "graded"}
    except WorkerTimeout:
        changes = {"status": "timeout"}
    except (WorkerError, WorkerCrashed) as error:
        logger.warning("Math-Verify gives no verdict: %s", error)
    return replace(grade, seconds=grade.seconds + time.perf_counter() - started, **changes)


def _judge(answer: str, gold: str, timeout: float, prompt: str = "") -> tuple[bool, Status]:
    try:
        return _verdict(answer, gold, timeout, prompt[-MAX_PROMPT:])
    except RecursionError:  # nested deeper than any answer: hostile, and never right
        return False, "unparsable"


def _verdict(answer: str, gold: str, timeout: float, prompt: str) -> tuple[bool, Status]:
    if len(answer) > MAX_ANSWER or len(gold) > MAX_ANSWER:
        equal = answer.strip() == gold.strip()
        return equal, "graded" if equal else "unparsable"
    if is_refused(answer) and answer.strip() != gold.strip():
        return False, "unparsable"
    text = bare_answer(answer)
    try:
        verdict = accepts(text, read_label(gold), read_problem(prompt), _needs_worker)
    except _NeedsWorker:
        try:
            verdict = _in_worker(COMPARE_TARGET, timeout, text, gold, prompt)
        except WorkerTimeout:
            return False, "timeout"
        except WorkerError:  # the worker is alive and refuses: out of its memory or stack, so hostile and never right
            return False, "unparsable"
    return bool(verdict), "unparsable" if verdict is None else "graded"


def _needs_worker(text: str, label: Label, problem: ProblemText) -> Verdict:
    raise _NeedsWorker


def _in_worker(target: str, timeout: float, *texts: str) -> Any:
    """Return the verdict of ``target``, for which a second worker is asked where the first one died.

    A dead worker says something about the machine (no memory, no descriptors, a kill), not about the answer. Where
    the second one dies too, WorkerDied is raised: such a response has no grade, and must not be trained on as wrong.
    """
    pool = shared_pool(target=target)
    try:
        return pool.call(*texts, timeout=timeout, wait=MAX_WAITS * timeout)
    except WorkerDied as error:
        logger.warning("a grading process was lost and is replaced: %s", error)
        return pool.call(*texts, timeout=timeout, wait=MAX_WAITS * timeout)
