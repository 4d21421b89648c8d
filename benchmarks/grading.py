"""Graded pairs per second and agreement with the labels of a case file, beside Math-Verify and upstream's grader.

The graders take turns on blocks of the same file. Prints Markdown:

    python benchmarks/grading.py tests/rewards/maths/cases.jsonl
"""

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from openrlhf_cov.rewards.grades import Grade
from openrlhf_cov.rewards.maths.grading import answers_equal, with_second_opinion

BLOCK = 50
Pair = tuple[str, str]


@dataclass
class Result:
    """What one grader did so far."""

    seconds: float = 0.0
    right: int = 0
    false_positives: int = 0
    false_negatives: int = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("file", type=Path, help="JSON Lines with answer, gold, equal; rows with a mode are left out")
    parser.add_argument("--without", default="hostile", help="group that is left out: upstream's grader hangs in it")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    rows = [json.loads(line) for line in args.file.read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if "mode" not in row and row.get("group") != args.without]
    graders = {"strict, one thread": one_by_one(answers_equal), "strict, two threads": in_two_threads(answers_equal)}
    graders |= {"published, one thread": one_by_one(published), "published, two threads": in_two_threads(published)}
    graders |= {"Math-Verify": one_by_one(math_verify()), "upstream": one_by_one(upstream())}
    graders["published, two threads"]([("x+1", "1+x"), ("3+2", "5")])  # starts both pools
    results = {name: Result() for name in graders}
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        for name, grader in graders.items():
            measure(results[name], grader, block)
    sys.stdout.write(report(results, len(rows)))


def one_by_one(equal: Callable[[str, str], bool]) -> Callable[[list[Pair]], list[bool]]:
    """A grader that takes pairs one after the other."""
    return lambda pairs: [equal(*pair) for pair in pairs]


def in_two_threads(equal: Callable[[str, str], bool]) -> Callable[[list[Pair]], list[bool]]:
    """A grader that takes pairs in two threads, over warm pools of two processes."""

    def grade(pairs: list[Pair]) -> list[bool]:
        with ThreadPoolExecutor(2) as threads:
            return list(threads.map(lambda pair: equal(*pair), pairs))

    return grade


def published(answer: str, gold: str) -> bool:
    """Our grader, and Math-Verify in the pool where ours says wrong."""
    return with_second_opinion(Grade(answers_equal(answer, gold), "graded", answer), gold).correct


def math_verify() -> Callable[[str, str], bool]:
    """Math-Verify as its README uses it, with both sides in a box."""
    from math_verify import parse, verify

    def equal(answer: str, gold: str) -> bool:
        return verify(parse(f"\\boxed{{{gold}}}"), parse(f"\\boxed{{{answer}}}"))

    return equal


def upstream() -> Callable[[str, str], bool]:
    """OpenRLHF's own grader."""
    from openrlhf.utils.math_utils import grade_answer

    def equal(answer: str, gold: str) -> bool:
        try:
            return bool(grade_answer(answer, gold))
        except Exception:  # model text goes through SymPy's parser there, which raises anything
            return False

    return equal


def measure(result: Result, grader: Callable[[list[Pair]], list[bool]], block: list[dict]) -> None:
    """Add one block to a grader's result."""
    started = time.perf_counter()
    verdicts = grader([(row["answer"], row["gold"]) for row in block])
    result.seconds += time.perf_counter() - started
    for row, verdict in zip(block, verdicts, strict=True):
        result.right += verdict == row["equal"]
        result.false_positives += verdict and not row["equal"]
        result.false_negatives += row["equal"] and not verdict


def report(results: dict[str, Result], count: int) -> str:
    """A Markdown table; speed is also given as a ratio to Math-Verify's."""
    base = results["Math-Verify"].seconds
    lines = [
        f"{count} pairs",
        "",
        "| grader | right | false positives | false negatives | pairs/s | times Math-Verify |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, result in results.items():
        lines.append(
            f"| {name} | {result.right / count:.1%} | {result.false_positives} | {result.false_negatives} "
            f"| {count / result.seconds:,.0f} | {base / result.seconds:.1f} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
