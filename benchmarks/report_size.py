"""A run of 20,000 steps: seconds and memory of its report, in a process of its own. Prints Markdown.

The file has all our metrics on every line, some 2 KB (its lines repeat, but for step, time, entropy and reward).

    OMP_NUM_THREADS=1 python benchmarks/report_size.py
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from openrlhf_cov.analysis.report.curves import COLUMNS

# Different lines of the log.
LINES = 500
# Metrics that no report reads.
OTHERS = 20


def write_run(folder: Path, steps: int) -> int:
    """A run that follows the law; the size of its file in bytes."""
    rng = np.random.default_rng(0)
    names = [name for name in COLUMNS if name not in ("time", "reward", "entropy/mean")]
    names += [f"other/metric_{number}" for number in range(OTHERS)]
    tails = [json.dumps(dict(zip(names, row, strict=True)))[1:] for row in rng.random((LINES, len(names))).tolist()]
    entropy = 0.05 + np.exp(-6 * np.arange(steps) / steps) * np.exp(0.05 * rng.standard_normal(steps))
    reward = 0.8 - 0.25 * np.exp(entropy) + 0.02 * rng.standard_normal(steps)
    folder.mkdir(parents=True)
    with (folder / "metrics.jsonl").open("w", encoding="utf-8") as file:
        for step, (h, r) in enumerate(zip(entropy.tolist(), reward.tolist(), strict=True), start=1):
            head = f'{{"step": {step}, "time": {1.7e9 + 10 * step}, "entropy/mean": {h!r}, "reward": {r!r}, '
            file.write(head + tails[step % LINES] + "\n")
    return (folder / "metrics.jsonl").stat().st_size


def measure(command: list[str]) -> tuple[float, float, float]:
    """Seconds by the clock and of the CPU, and peak bytes."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, process.returncode, usage = os.wait4(process.pid, 0)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed")
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime, 1024 * usage.ru_maxrss


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument(
        "--folder", type=Path, help="where the run is written, 2 KB per step (default: a temporary one)"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        run = Path(temporary, "run")
        output = Path(temporary, "report")
        size = write_run(run, args.steps)
        report = [sys.executable, "-m", "openrlhf_cov.cli.report", str(run)]
        rows = {
            "numbers alone": [*report, "--export", str(Path(temporary, "law.json"))],
            "figures": [*report, "--output", str(output), "--no_page"],
            "figures and page": [*report, "--output", str(output)],
        }
        sys.stdout.write(f"{args.steps:,} steps, {size / 1e6:.0f} MB\n\n")
        sys.stdout.write("| report | seconds | CPU seconds | peak memory |\n|---|---|---|---|\n")
        for name, command in rows.items():
            elapsed, cpu, memory = measure(command)
            sys.stdout.write(f"| {name} | {elapsed:.1f} | {cpu:.1f} | {memory / 1e6:.0f} MB |\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
