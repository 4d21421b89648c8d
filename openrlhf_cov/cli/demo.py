"""Train a small model with a covariance method on this machine, from nothing to a table.

The command makes an embedded task, starts a Ray of its own, trains, and scores the policy on held-out problems before
and after. It writes into the folder --output. --method all trains with each method in turn, with one seed and without
the KL term to the untrained policy, as the entropy law is stated, and draws one report.
"""

import argparse
import sys
from datetime import datetime
from pathlib import Path

from openrlhf_cov.cli.entry_point import program
from openrlhf_cov.experiments.tiny_task.catalogue import TINY_TASKS
from openrlhf_cov.experiments.tiny_task.demo_run import ALL, run_demo
from openrlhf_cov.experiments.tiny_task.demo_tables import next_steps, result_table
from openrlhf_cov.experiments.tiny_task.demo_training import METHOD_FLAGS, PROMPTS, SAMPLES
from openrlhf_cov.utils.terminal import Parser, say


@program("openrlhf-cov demo")
def main() -> None:
    """Run the demo and print its table; exit status 1 if training fails, 2 for a bad setting, 130 when interrupted."""
    args = parse_args()
    result = run_demo(args.method, task_name=args.task, folder=args.folder, steps=args.steps, output=args.output)
    say(result_table(result))
    say(next_steps(result))


def parse_args() -> argparse.Namespace:
    """Parse the flags of the demo."""
    parser = Parser(prog="openrlhf-cov demo", about=__doc__)
    parser.add_argument(
        "--method",
        choices=(*METHOD_FLAGS, ALL),
        default="kl_cov",
        help="method that trains; all: each of them, one after the other (default: kl_cov)",
    )
    parser.add_argument(
        "--steps", type=int, default=40, help=f"global steps, each {PROMPTS} prompts x {SAMPLES} samples (default: 40)"
    )
    about = "\n".join(f"{name}: {task.about}" for name, task in TINY_TASKS.items())
    parser.add_argument("--task", choices=tuple(TINY_TASKS), default="addition", help=about)
    folders = ", ".join(str(task.folder) for task in TINY_TASKS.values())
    parser.add_argument("--folder", type=Path, default=None, help=f"of the task; default: {folders}")
    parser.add_argument("--output", type=Path, default=None, help="default: runs/demo-<method>-<time>")
    args = parser.parse_args()
    args.folder = args.folder or TINY_TASKS[args.task].folder
    if args.steps < 1:
        parser.error(f"--steps {args.steps}: must be at least 1")
    args.output = args.output or Path("runs") / f"demo-{args.method}-{datetime.now():%Y%m%d-%H%M%S}"
    return args


if __name__ == "__main__":
    sys.exit(main())
