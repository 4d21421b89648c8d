"""Compare our graders with Math-Verify's, OpenRLHF's and verl's: accuracy, pairs per second and the slowest pair.

The graders take turns on blocks of a file of JSON Lines with `answer`, `gold`, `equal` and, if known, `prompt`. Prints
Markdown:

    python benchmarks/grading.py tests/rewards/maths/cases.jsonl
    python benchmarks/grading.py CASES.jsonl --verl VERL/verl/utils/reward_score/math_reward.py
"""

import argparse
import importlib.util
import json
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from openrlhf_cov.rewards.maths.grading import grade, with_second_opinion

BLOCK = 50
# Answer, label and prompt.
Pair = tuple[str, str, str]


@dataclass
class Result:
    """Times and verdicts of one grader; ``slowest`` is the time of its slowest pair."""

    seconds: float = 0.0
    slowest: float = 0.0
    right: int = 0
    false_positives: int = 0
    false_negatives: int = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("file", type=Path, help="JSON Lines with answer, gold, equal; rows with a mode are left out")
    parser.add_argument("--without", default="hostile", help="group that is left out: upstream's grader hangs in it")
    parser.add_argument(
        "--verl", type=Path, help="the file math_reward.py of verl, whose rule is graded beside the others"
    )
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    rows = [json.loads(line) for line in args.file.read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if "mode" not in row and row.get("group") != args.without]
    graders = {"strict": strict, "published": published, "Math-Verify": math_verify(), "OpenRLHF": upstream()}
    if args.verl:
        graders["verl"] = verl(args.verl)
    for grader in graders.values():
        grader("x+1", "1+x", "")  # starts the pools
    results = {name: Result() for name in graders}
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        for name, grader in graders.items():
            measure(results[name], grader, block)
    sys.stdout.write(report(results, len(rows)))


def strict(answer: str, gold: str, prompt: str) -> bool:
    """Our grader."""
    return grade(f"\\boxed{{{answer}}}", gold, prompt=prompt).correct


def published(answer: str, gold: str, prompt: str) -> bool:
    """Our grader, and Math-Verify in the pool where ours says wrong."""
    return with_second_opinion(grade(f"\\boxed{{{answer}}}", gold, prompt=prompt), gold).correct


def math_verify() -> Callable[[str, str, str], bool]:
    """Math-Verify as its README uses it, with both sides in a box."""
    from math_verify import parse, verify

    def equal(answer: str, gold: str, prompt: str) -> bool:
        return verify(parse(f"\\boxed{{{gold}}}"), parse(f"\\boxed{{{answer}}}"))

    return equal


def upstream() -> Callable[[str, str, str], bool]:
    """OpenRLHF's own grader."""
    from openrlhf.utils.math_utils import grade_answer

    def equal(answer: str, gold: str, prompt: str) -> bool:
        try:
            return bool(grade_answer(answer, gold))
        except Exception:  # model text goes through SymPy's parser there, which raises anything
            return False

    return equal


def verl(path: Path) -> Callable[[str, str, str], bool]:
    """The rule that verl uses for MATH: equality of normalised strings."""
    spec = importlib.util.spec_from_file_location("verl_math", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def equal(answer: str, gold: str, prompt: str) -> bool:
        return module.compute_score(f"\\boxed{{{answer}}}", gold) > 0

    return equal


def measure(result: Result, grader: Callable[[str, str, str], bool], block: list[dict]) -> None:
    """Add one block to a grader's result."""
    for row in block:
        started = time.perf_counter()
        verdict = grader(row["answer"], row["gold"], row.get("prompt", ""))
        seconds = time.perf_counter() - started
        result.seconds += seconds
        result.slowest = max(result.slowest, seconds)
        result.right += verdict == row["equal"]
        result.false_positives += verdict and not row["equal"]
        result.false_negatives += row["equal"] and not verdict


def report(results: dict[str, Result], count: int) -> str:
    """A Markdown table; speed is also given as a ratio to Math-Verify's."""
    base = results["Math-Verify"].seconds
    lines = [
        f"{count} pairs",
        "",
        "| grader | correct | false positives | false negatives | pairs/s | times Math-Verify | slowest pair, s |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, result in results.items():
        lines.append(
            f"| {name} | {result.right / count:.1%} | {result.false_positives} | {result.false_negatives} "
            f"| {count / result.seconds:,.0f} | {base / result.seconds:.1f} | {result.slowest:.2f} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
