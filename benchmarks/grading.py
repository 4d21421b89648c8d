"""Compare our graders with those of other projects: agreement, pairs per second and the slowest pair.

The graders take turns on blocks of JSON Lines with `answer`, `gold`, `equal` and, if known, `prompt`. Prints one
Markdown table:

    git clone https://github.com/volcengine/verl
    git clone https://github.com/PRIME-RL/Entropy-Mechanism-of-RL
    python benchmarks/grading.py tests/rewards/maths/cases.jsonl tests/rewards/maths/problems.jsonl \\
        --verl verl --paper Entropy-Mechanism-of-RL

The graders of the others execute what they are given (SymPy's parser evaluates text): name no pairs that you would
not execute.
"""

import argparse
import importlib.util
import json
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from paper_grader import GRADER, MEMORY

from openrlhf_cov.rewards.maths.grading import grade, with_second_opinion
from openrlhf_cov.rewards.pool import WorkerCrashed, WorkerError, WorkerPool, WorkerTimeout

BLOCK = 50
VERL_RULE = "verl/utils/reward_score/math_reward.py"
# Seconds after which a verdict of OpenRLHF's or the paper's grader is given up: both hang on some texts.
LIMIT = 10.0

Grader = Callable[[str, str, str], bool]
"""Takes an answer, its label and its prompt."""


@dataclass
class Counts:
    """Verdicts on the pairs of one file."""

    right: int = 0
    false_positives: int = 0
    false_negatives: int = 0


@dataclass
class Result:
    """What one grader did so far. ``slowest`` is the time of its slowest pair."""

    seconds: float = 0.0
    slowest: float = 0.0
    by_file: dict[str, Counts] = field(default_factory=dict)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", help="JSON Lines; rows with a mode are left out")
    parser.add_argument("--without", default="hostile", help="group that is left out: other graders hang in it")
    parser.add_argument("--limit", type=int, default=0, help="pairs of each file, evenly spread; 0: all")
    parser.add_argument("--verl", type=Path, help="a checkout of verl, whose rule for MATH is graded as well")
    parser.add_argument("--paper", type=Path, help="a checkout of the paper's code, whose grader is graded as well")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    pairs = {path.stem: read_pairs(path, args.without, args.limit) for path in args.files}
    graders: dict[str, Grader] = {"strict": strict, "published": published, "Math-Verify": math_verify()}
    graders["OpenRLHF"] = in_pool("grading:openrlhf_accepts")
    if args.verl:
        graders["verl"] = verl(args.verl / VERL_RULE)
    if args.paper:
        graders["the paper's"] = in_pool("paper_grader:accepts", str((args.paper / GRADER).resolve(strict=True)))
    for grader in graders.values():
        grader("x+1", "1+x", "")  # starts the pools
    results = {name: Result(by_file={stem: Counts() for stem in pairs}) for name in graders}
    for stem, rows in pairs.items():
        for start in range(0, len(rows), BLOCK):
            for name, grader in graders.items():
                measure(results[name], stem, grader, rows[start : start + BLOCK])
            sys.stderr.write(f"\r{stem}: {start + BLOCK:,} of {len(rows):,} pairs")
    sys.stderr.write("\n")
    sys.stdout.write(report(results, {stem: len(rows) for stem, rows in pairs.items()}))


def read_pairs(path: Path, without: str, limit: int) -> list[dict]:
    """Return the rows of a file that are bare answers, or ``limit`` of them, evenly spread."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if "mode" not in row and row.get("group") != without]
    return rows[:: max(1, len(rows) // limit)] if limit else rows


def strict(answer: str, gold: str, prompt: str) -> bool:
    """Return the verdict of our grader."""
    return grade(f"\\boxed{{{answer}}}", gold, prompt=prompt).correct


def published(answer: str, gold: str, prompt: str) -> bool:
    """Return the verdict of our grader or, if it says wrong, of Math-Verify in the pool."""
    return with_second_opinion(grade(f"\\boxed{{{answer}}}", gold, prompt=prompt), gold).correct


def math_verify() -> Grader:
    """Return Math-Verify as its README uses it, with both sides in a box."""
    from math_verify import parse, verify

    def equal(answer: str, gold: str, prompt: str) -> bool:
        return verify(parse(f"\\boxed{{{gold}}}"), parse(f"\\boxed{{{answer}}}"))

    return equal


def openrlhf_accepts(answer: str, gold: str) -> bool:
    """Return the verdict of OpenRLHF's own grader, in a process of the pool."""
    from openrlhf.utils.math_utils import grade_answer

    return bool(grade_answer(answer.removeprefix("The answer is \\boxed{").removesuffix("}."), gold))


def in_pool(target: str, *first: str) -> Grader:
    """Return a grader that runs in a child process, with ``first`` before its arguments. Its errors are verdicts."""
    pool = WorkerPool(target, 1, memory_bytes=MEMORY, startup_seconds=900)

    def equal(answer: str, gold: str, prompt: str) -> bool:
        try:
            return bool(pool.call(*first, f"The answer is \\boxed{{{answer}}}.", gold, timeout=LIMIT))
        except (WorkerCrashed, WorkerError, WorkerTimeout):
            return False

    return equal


def verl(path: Path) -> Grader:
    """Return the rule that verl uses for MATH: equality of normalised strings."""
    spec = importlib.util.spec_from_file_location("verl_math", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def equal(answer: str, gold: str, prompt: str) -> bool:
        return module.compute_score(f"\\boxed{{{answer}}}", gold) > 0

    return equal


def measure(result: Result, stem: str, grader: Grader, block: list[dict]) -> None:
    """Add one block of a file to a grader's result."""
    counts = result.by_file[stem]
    for row in block:
        started = time.perf_counter()
        verdict = grader(row["answer"], row["gold"], row.get("prompt", ""))
        seconds = time.perf_counter() - started
        result.seconds += seconds
        result.slowest = max(result.slowest, seconds)
        counts.right += verdict == row["equal"]
        counts.false_positives += verdict and not row["equal"]
        counts.false_negatives += row["equal"] and not verdict


def report(results: dict[str, Result], sizes: dict[str, int]) -> str:
    """Return a Markdown table. Speed is also given as a ratio to Math-Verify's."""
    base = results["Math-Verify"].seconds
    total = sum(sizes.values())
    heads = [f"{stem}: {name}" for stem in sizes for name in ("agrees", "false positives", "false negatives")]
    lines = [
        ", ".join(f"{count:,} pairs of {stem}" for stem, count in sizes.items()),
        "",
        f"| grader | {' | '.join(heads)} | pairs/s | times Math-Verify | slowest pair, s |",
        "|---|" + "---:|" * (len(heads) + 3),
    ]
    for name, result in results.items():
        cells = []
        for stem, counts in result.by_file.items():
            cells.append(f"{counts.right / sizes[stem]:.1%}")
            cells += [f"{counts.false_positives:,}", f"{counts.false_negatives:,}"]
        cells += [f"{total / result.seconds:,.0f}", f"{base / result.seconds:,.1f}", f"{result.slowest:.2f}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
