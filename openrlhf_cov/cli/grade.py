"""``python -m openrlhf_cov.cli.grade FILE.jsonl``: grade a file of responses, to check a reward before training."""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from openrlhf_cov.cli.arguments import add_config_arguments
from openrlhf_cov.config import RewardConfig
from openrlhf_cov.errors import RunStopped, UsageError
from openrlhf_cov.rewards import sources
from openrlhf_cov.rewards.grading import Grade
from openrlhf_cov.rewards.pool import shared_pool
from openrlhf_cov.utils.json_lines import parse_object, write_lines
from openrlhf_cov.utils.terminal import Parser, refuse, say

SLOWEST = 5


@dataclass(frozen=True)
class Row:
    """One line of the file: a response and the label it is graded against."""

    line: int
    response: str
    label: Any


def read_rows(path: Path, response_key: str, label_key: str) -> list[Row]:
    """The rows of a JSON Lines file. Raises UsageError, naming the line, for one that is not as it should be."""
    rows = []
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    rows.append(_row(f"{path}, line {number}", number, line, response_key, label_key))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    if not rows:
        raise UsageError(f"{path} has no rows")
    return rows


def grade_rows(rows: list[Row], config: RewardConfig) -> list[Grade]:
    """The grade of every row, in order, with a progress bar on stderr."""
    with ThreadPoolExecutor(config.reward_workers) as threads:
        graded = threads.map(lambda row: sources.grade_label(row.response, row.label, config), rows)
        return list(tqdm(graded, total=len(rows), desc="grading", unit="response"))


def summary(rows: list[Row], grades: list[Grade]) -> str:
    """Counts by status, and the slowest rows."""
    counts = Counter("correct" if grade.correct else "wrong" for grade in grades if grade.status == "graded")
    counts |= Counter(grade.status for grade in grades if grade.status != "graded")
    lines = [f"{'status':<12}{'responses':>10}{'share':>8}"]
    lines += [f"{status:<12}{count:>10,}{count / len(grades):>8.1%}" for status, count in counts.most_common()]
    slowest = sorted(zip(rows, grades, strict=True), key=lambda pair: -pair[1].seconds)[:SLOWEST]
    lines += ["", f"{'slowest':<12}{'seconds':>10}  answer"]
    for row, grade in slowest:
        answer = " ".join((grade.answer or "").split())[:60]
        lines.append(f"{f'line {row.line}':<12}{grade.seconds:>10.3f}  {answer} ({grade.status})")
    return "\n".join(lines)


def grade_lines(rows: list[Row], grades: list[Grade]) -> Iterator[str]:
    """One JSON object per row: line, correct, status, answer, seconds."""
    for row, grade in zip(rows, grades, strict=True):
        record = {"line": row.line, "correct": grade.correct, "status": grade.status, "answer": grade.answer}
        yield json.dumps(record | {"seconds": round(grade.seconds, 6)})


def main(argv: list[str] | None = None) -> int:
    """Print the summary; exit status 2 with one line on stderr for a bad file or flag."""
    parser = Parser(prog="grade", description=__doc__.partition(": ")[2])
    parser.add_argument("file", type=Path, help="JSON Lines, one response and its label per line")
    parser.add_argument("--response_key", default="response", help="key of the response (default: response)")
    parser.add_argument("--label_key", default="answer", help="key of the label (default: answer)")
    parser.add_argument("--output", type=Path, help="write every grade to this JSON Lines file")
    add_config_arguments(parser, "rewards", RewardConfig)
    args = parser.parse_args(argv)
    try:
        config = RewardConfig.from_args(args)
        rows = read_rows(args.file, args.response_key, args.label_key)
        check_labels(args.file, rows, config)
        shared_pool(config.reward_workers)
        grades = grade_rows(rows, config)
        if args.output:
            write_lines(args.output, grade_lines(rows, grades))
    except (UsageError, RunStopped, ValueError, OSError) as error:
        return refuse("grade", error)
    say(summary(rows, grades) + "\n")
    return 0


def check_labels(path: Path, rows: list[Row], config: RewardConfig) -> None:
    """Raises UsageError for the first label that cannot be graded."""
    for row in rows:
        try:
            sources.check_label(row.label, config)
        except ValueError as error:
            raise UsageError(f"{path}, line {row.line}: the label {row.label!r}: {error}") from error


def _row(place: str, number: int, line: bytes, response_key: str, label_key: str) -> Row:
    try:
        record = parse_object(line)
    except ValueError as error:
        raise UsageError(f"{place}: {error}") from error
    for flag, key in (("--response_key", response_key), ("--label_key", label_key)):
        if key not in record:
            raise UsageError(f"{place} has no key {key!r}; name it with {flag}")
    response, label = record[response_key], record[label_key]
    if not isinstance(response, str):
        raise UsageError(f"{place}: {response_key!r} is {type(response).__name__}, not a string")
    if "source" in record and not isinstance(label, dict):
        label = {"answer": label, "source": record["source"]}
    return Row(number, response, label)


if __name__ == "__main__":
    sys.exit(main())
