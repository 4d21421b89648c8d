"""Programs judged per second by warm sandboxes. Prints Markdown:

python benchmarks/code_rewards.py --programs 300 --workers 2
"""

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor

from openrlhf_cov.config import RewardConfig
from openrlhf_cov.rewards.code.rule import grade_code

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
    print("| tests of a program | programs/s |\n|---|---:|")
    with ThreadPoolExecutor(args.workers) as threads:
        for name, (tests, program) in TESTS.items():
            label = json.dumps(tests)
            different = [f"{program}\n# {name} {number}" for number in range(args.programs + args.workers)]
            judge = lambda text, label=label: grade_code(text, label, config)  # noqa: E731
            list(threads.map(judge, different[: args.workers]))  # the sandboxes start
            started = time.perf_counter()
            grades = list(threads.map(judge, different[args.workers :]))
            seconds = time.perf_counter() - started
            assert all(grade.correct and not grade.cached for grade in grades)
            print(f"| {name} | {args.programs / seconds:.0f} |")


if __name__ == "__main__":
    main()
