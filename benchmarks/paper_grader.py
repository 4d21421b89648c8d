"""Measure how often our graders agree with the grader that the paper trained and evaluated with.

That grader is a file of the authors' repository, which is not a part of this one:

    git clone https://github.com/PRIME-RL/Entropy-Mechanism-of-RL
    python benchmarks/paper_grader.py Entropy-Mechanism-of-RL --labels D/*.jsonl \\
        --cases tests/rewards/maths/cases.jsonl

Each response is "The answer is \\boxed{...}." and is graded by all three. Of a case file (answer, gold, equal) it
boxes the answers; of problems (answer) it boxes the label itself, the label of the next problem of the file, and the
label with its last digit changed by one. Prints Markdown; --output FILE gets the pairs on which graders differ.

The file executes what it is given (SymPy's parser evaluates text): name no pairs that you would not execute. Its time
limits, 1 and 5 seconds, count CPU time here, so that a busy machine changes no verdict.
"""

import argparse
import importlib.util
import json
import logging
import re
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from openrlhf_cov.rewards.maths.grading import grade, with_second_opinion
from openrlhf_cov.rewards.pool import WorkerCrashed, WorkerError, WorkerPool, WorkerTimeout

GRADER = "verl/utils/reward_score/prime_math/__init__.py"
# Seconds for a verdict of the paper's grader, after which a response counts as incorrect, as in its code. Our graders
# get the same time, because a busy machine is no verdict.
LIMIT = 300.0
MEMORY = 4 << 30


@dataclass(frozen=True)
class Pair:
    """A response's answer and the label; ``equal`` is what a person said, None where nobody did."""

    kind: str
    group: str
    response: str
    gold: str
    equal: bool | None = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("checkout", type=Path, help="the authors' repository")
    parser.add_argument("--cases", type=Path, nargs="*", default=[], help="JSON Lines with answer, gold, equal")
    parser.add_argument("--labels", type=Path, nargs="*", default=[], help="JSON Lines with answer")
    parser.add_argument("--without", default="hostile", help="group of the cases that is left out")
    parser.add_argument("--limit", type=int, default=0, help="problems of each file, spread evenly; 0: all")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, help="JSON Lines, the pairs on which graders differ")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    file = (args.checkout / GRADER).resolve(strict=True)
    pairs = [pair for path in args.cases for pair in cases(path, args.without)]
    pairs += [pair for path in args.labels for pair in labels(path, args.limit)]
    with (
        WorkerPool("paper_grader:accepts", args.threads, memory_bytes=MEMORY, startup_seconds=900) as pool,
        ThreadPoolExecutor(args.threads) as threads,
    ):
        verdicts = list(threads.map(lambda pair: judged(pair, pool, file), pairs))
    if args.output:
        differing = (row(*each) for each in zip(pairs, verdicts, strict=True) if len(set(each[1])) > 1)
        args.output.write_text("".join(f"{json.dumps(each, ensure_ascii=False)}\n" for each in differing), "utf-8")
    sys.stdout.write(report(pairs, verdicts))


def cases(path: Path, without: str) -> Iterator[Pair]:
    """Bare answers of a case file in a box, and its responses that have one."""
    for line in path.read_text("utf-8").splitlines():
        each = json.loads(line)
        if each["group"] != without and each.get("mode", "boxed") == "boxed":
            response = each["answer"] if "mode" in each else boxed(each["answer"])
            kind = "cases, labelled equal" if each["equal"] else "cases, labelled different"
            yield Pair(kind, each["group"], response, each["gold"], each["equal"])


def labels(path: Path, limit: int) -> Iterator[Pair]:
    """Three answers to each problem of a file. Nobody has said whether the second is wrong; mostly it is."""
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    step = max(1, len(rows) // limit) if limit else 1
    for number in range(0, len(rows), step):
        gold = rows[number]["answer"]
        after = rows[(number + 1) % len(rows)]["answer"]
        yield Pair("the label", path.stem, boxed(gold), gold)
        if after != gold:
            yield Pair("the next problem's label", path.stem, boxed(after), gold)
        if (near := near_miss(gold)) != gold:
            yield Pair("the last digit changed", path.stem, boxed(near), gold)


def near_miss(answer: str) -> str:
    """The answer with its last digit one higher, 9 becoming 8; as it is where it has no digit."""
    return re.sub(r"\d(?=\D*$)", lambda digit: str(int(digit[0]) + 1) if digit[0] != "9" else "8", answer)


def boxed(answer: str) -> str:
    return f"The answer is \\boxed{{{answer}}}."


def judged(pair: Pair, pool: WorkerPool, file: Path) -> tuple[bool, bool, bool]:
    """Verdicts of strict, of published and of the paper's grader, whose errors are a wrong answer, as there."""
    ours = grade(pair.response, pair.gold, timeout=LIMIT)
    lenient = with_second_opinion(ours, pair.gold, timeout=LIMIT)
    try:
        theirs = pool.call(str(file), pair.response, pair.gold, timeout=LIMIT)
    except (WorkerCrashed, WorkerError, WorkerTimeout):
        theirs = False
    return ours.correct, lenient.correct, theirs


def accepts(file: str, response: str, gold: str) -> bool:
    """The paper's grader, in a process of the pool."""
    return bool(_module(file).compute_score(response, gold)["acc"])


@cache
def _module(file: str):
    """Imported under time limits that count CPU time: their alarms are SIGALRM's, of wall-clock time."""
    signal.SIGALRM = signal.SIGPROF
    signal.alarm = lambda seconds: signal.setitimer(signal.ITIMER_PROF, seconds)
    warnings.simplefilter("ignore")
    spec = importlib.util.spec_from_file_location("prime_math", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row(pair: Pair, verdicts: tuple[bool, bool, bool]) -> dict:
    named = dict(zip(("strict", "published", "paper"), verdicts, strict=True))
    return {"kind": pair.kind, "group": pair.group, "response": pair.response, "gold": pair.gold, **named}


def report(pairs: list[Pair], verdicts: list[tuple[bool, bool, bool]]) -> str:
    """A Markdown table, a line for each kind of pairs."""
    lines = [
        "| pairs | | strict accepts | published accepts | the paper's accepts | strict agrees | it alone, the paper's "
        "alone | published agrees | it alone, the paper's alone |",
        "|---|" + "---:|" * 8,
    ]
    for kind in dict.fromkeys(pair.kind for pair in pairs):
        of_kind = [each for pair, each in zip(pairs, verdicts, strict=True) if pair.kind == kind]
        accepted = [sum(each) for each in zip(*of_kind, strict=True)]
        cells = [kind, len(of_kind), *accepted, *against(of_kind, 0), *against(of_kind, 1)]
        lines.append("| " + " | ".join(f"{each:,}" if isinstance(each, int) else each for each in cells) + " |")
    return "\n".join(lines) + "\n"


def against(verdicts: list[tuple[bool, bool, bool]], ours: int) -> tuple[str, str]:
    """Return how often one of our graders agrees with the paper's, and how often each accepts alone."""
    found = Counter((each[ours], each[2]) for each in verdicts)
    agreed = found[True, True] + found[False, False]
    return f"{agreed / len(verdicts):.2%}", f"{found[True, False]:,}, {found[False, True]:,}"


if __name__ == "__main__":
    main()
