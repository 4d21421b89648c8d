"""Programs judged per second by warm sandboxes, and the CPU time that one takes, which depends less on what else the
machine does. Prints Markdown:

python benchmarks/code_rewards.py --programs 300 --workers 2
"""

import argparse
import json
import random
import time
from concurrent.futures import ThreadPoolExecutor

import psutil

from openrlhf_cov.config import RewardConfig
from openrlhf_cov.experiments.tiny_task.programs import Exercise, write_program
from openrlhf_cov.rewards.code.rule import grade_code

EXERCISE = Exercise(("above", 3), ("times", 4), ("first", 2))
TESTS = {
    "stdin, one test": ({"stdin": [["1 2\n", "3\n"]]}, "a, b = map(int, input().split())\nprint(a + b)"),
    "stdin, ten tests": (
        {"stdin": [[f"{n} 2\n", f"{n + 2}\n"] for n in range(10)]},
        "print(sum(map(int, input().split())))",
    ),
    "function, ten calls": (
        {"function": "add", "calls": [[[n, 2], n + 2] for n in range(10)]},
        "def add(a, b): return a + b",
    ),
    "a one-line program of the embedded task": (
        json.loads(EXERCISE.label),
        write_program(EXERCISE, random.Random(0), careless=False),
    ),
    "ten assertions": (
        {"asserts": [f"assert add({n}, 2) == {n + 2}" for n in range(10)]},
        "def add(a, b): return a + b",
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--programs", type=int, default=300)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    config = RewardConfig(reward_source="code", reward_workers=args.workers, code_extract="whole")
    print("| tests of a program | programs/s | ms of CPU a program |\n|---|---:|---:|")
    with ThreadPoolExecutor(args.workers) as threads:
        for name, (tests, program) in TESTS.items():
            label = json.dumps(tests)
            different = [f"{program}\n# {name} {number}" for number in range(args.programs + args.workers)]
            judge = lambda text, label=label: grade_code(text, label, config)  # noqa: E731
            list(threads.map(judge, different[: args.workers]))  # the sandboxes start
            started = time.perf_counter()
            used = cpu_seconds()
            grades = list(threads.map(judge, different[args.workers :]))
            seconds = time.perf_counter() - started
            assert all(grade.correct and not grade.cached for grade in grades)
            used = 1000 * (cpu_seconds() - used) / args.programs
            print(f"| {name} | {args.programs / seconds:.0f} | {used:.1f} |", flush=True)


def cpu_seconds() -> float:
    """Return the CPU seconds of this process, its workers, their sandboxes and the programs that ended in these."""
    here = psutil.Process()
    times = [each.cpu_times() for each in (here, *here.children(recursive=True))]
    return sum(each.user + each.system + each.children_user + each.children_system for each in times)


if __name__ == "__main__":
    main()
