"""Synchronous and asynchronous training in turns, on the embedded task; prints Markdown.

    OMP_NUM_THREADS=1 python benchmarks/asynchronous.py --folder runs/tiny_task
    python benchmarks/asynchronous.py --table runs/asynchronous/results.jsonl      # of what was measured

``--folder`` holds what ``make demo`` makes. With one thread per process, engine and policy have a core each on a host
with two cores. Both ways train on the same number of samples with the same seeds. The reward is the mean over the last
fifth of the steps, and its difference is paired by seed. A benchmark that was broken off goes on where it ended.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

from race.race import command, measure_command, read, steps_of, task_of

from openrlhf_cov.experiments.study.seed_estimates import mean_over_seeds

MODES = {
    "synchronous": [],
    "asynchronous, queue of 1": ["--train.async_enable", "--train.async_queue_size", "1"],
}


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
    folder = args.output / f"{mode.split(',')[0]}-{seed}"
    argv, variables = command(args.method, args, folder)
    argv = [*argv, *MODES[mode], "--train.seed", str(seed)]
    found = measure_command(mode, argv, variables, folder, task_of(args).warm_up)
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
    synchronous, asynchronous = by_mode.values()
    seeds = sorted(synchronous.keys() & asynchronous.keys())
    if len(seeds) > 1:
        gains = [asynchronous[seed]["tokens"] / synchronous[seed]["tokens"] for seed in seeds]
        change = mean_over_seeds([asynchronous[seed]["reward"] - synchronous[seed]["reward"] for seed in seeds])
        lines.append("")
        lines.append(f"Tokens per second: {min(gains):.2f} to {max(gains):.2f} times those of synchronous training.")
        lines.append(f"Reward: {change.estimate:+.2f} [{change.low:+.2f}, {change.high:+.2f}] (95 %, paired by seed).")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
