"""Train the base policies that come with the package and write them to it, about five CPU minutes in all.

    OMP_NUM_THREADS=1 python scripts/write_base_policies.py [--tasks shortcut commands code addition] [--output FOLDER]

Run it after a change of an embedded task, of its tokenizer or of the settings of its base policy. The long test of
``tests/experiments/tiny_task/test_shipped_policies.py`` does the same and compares the behaviour of the policies.
"""

import argparse
import time
from pathlib import Path

import torch

from openrlhf_cov.experiments.lab.tasks import SHIPPED_SEED, TASKS
from openrlhf_cov.experiments.tiny_task.shipped_policies import FOLDER, WORDS, write_shipped_policy


def main() -> None:
    """Train and write the policies that the flags name."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", choices=tuple(WORDS), default=tuple(WORDS))
    parser.add_argument("--output", type=Path, default=FOLDER, help="default: the folder in the package")
    args = parser.parse_args()
    # The number of threads changes how sums are rounded, and so the weights.
    torch.set_num_threads(1)
    for name in args.tasks:
        started = time.process_time()
        task = TASKS[name]()
        model, _ = task.make(SHIPPED_SEED)
        path = write_shipped_policy(model, name, SHIPPED_SEED, task.policy, args.output)
        seconds = time.process_time() - started
        print(f"{path}: {path.stat().st_size:,} bytes, {seconds:.0f} CPU seconds", flush=True)


if __name__ == "__main__":
    main()
