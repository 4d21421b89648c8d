"""Synchronous and asynchronous training in turns, on the embedded task; prints Markdown.

    python benchmarks/asynchronous.py --folder runs/tiny_task
    python benchmarks/asynchronous.py --table runs/asynchronous/results.jsonl      # of what was measured

``--folder`` holds what ``make demo`` makes. On a host with two cores, engine and policy of asynchronous training have
one each. In synchronous training they take turns on both cores, or on one (``OMP_NUM_THREADS=1``). All ways train on
the same number of samples with the same seeds. The reward is the mean over the last fifth of the steps, and its
differences are paired by seed. A benchmark that was broken off goes on where it ended.
"""

import argparse
import itertools
import json
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from race.race import command, measure_command, read, steps_of, task_of

from openrlhf_cov.experiments.study.seed_estimates import mean_over_seeds

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
QUEUE = ("--train.async_enable", "--train.async_queue_size")
# Way of training -> its flags, and variables of its environment.
SYNCHRONOUS: dict[str, tuple[Sequence[str], dict[str, str]]] = {
    "synchronous, all cores": ((), {}),
    "synchronous, one thread": ((), ONE_THREAD),
}
ASYNCHRONOUS: dict[str, tuple[Sequence[str], dict[str, str]]] = {
    "asynchronous, queue of 1": ((*QUEUE, "1"), {}),
    "asynchronous, queue of 2": ((*QUEUE, "2"), {}),
}
MODES = SYNCHRONOUS | ASYNCHRONOUS


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/tiny_task"))
    parser.add_argument("--output", type=Path, default=Path("runs/asynchronous"))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--method", default="kl_cov", help="a name of race.py's table")
    parser.add_argument("--table", type=Path, help="print the table of these results")
    args = parser.parse_args()
    if args.table:
        print(table(read(args.table)))
        return
    if "OMP_NUM_THREADS" in os.environ:
        parser.error("unset OMP_NUM_THREADS: the modes have threads of their own")
    args.task = "embedded"
    args.prompts = None
    args.output.mkdir(parents=True, exist_ok=True)
    results = args.output / "results.jsonl"
    for seed in args.seeds:
        for mode in MODES:
            if any((row["mode"], row["seed"]) == (mode, seed) for row in read(results)):
                continue
            row = {"mode": mode, "seed": seed, "steps": args.steps} | measure(mode, seed, args)
            with results.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), file=sys.stderr, flush=True)
    print(table(read(results)))


def measure(mode: str, seed: int, args: argparse.Namespace) -> dict[str, float]:
    """Return what one run took, its reward at the end, and its staleness."""
    folder = args.output / f"{mode.replace(',', '').replace(' ', '-')}-{seed}"
    argv, variables = command(args.method, args, folder)
    flags, more = MODES[mode]
    argv = [*argv, *flags, "--train.seed", str(seed)]
    found = measure_command(mode, argv, variables | more, folder, task_of(args).warm_up)
    steps = steps_of((folder / "log.txt").read_text(errors="replace"))
    last = steps[-(len(steps) // 5) :]
    return found | {
        "reward": statistics.mean(step["rollout/reward_mean"] for step in last),
        "entropy": statistics.mean(step["entropy/mean"] for step in last),
        "staleness": statistics.mean(step.get("sampling/staleness_mean", 0.0) for step in steps),
    }


# Heading -> name in a row of the results, and how its numbers are printed.
COLUMNS = {
    "s/step": ("step", ".2f"),
    "generation": ("timing/generation", ".2f"),
    "scoring": ("timing/make_experience", ".2f"),
    "training": ("timing/ppo_train", ".2f"),
    "CPU s/step": ("cpu", ".2f"),
    "tokens/s": ("tokens", ",.0f"),
    "staleness": ("staleness", ".2f"),
    "reward at the end": ("reward", ".2f"),
    "entropy at the end": ("entropy", ".2f"),
}


def table(rows: list[dict]) -> str:
    """Return medians over the seeds with the lowest and the highest, and differences that are paired by seed."""
    lines = [f"| | {' | '.join(COLUMNS)} | runs |", "|---" + "|---:" * (len(COLUMNS) + 1) + "|"]
    by_mode = {mode: {row["seed"]: row for row in rows if row["mode"] == mode} for mode in MODES}
    for mode, runs in by_mode.items():
        if not runs:
            continue
        cells = []
        for name, style in COLUMNS.values():
            values = [run[name] for run in runs.values()]
            low = format(min(values), style)
            high = format(max(values), style)
            cells.append(format(statistics.median(values), style) + (f" ({low}–{high})" if low != high else ""))
        lines.append(f"| {mode} | {' | '.join(cells)} | {len(runs)} |")
    lines.append("")
    for mode, other in itertools.product(ASYNCHRONOUS, SYNCHRONOUS):
        runs, others = by_mode[mode], by_mode[other]
        seeds = sorted(runs.keys() & others.keys())
        if len(seeds) < 2:
            continue
        gains = [runs[seed]["tokens"] / others[seed]["tokens"] for seed in seeds]
        change = mean_over_seeds([runs[seed]["reward"] - others[seed]["reward"] for seed in seeds])
        lines.append(
            f"- {mode}, against {other}: {min(gains):.2f} to {max(gains):.2f} times the tokens per second; reward "
            f"{change.estimate:+.2f} [{change.low:+.2f}, {change.high:+.2f}] (95 %, paired by seed)."
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
