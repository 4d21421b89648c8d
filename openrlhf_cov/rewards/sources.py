"""The rules that grade, by name: how a response is scored against the label of its row."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from openrlhf_cov.config import RewardConfig
from openrlhf_cov.rewards import addition
from openrlhf_cov.rewards.code.rule import check_code_ready, grade_code
from openrlhf_cov.rewards.code.tests import parse_tests
from openrlhf_cov.rewards.grades import Grade
from openrlhf_cov.rewards.maths.extraction import GSM8K_MARK, answer_of_solution, extract_answer
from openrlhf_cov.rewards.maths.grading import MAX_ANSWER, grade, with_second_opinion
from openrlhf_cov.rewards.maths.grammar import choice_of
from openrlhf_cov.rewards.maths.labels import NUMERIC, bare_answer, read_label
from openrlhf_cov.rewards.maths.normalization import is_refused
from openrlhf_cov.rewards.maths.prompt import NO_PROBLEM, read_problem
from openrlhf_cov.rewards.maths.shapes import GROUP
from openrlhf_cov.rewards.thinking import final_part, opens_thinking

ANY_LETTER = re.compile(r"\(?(?P<letter>[A-Za-z])\)?[.:]?")


@dataclass(frozen=True)
class RewardSource:
    """One rule: ``grade(response, label, config, prompt="")``, and ``check_label(label)``, which raises ValueError.

    ``check_ready(config)`` raises UsageError where this machine cannot grade by the rule.
    """

    grade: Callable[..., Grade]
    check_label: Callable[[str], object]
    check_ready: Callable[[RewardConfig], None] = lambda config: None


def grade_math(response: str, label: str, config: RewardConfig, prompt: str = "") -> Grade:
    """Return the grade of an answer in mathematics: it is read as the type of its label, and compared with it.

    Args:
        response: The response without thinking.
        label: The gold answer, or a solution that ends with it.
        config: Settings of the rewards.
        prompt: The prompt, whose own formulas are no answers.
    """
    return grade(
        response,
        gold_answer(label),
        prompt=prompt,
        mode=config.reward_format,
        timeout=config.reward_timeout,
        thinking_markers=None,
    )


def check_math_label(label: str) -> None:
    """Check that a label is correct when a response repeats it in a box; otherwise it can reward nothing.

    Raises:
        ValueError: The label cannot be graded by this rule.
    """
    if not _equals_itself(gold_answer(label)):
        raise ValueError("it does not even equal itself: empty, braces that do not match, or NaN")


@lru_cache(maxsize=100_000)  # many problems of a file have the same answer, such as 1
def _equals_itself(label: str) -> bool:
    return grade(f"\\boxed{{{label}}}", label).correct


def grade_gsm8k(response: str, label: str, config: RewardConfig, prompt: str = "") -> Grade:
    """Return the grade of ``grade_math`` against the number behind ``####``.

    Args:
        response: The response without thinking.
        label: A number, or a solution of GSM8K.
        config: Settings of the rewards.
        prompt: The prompt, whose own formulas are no answers.
    """
    return grade_math(response, _gsm8k_gold(label), config, prompt)


def check_gsm8k_label(label: str) -> None:
    """Check that a label is a number, alone or after ``####``.

    Raises:
        ValueError: The label cannot be graded by this rule.
    """
    typed = read_label(_gsm8k_gold(label))
    if typed.kind not in NUMERIC or typed.percent or typed.name:
        raise ValueError("it is neither a number nor a solution that ends with #### and a number")


def grade_choice(response: str, label: str, config: RewardConfig, prompt: str = "") -> Grade:
    r"""Return the grade of a multiple-choice answer: a letter, as in ``B``, ``(B)``, ``B. 12`` or ``\text{(B)}``.

    Args:
        response: The response without thinking.
        label: The letter of the correct option.
        config: Settings of the rewards.
        prompt: The prompt. Text behind the letter of an answer must be that of this option in the problem.
    """
    answer = extract_answer(response, config.reward_format)
    if answer is None:
        return Grade(False, "no_answer")
    letter = None if is_refused(answer) else _letter(answer, prompt)
    return Grade(letter == _letter(label), "graded", answer) if letter else Grade(False, "unparsable", answer)


def check_choice_label(label: str) -> None:
    """Check that a label is one letter, in brackets or not.

    Raises:
        ValueError: The label cannot be graded by this rule.
    """
    if _letter(label) is None:
        raise ValueError("it is no letter of a multiple-choice answer")


def grade_tiny_addition(response: str, label: str, config: RewardConfig, prompt: str = "") -> Grade:
    """Grade by the embedded task's own rule, whatever the format: see ``openrlhf_cov.rewards.addition.is_right``.

    Args:
        response: The response, with ``<eos>`` if it is complete.
        label: The number in digits.
        config: Not used; every rule takes one.
        prompt: Not used; every rule takes one.
    """
    answer = addition.extract_answer(response)
    return Grade(addition.is_right(response, label), "no_answer" if answer is None else "graded", answer)


def check_tiny_addition_label(label: str) -> None:
    """Check that a label consists of digits.

    Raises:
        ValueError: The label cannot be graded by this rule.
    """
    if not addition.is_number(label):
        raise ValueError("it is no non-negative integer in digits")


# --reward_source, or the field ``source`` of a row up to its first slash -> rule. A new rule is one line here.
SOURCES: dict[str, RewardSource] = {
    "math": RewardSource(grade_math, check_math_label),
    "gsm8k": RewardSource(grade_gsm8k, check_gsm8k_label),
    "choice": RewardSource(grade_choice, check_choice_label),
    "code": RewardSource(grade_code, parse_tests, check_code_ready),
    addition.DATASOURCE: RewardSource(grade_tiny_addition, check_tiny_addition_label),
}


def split_label(label: Any) -> tuple[str, str | None]:
    """Return the gold answer and the source of the row that a label names.

    Args:
        label: A string, a number, or ``{"answer": …, "source": …}``.

    Returns:
        The answer as a text, and the source; None without one.

    Raises:
        ValueError: The label is something else, or empty.
    """
    source = None
    if isinstance(label, dict) and "answer" in label:
        source = label.get("source")
        label = label["answer"]
    if isinstance(label, int | float) and not isinstance(label, bool):
        label = str(label)
    if not isinstance(label, str) or not label.strip():
        raise ValueError(f"a label is a string that is not empty, got {type(label).__name__}")
    return label.strip(), source


def source_of(source: str | None, config: RewardConfig) -> RewardSource:
    """Return the rule that grades a row.

    Args:
        source: The source of the row, which decides with ``--reward_source row``. A row without one is ``math``.
        config: Settings of the rewards.

    Raises:
        ValueError: The source names no rule.
    """
    name = config.reward_source
    if name == "row":
        name = "math" if source in (None, "") else str(source).partition("/")[0].lower()
    if name not in SOURCES:
        raise ValueError(f"its source {source!r} names no rule; begin it with one, {', '.join(SOURCES)}, and a slash")
    return SOURCES[name]


def check_label(label: Any, config: RewardConfig) -> None:
    """Check that a label can be graded.

    Args:
        label: Label of a row: an answer, or a mapping with ``answer`` and ``source``.
        config: Settings of the rewards, whose ``--reward_source`` chooses the rule.

    Raises:
        ValueError: The label cannot be graded; the message says why.
    """
    answer, source = split_label(label)
    source_of(source, config).check_label(answer)


def checker(config: RewardConfig) -> Callable[[Any], None]:
    """Return ``check_label`` with these settings as a function of the label.

    The function raises ValueError for a label that cannot be graded. At the first valid label of a rule it raises
    UsageError if this machine cannot grade by this rule.
    """
    ready: set[int] = set()

    def check(label: Any) -> None:
        check_label(label, config)
        rule = source_of(split_label(label)[1], config)
        # Once for each rule, because the check may start a sandbox.
        if id(rule) not in ready:
            rule.check_ready(config)
            ready.add(id(rule))

    return check


def grade_label(response: str, label: Any, config: RewardConfig, *, prompt: str = "") -> Grade:
    """Return the grade of a response by the rule of its row and the grader of the settings.

    Every rule reads only what follows the thinking of the model.

    Args:
        response: Text of the response.
        label: Label of the row: an answer, or a mapping with ``answer`` and ``source``.
        config: Settings of the rewards.
        prompt: Text of the prompt. It shows whether it opened the thinking, and the rules for mathematics refuse its
            own formulas as answers.
    """
    answer, source = split_label(label)
    opened = config.thinking_opened or opens_thinking(prompt, config.thinking_markers)
    final = final_part(response, config.thinking_markers, opened=opened)
    strict = source_of(source, config).grade(final, answer, config, prompt)
    return published_grade(strict, label, config) if config.reward_grader == "published" else strict


def published_grade(strict: Grade, label: Any, config: RewardConfig) -> Grade:
    """Return the grade of a response by the grader ``published``.

    Math-Verify knows one rule, ``math``; by the others both graders are the same.

    Args:
        strict: The grade of the same response by the grader ``strict``.
        label: Label of the row: an answer, or a mapping with ``answer`` and ``source``.
        config: Settings of the rewards.
    """
    answer, source = split_label(label)
    if source_of(source, config) is not SOURCES["math"]:
        return strict
    return with_second_opinion(strict, gold_answer(answer), timeout=config.reward_timeout)


def gold_answer(label: str) -> str:
    """Return the answer in a label: that of a solution with ``####`` or a box, otherwise the label itself."""
    if GSM8K_MARK in label:
        return answer_of_solution(label) or ""
    return answer_of_solution(label) or label


def _gsm8k_gold(label: str) -> str:
    return label.rpartition(GSM8K_MARK)[2]


def _letter(text: str, prompt: str = "") -> str | None:
    """Return the capital letter of the one option that an answer names; None where it names none or several."""
    if len(text) > MAX_ANSWER:
        return None
    bare = bare_answer(text)
    if match := ANY_LETTER.fullmatch(GROUP.sub("", bare).strip()):
        return match["letter"].upper()
    return choice_of(bare, read_problem(prompt) if prompt else NO_PROBLEM, any_letter=True)


def same_choice(answer: str, other: str) -> bool:
    """Return True if two answers to a multiple-choice problem name the same option.

    Args:
        answer: A bare answer, such as ``(B) 12``.
        other: Another one.
    """
    letter = _letter(answer)
    return letter is not None and letter == _letter(other)
