"""Train a small model on this machine with Ray, vLLM and DeepSpeed, and print a table of results.

The command makes an embedded task, starts its own Ray, trains, and scores the policy on held-out problems before and
after. --method all trains with each method in turn, with one seed and, as the entropy law assumes, without a KL term
toward the base policy; it writes one report.
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
        help="method to train with; all: each method in turn (default: kl_cov)",
    )
    parser.add_argument(
        "--steps", type=int, default=40, help=f"global steps of {PROMPTS} prompts x {SAMPLES} samples (default: 40)"
    )
    about = "\n".join(f"{name}: {task.about}" for name, task in TINY_TASKS.items())
    parser.add_argument(
        "--task", choices=tuple(TINY_TASKS), default="addition", help=f"embedded task (default: addition)\n{about}"
    )
    folders = ", ".join(str(task.folder) for task in TINY_TASKS.values())
    parser.add_argument("--folder", type=Path, default=None, help=f"folder of the task (default: {folders})")
    parser.add_argument("--output", type=Path, default=None, help="folder of the run (default: runs/demo-METHOD-TIME)")
    args = parser.parse_args()
    args.folder = args.folder or TINY_TASKS[args.task].folder
    if args.steps < 1:
        parser.error(f"--steps {args.steps}: must be at least 1")
    args.output = args.output or Path("runs") / f"demo-{args.method}-{datetime.now():%Y%m%d-%H%M%S}"
    return args


if __name__ == "__main__":
    sys.exit(main())
