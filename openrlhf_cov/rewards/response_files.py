"""Files of responses: read and check their rows, grade them by both graders, and describe the grades as text."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openrlhf_cov.config import RewardConfig
from openrlhf_cov.errors import UsageError
from openrlhf_cov.rewards import sources
from openrlhf_cov.rewards.grades import Grade
from openrlhf_cov.rewards.pool import shared_pool
from openrlhf_cov.utils import json_lines

# Key of the prompt in a row, unless the user names another one.
PROMPT_KEY = "prompt"
# Rows in the list of those that took longest.
SLOWEST = 5
# Rows on which the graders differ that are printed; the file of all grades has every one of them.
MAX_SHOWN = 20
# Characters of an answer that are printed.
LONGEST_ANSWER = 60

# Returns its grades as they are, and shows how many of the given number have come.
Watch = Callable[[Iterable[Grade], int], Iterable[Grade]]


@dataclass(frozen=True)
class ResponseRow:
    """One line of the file: a response, the label it is graded against, and the prompt if the file has it."""

    line: int
    response: str
    label: Any
    prompt: str = ""


def read_response_rows(
    path: Path, response_key: str, label_key: str, prompt_key: str | None = None
) -> list[ResponseRow]:
    """Read the rows of a JSON Lines file.

    Args:
        path: The file.
        response_key: Key of the response.
        label_key: Key of the label.
        prompt_key: Key of the prompt; without it the prompt is the text under ``PROMPT_KEY``, where a row has one.

    Raises:
        UsageError: A row lacks a key or has a value of another type; the message names the line.
    """
    lines = json_lines.read_rows(path, json_lines.parse_object)
    rows = [_row(path, number, record, response_key, label_key, prompt_key) for number, record in lines]
    if not rows:
        raise UsageError(f"{path} has no rows")
    return rows


def check_labels(path: Path, rows: Sequence[ResponseRow], config: RewardConfig) -> None:
    """Check that every label can be graded.

    Args:
        path: The file, for the message.
        rows: Its rows.
        config: How responses are graded.

    Raises:
        UsageError: A label cannot be graded, or this machine cannot grade.
    """
    check = sources.checker(config)
    for row in rows:
        try:
            check(row.label)
        except ValueError as error:
            raise UsageError(f"{path}, line {row.line}: the label {row.label!r}: {error}") from error


def grade_rows(rows: Sequence[ResponseRow], config: RewardConfig, watch: Watch) -> list[Grade]:
    """Return the grade of every row, in the order of the rows.

    Args:
        rows: The rows, whose labels have been checked.
        config: How responses are graded, and the number of threads and grading processes.
        watch: Shows the progress.
    """
    shared_pool(config.reward_workers)

    def grade(row: ResponseRow) -> Grade:
        return sources.grade_label(row.response, row.label, config, prompt=row.prompt)

    with ThreadPoolExecutor(config.reward_workers) as threads:
        return list(watch(threads.map(grade, rows), len(rows)))


def published_grades(
    rows: Sequence[ResponseRow], strict: Sequence[Grade], config: RewardConfig, watch: Watch
) -> list[Grade]:
    """Return the grade of every row by the grader ``published``. Math-Verify grades only what ``strict`` refused.

    Args:
        rows: The rows of the file.
        strict: Their grades by the grader ``strict``.
        config: How responses are graded, and the number of threads.
        watch: Shows the progress.
    """

    def grade(row: ResponseRow, strict_grade: Grade) -> Grade:
        return sources.published_grade(strict_grade, row.label, config)

    with ThreadPoolExecutor(config.reward_workers) as threads:
        return list(watch(threads.map(grade, rows, strict), len(rows)))


def grade_lines(
    rows: Sequence[ResponseRow], grades: Sequence[Grade], published: Sequence[Grade] | None = None
) -> Iterator[str]:
    """Yield one JSON object per row: line, correct, status, answer and seconds.

    Args:
        rows: The rows of the file.
        grades: Their grades.
        published: Their grades by the grader ``published``; None where it did not grade.
    """
    for row, grade, other in zip(rows, grades, published or [None] * len(rows), strict=True):
        record = {"line": row.line, "correct": grade.correct, "status": grade.status, "answer": grade.answer}
        if other:
            record["published"] = other.correct
        if grade.verdict:
            record |= {"verdict": grade.verdict, "tests": round(grade.share, 6), "detail": grade.detail}
        yield json.dumps(record | {"seconds": round(grade.seconds, 6)})


def summary(rows: Sequence[ResponseRow], grades: Sequence[Grade]) -> str:
    """Return the counts of grades by status, and the rows that took longest.

    Args:
        rows: The rows of the file.
        grades: Their grades, in the order of the rows.
    """
    counts = Counter(_outcome(grade) for grade in grades)
    lines = [f"{'status':<12}{'responses':>10}{'share':>8}"]
    lines += [f"{outcome:<12}{count:>10,}{count / len(grades):>8.1%}" for outcome, count in counts.most_common()]
    slowest = sorted(zip(rows, grades, strict=True), key=lambda pair: -pair[1].seconds)[:SLOWEST]
    lines += ["", f"{'slowest':<12}{'seconds':>10}  answer"]
    for row, grade in slowest:
        lines.append(f"{f'line {row.line}':<12}{grade.seconds:>10.3f}  {_shown(grade.answer)} ({grade.status})")
    return "\n".join(lines)


def comparison(rows: Sequence[ResponseRow], strict: Sequence[Grade], published: Sequence[Grade]) -> str:
    """Return how many rows each grader accepts, and the first ``MAX_SHOWN`` rows on which they differ.

    Args:
        rows: The rows of the file.
        strict: Their grades by the grader ``strict``.
        published: Their grades by the grader ``published``, which accepts all that ``strict`` accepts.
    """
    differing = [
        f"line {row.line}: {_shown(strict_grade.answer)}, label {_shown(sources.split_label(row.label)[0])}"
        for row, strict_grade, published_grade in zip(rows, strict, published, strict=True)
        if strict_grade.correct != published_grade.correct
    ]
    counts = {"strict": _accepted(strict), "published": _accepted(published), "differ": len(differing)}
    lines = [f"{'grader':<12}{'accepts':>10}{'share':>8}"]
    lines += [f"{name:<12}{count:>10,}{count / len(rows):>8.1%}" for name, count in counts.items()]
    if differing:
        lines += ["", "correct by published alone:", *differing[:MAX_SHOWN]]
    if len(differing) > MAX_SHOWN:
        lines.append(f"and {len(differing) - MAX_SHOWN:,} more")
    return "\n".join(lines)


def _outcome(grade: Grade) -> str:
    if grade.status != "graded":
        return grade.status
    return "correct" if grade.correct else "incorrect"


def _accepted(grades: Sequence[Grade]) -> int:
    return sum(grade.correct for grade in grades)


def _shown(answer: str | None) -> str:
    return " ".join((answer or "").split())[:LONGEST_ANSWER]


def _row(
    path: Path, number: int, record: dict[str, Any], response_key: str, label_key: str, prompt_key: str | None
) -> ResponseRow:
    place = f"{path}, line {number}"
    for flag, key in (("--response_key", response_key), ("--label_key", label_key), ("--prompt_key", prompt_key)):
        if key is not None and key not in record:
            raise UsageError(
                f"{place} has no key {key!r}; it has {', '.join(record) or 'none'}; name the key with {flag}"
            )
    response = record[response_key]
    label = record[label_key]
    if not isinstance(response, str):
        raise UsageError(f"{place}: {response_key!r} is {type(response).__name__}, not a string")
    prompt = record.get(prompt_key or PROMPT_KEY, "")
    if not isinstance(prompt, str):
        if prompt_key is not None:
            raise UsageError(f"{place}: {prompt_key!r} is {type(prompt).__name__}, not a string")
        prompt = ""  # a chat, which a template has not written yet
    if "source" in record and not isinstance(label, dict):
        label = {"answer": label, "source": record["source"]}
    return ResponseRow(number, response, label, prompt)
