"""Print the commands that reproduce a figure or table of arXiv 2505.22617: runs, evaluations and report.

--run executes the commands one after the other. --dry_run only checks each command: flags, benchmarks, training data,
output folders, and the memory of a training run. --scale tiny uses embedded tasks, on any host, for the figures and
tables that make sense there.
"""

import argparse
import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path

from openrlhf_cov.cli.entry_point import program
from openrlhf_cov.cli.main import COMMANDS
from openrlhf_cov.errors import UsageError
from openrlhf_cov.experiments.reproduction import paper_commands
from openrlhf_cov.experiments.reproduction.carry_out import carry_out, check_tiny, finish
from openrlhf_cov.experiments.reproduction.exhibits import FIGURES, TABLES, exhibit
from openrlhf_cov.experiments.reproduction.reproduction_plan import (
    SCRIPTS,
    Command,
    Reproduction,
    flags_of,
    maker_of_missing,
    outputs_of,
    shell_line,
)
from openrlhf_cov.utils.output_folders import check_folder
from openrlhf_cov.utils.terminal import Parser, refuse, say

NAME = "openrlhf-cov reproduce"
DATA_DIR = Path("/data")
LAYOUT_OF_RUN = ("--dry_run", "--dry_run_gpus", "8", "--dry_run_gpu_memory", "80", "--dry_run_nodes")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = Parser(prog=NAME, about=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--figure", type=int, choices=tuple(FIGURES), metavar="N", help="figure of the paper, 1 to 14")
    which.add_argument("--table", type=int, choices=tuple(TABLES), metavar="N", help="table of the paper, 1 or 2")
    parser.add_argument(
        "--scale",
        choices=("paper", "tiny"),
        default="paper",
        help="paper: the recipes, on GPUs; tiny: embedded tasks, on any host (default: paper)",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--run", action="store_true", help="execute the commands; finished runs are kept")
    what.add_argument("--dry_run", action="store_true", help="check every command and start nothing")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="folder of runs and reports (default: /checkpoints, or runs/reproduce at the tiny scale)",
    )
    parser.add_argument(
        "--data_dir",
        type=Path,
        metavar="DIR",
        help=f"folder of the training sets and of eval/, at the paper's scale (default: {DATA_DIR})",
    )
    parser.add_argument(
        "--steps",
        type=int,
        metavar="N",
        help="global steps of a run at the tiny scale (default: 200 in the lab, 40 through Ray)",
    )
    parser.add_argument(
        "--collect",
        type=Path,
        metavar="DIR",
        help="with --run: copy figures and numbers to this folder, as figure8_NAME",
    )
    return parser


@program(NAME)
def main(argv: list[str] | None = None) -> int:
    """Print, check or carry out the commands.

    Returns:
        The exit status: 2 with one line for bad input or a command that would not run, 1 for a command that failed,
        130 or 143 if interrupted.
    """
    args = build_parser().parse_args(argv)
    plan = plan_of(args)
    say(f"# {plan.number}: {plan.shown.title}\n")
    if args.dry_run:
        return dry_run(plan)
    if not plan.is_tiny:
        say(f"# from {SCRIPTS.parent}, where a Ray runs\n")
        say("".join(f"# yours to bring: {path}\n" for path in paper_commands.brought(plan.shown, plan.data_dir)))
    for command in plan.commands():
        say(plan.comment_on(command))
        say(shell_line(command.words) + "\n")
        if args.run:
            carry_out(command, plan)
    finish(plan, has_run=args.run, collect=args.collect)
    return 0


def plan_of(args: argparse.Namespace) -> Reproduction:
    """Return what the flags ask for. Raises UsageError for what cannot be.

    A number of steps has a folder of its own at the tiny scale, where exhibits share runs.
    """
    is_tiny = args.scale == "tiny"
    shown = exhibit(args.figure, args.table)
    number = f"figure {args.figure}" if args.figure is not None else f"table {args.table}"
    steps = shown.steps if args.steps is None else args.steps
    if steps < 2:
        raise UsageError(f"--steps {steps}: must be at least 2")
    if args.steps is not None and not is_tiny:
        raise UsageError(f"--steps {steps} has no effect at the paper's scale; drop it, or add --scale tiny")
    if args.data_dir and is_tiny:
        raise UsageError(
            f"--data_dir {args.data_dir} has no effect with --scale tiny, whose tasks are embedded; drop it"
        )
    if is_tiny and shown.not_tiny:
        raise UsageError(f"--scale tiny: {number} has none: {shown.not_tiny}; leave the flag out")
    if args.collect and not args.run:
        raise UsageError("--collect copies what --run makes; add --run")
    output = args.output or Path("runs/reproduce" if is_tiny else "/checkpoints")
    output = (output / f"{steps}-steps" if is_tiny else output).absolute()
    if args.run:
        check_folder(output)
    return Reproduction(
        shown=shown,
        number=number,
        is_tiny=is_tiny,
        steps=steps,
        output=output,
        data_dir=(args.data_dir or DATA_DIR).absolute(),
    )


def dry_run(plan: Reproduction) -> int:
    """Check every command; return 0 if all would run, else 2.

    A file that an earlier command of the plan makes may still be missing: that is no fault of a later command.
    """
    status = 0
    made: dict[Path, str] = {}
    to_bring = [] if plan.is_tiny else paper_commands.brought(plan.shown, plan.data_dir)
    for path in to_bring:
        if not path.is_file():
            status = refuse(NAME, f"{path}: no such file, and no command makes it; bring it")
    for command in plan.commands():
        name = plan.folder_of(command.run).name if command.run else command.name
        found = [(fault, maker_of_missing(fault, made, to_bring)) for fault in faults_of(command, plan)]
        faults = [fault for fault, maker in found if maker is None]
        awaited = list(dict.fromkeys(maker for _, maker in found if maker is not None))
        after = f", after {' and '.join(awaited)}" if awaited else ""
        say(f"{name}: it would not run\n" if faults else f"{name}: it would run{after}\n")
        for fault in faults:
            status = refuse(NAME, f"{name}: {fault}")
        for path in outputs_of(command.words):
            made.setdefault(path, name)
    return status


def faults_of(command: Command, plan: Reproduction) -> list[str]:
    """Return why a command of a plan would not start, a line for each fault; no line if it would start or is done."""
    try:
        due = plan.due(command)
    except UsageError as error:
        return [str(error)]
    if due is None or command.name not in COMMANDS:
        return []
    flags = flags_of(due)
    if command.name != "train":
        return _faults(lambda: _check_command(command.name, flags))
    from openrlhf_cov.cli import train_ppo_ray

    run = command.run
    if plan.is_tiny and run is not None:
        with _command_line(flags):
            faults = _faults(train_ppo_ray.parse_args)
        return [*faults, *_faults(lambda: check_tiny(run, plan))]
    nodes = str(run.recipe.nodes if run and run.recipe else 1)
    with _command_line([*flags, *LAYOUT_OF_RUN, nodes]):
        return _faults(lambda: sys.exit(train_ppo_ray.main()))


def _check_command(name: str, flags: list[str]) -> None:
    """Check flags, and what a command checks before it works: files that it reads, folders that it writes."""
    module = import_module(f"openrlhf_cov.cli.{COMMANDS[name][0]}")
    parser = module.build_parser()
    if name == "lab":
        module.LabRequest.of(parser, flags).check()
        return
    args = parser.parse_args(flags)
    checks = {"prepare": "check_inputs", "evaluate": "check_inputs", "report": "check_flags"}
    if name in checks:
        getattr(module, checks[name])(args)


@contextmanager
def _command_line(flags: Sequence[str]) -> Iterator[None]:
    """Give the body the trainer's command line, in the folder that a job of the recipes has."""
    kept = sys.argv
    folder = os.getcwd()
    sys.argv = ["train_ppo_ray", *flags]
    os.chdir(SCRIPTS.parent)
    try:
        yield
    finally:
        sys.argv = kept
        os.chdir(folder)


def _faults(check: Callable[[], object]) -> list[str]:
    """Return the lines on stderr of a check that ends with a status other than 0, or what it raised."""
    said = io.StringIO()
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(said):
            check()
    except SystemExit as end:
        lines = [line for line in said.getvalue().splitlines() if line.strip()] if end.code else []
        return [line.partition(": error: ")[2] or line for line in lines]  # without the name of the command
    except (UsageError, ValueError) as error:
        return [str(error)]
    return []


if __name__ == "__main__":
    sys.exit(main())
