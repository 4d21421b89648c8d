"""Grade a file of responses, to check a reward before training."""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from openrlhf_cov.cli.entry_point import program
from openrlhf_cov.cluster.packages import require_grader
from openrlhf_cov.config import RewardConfig
from openrlhf_cov.errors import UsageError
from openrlhf_cov.rewards import sources
from openrlhf_cov.rewards.grades import Grade
from openrlhf_cov.rewards.pool import shared_pool
from openrlhf_cov.utils import json_lines
from openrlhf_cov.utils.config_flags import add_config_arguments
from openrlhf_cov.utils.output_folders import check_file
from openrlhf_cov.utils.terminal import Parser, say

PROMPT_KEY = "prompt"
SLOWEST = 5
# Rows on which the graders differ that are printed; --output has all of them.
SHOWN = 20


@dataclass(frozen=True)
class GradeRow:
    """One line of the file: a response, the label it is graded against, and the prompt if the file has it."""

    line: int
    response: str
    label: Any
    prompt: str = ""


def read_rows(path: Path, response_key: str, label_key: str, prompt_key: str | None = None) -> list[GradeRow]:
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


def in_threads(grade: Callable[..., Grade], config: RewardConfig, *columns: Sequence[Any]) -> list[Grade]:
    """Return the grade of every row, with a progress bar on stderr.

    Args:
        grade: Function of one value of each column.
        config: It has the number of threads.
        columns: Sequences of equal length, one value for each row.
    """
    with ThreadPoolExecutor(config.reward_workers) as threads:
        return list(tqdm(threads.map(grade, *columns), total=len(columns[0]), desc="grading", unit="response"))


def summary(rows: list[GradeRow], grades: list[Grade]) -> str:
    """Return the counts of grades by status, and the rows that took longest. Grades are in the order of the rows."""
    counts = Counter("correct" if grade.correct else "wrong" for grade in grades if grade.status == "graded")
    counts |= Counter(grade.status for grade in grades if grade.status != "graded")
    lines = [f"{'status':<12}{'responses':>10}{'share':>8}"]
    lines += [f"{status:<12}{count:>10,}{count / len(grades):>8.1%}" for status, count in counts.most_common()]
    slowest = sorted(zip(rows, grades, strict=True), key=lambda pair: -pair[1].seconds)[:SLOWEST]
    lines += ["", f"{'slowest':<12}{'seconds':>10}  answer"]
    for row, grade in slowest:
        lines.append(f"{f'line {row.line}':<12}{grade.seconds:>10.3f}  {_shown(grade.answer)} ({grade.status})")
    return "\n".join(lines)


def comparison(rows: list[GradeRow], strict: list[Grade], published: list[Grade]) -> str:
    """Return how many rows each grader accepts, and the first ``SHOWN`` rows on which they differ.

    Args:
        rows: The rows of the file.
        strict: Their grades by the grader strict.
        published: Their grades by the grader published.
    """
    differing = [
        f"line {row.line}: {_shown(ours.answer)}, label {_shown(sources.split_label(row.label)[0])}"
        for row, ours, theirs in zip(rows, strict, published, strict=True)
        if ours.correct != theirs.correct
    ]
    counts = {"strict": _accepted(strict), "published": _accepted(published), "differ": len(differing)}
    lines = [f"{'grader':<12}{'accepts':>10}{'share':>8}"]
    lines += [f"{name:<12}{count:>10,}{count / len(rows):>8.1%}" for name, count in counts.items()]
    more = [f"and {len(differing) - SHOWN:,} more"] if len(differing) > SHOWN else []
    return "\n".join([*lines, "", "right by published alone:", *differing[:SHOWN], *more] if differing else lines)


def _accepted(grades: list[Grade]) -> int:
    return sum(grade.correct for grade in grades)


def _shown(answer: str | None) -> str:
    return " ".join((answer or "").split())[:60]


def grade_lines(rows: list[GradeRow], grades: list[Grade], published: list[Grade] | None = None) -> Iterator[str]:
    """Yield one JSON object per row: line, correct, status, answer and seconds.

    Args:
        rows: The rows of the file.
        grades: Their grades.
        published: Their grades by the grader published; None where it was not asked.
    """
    for row, grade, other in zip(rows, grades, published or [None] * len(rows), strict=True):
        record = {"line": row.line, "correct": grade.correct, "status": grade.status, "answer": grade.answer}
        record |= {"published": other.correct} if other else {}
        record |= (
            {"verdict": grade.verdict, "tests": round(grade.share, 6), "detail": grade.detail} if grade.verdict else {}
        )
        yield json.dumps(record | {"seconds": round(grade.seconds, 6)})


@program("openrlhf-cov grade")
def main(argv: list[str] | None = None) -> None:
    """Print the summary; exit status 2 with one line on stderr for a bad file or flag."""
    parser = Parser(prog="openrlhf-cov grade", about=__doc__)
    parser.add_argument("file", metavar="FILE", type=Path, help="JSON Lines, one response and its label per line")
    parser.add_argument("--response_key", default="response", help="key of the response (default: response)")
    parser.add_argument("--label_key", default="answer", help="key of the label (default: answer)")
    parser.add_argument(
        "--prompt_key",
        help=f"key of the prompt, which may have opened the thinking (default: {PROMPT_KEY}, where there is one)",
    )
    parser.add_argument("--output", type=Path, help="write every grade to this JSON Lines file")
    parser.add_argument("--compare", action="store_true", help="ask both graders, and show where they differ")
    add_config_arguments(parser, "rewards", RewardConfig)
    args = parser.parse_args(argv)
    config = RewardConfig.from_args(args)
    if args.output and args.output.resolve() == args.file.resolve():
        raise UsageError(f"--output {args.output} is the file of the responses; give another file")
    if args.output:
        check_file("--output", args.output, b'{"line": ')
    if args.compare and config.reward_grader != "strict":
        raise UsageError("--compare asks both graders; drop --reward_grader")
    require_grader("published" if args.compare else config.reward_grader)
    rows = read_rows(args.file, args.response_key, args.label_key, args.prompt_key)
    check_labels(args.file, rows, config)
    shared_pool(config.reward_workers)
    grades = in_threads(
        lambda row: sources.grade_label(row.response, row.label, config, prompt=row.prompt), config, rows
    )
    published = None
    if args.compare:  # Math-Verify is asked about wrong ones only
        published = in_threads(lambda row, of: sources.published_grade(of, row.label, config), config, rows, grades)
    if args.output:
        json_lines.write_lines(args.output, grade_lines(rows, grades, published))
    say(summary(rows, grades) + "\n")
    if published:
        say("\n" + comparison(rows, grades, published) + "\n")


def check_labels(path: Path, rows: list[GradeRow], config: RewardConfig) -> None:
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


def _row(
    path: Path, number: int, record: dict[str, Any], response_key: str, label_key: str, prompt_key: str | None
) -> GradeRow:
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
    return GradeRow(number, response, label, prompt)


if __name__ == "__main__":
    sys.exit(main())
