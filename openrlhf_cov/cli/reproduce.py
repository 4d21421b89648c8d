"""Every figure and table of arXiv 2505.22617 as commands: the runs that it takes, their evaluation, the report.

Prints the commands; --run carries them out one after the other, --dry_run checks them all and starts nothing.
--scale tiny is the same on the embedded tasks, on any host.
"""

import argparse
import io
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path

from openrlhf_cov.errors import RunStopped, UsageError
from openrlhf_cov.reproduction import commands
from openrlhf_cov.reproduction.exhibits import FIGURES, TABLES, Exhibit, Run, exhibit
from openrlhf_cov.utils.metrics_log import METRICS_FILE, read_metrics
from openrlhf_cov.utils.terminal import Parser, refuse, say

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
PARSED = ("prepare_data", "evaluate", "compare", "report", "lab")
"""Modules of commands whose words a dry run gives to their parser."""
LAYOUT_OF_RUN = ("--dry_run", "--dry_run_gpus", "8", "--dry_run_gpu_memory", "80", "--dry_run_nodes")
Words = Sequence[str]


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = Parser(prog="reproduce", about=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--figure", type=int, choices=tuple(FIGURES), metavar="N", help="1 to 14")
    which.add_argument("--table", type=int, choices=tuple(TABLES), metavar="N", help="1 or 2")
    parser.add_argument(
        "--scale",
        choices=("paper", "tiny"),
        default="paper",
        help="paper: the recipes, on GPUs; tiny: the embedded tasks (default: paper)",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--run", action="store_true", help="carry the commands out; runs that are there are left alone")
    what.add_argument("--dry_run", action="store_true", help="check every command, start nothing")
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="folder of runs and reports (default: /checkpoints, runs/reproduce)"
    )
    parser.add_argument(
        "--data_dir", type=Path, default=Path("/data"), metavar="DIR", help="training sets and eval/ (default: /data)"
    )
    parser.add_argument(
        "--steps", type=int, default=200, metavar="N", help="of a run at the tiny scale (default: 200)"
    )
    return parser


def main(argv: list[str] | None = None) -> int:
    """Exit status 0; 2 with one line for bad input or a command that would not run, 1 for one that failed."""
    args = build_parser().parse_args(argv)
    try:
        return reproduce(args)
    except UsageError as error:
        return refuse("reproduce", error)
    except RunStopped as error:
        return refuse("reproduce", error, 1)


def reproduce(args: argparse.Namespace) -> int:
    """What the flags ask for."""
    shown = exhibit(args.figure, args.table)
    number = f"figure {args.figure}" if args.figure is not None else f"table {args.table}"
    if args.steps < 2:
        raise UsageError(f"--steps is at least 2, got {args.steps}")
    if args.scale == "tiny" and shown.not_tiny:
        raise UsageError(f"--scale tiny: {number} has none: {shown.not_tiny}; leave the flag out")
    if args.output is None:
        args.output = Path("runs/reproduce" if args.scale == "tiny" else "/checkpoints")
    say(f"# {number}: {shown.title}\n")
    plan = tiny_plan if args.scale == "tiny" else paper_plan
    if args.dry_run:
        return dry_run(shown, plan(shown, number, args), args)
    if args.scale == "paper":
        say(f"# from {SCRIPTS.parent}, where a Ray runs\n")
    for words, run in plan(shown, number, args):
        say(commands.line(words) + "\n")
        if args.run:
            carry_out(words, run, args)
    folder = args.output / number.replace(" ", "") / "figures"
    say("# draws " + ", ".join(f"{folder / name}.svg" for name in shown.pictures) + "\n")
    return 0


def paper_plan(shown: Exhibit, number: str, args: argparse.Namespace) -> Iterator[tuple[Words, Run | None]]:
    """The commands at the paper's scale, in order; with a training its run."""
    yield from ((words, None) for words in commands.preparations(shown, args.data_dir))
    for run in shown.runs:
        if run.recipe:
            yield commands.training(run, SCRIPTS, args.data_dir, args.output), run
    yield from ((words, None) for words in commands.evaluations(shown, SCRIPTS, args.data_dir, args.output))
    runs = [run for run in shown.runs if run.recipe]
    flags = [*shown.report, *(sizes_of(runs) if shown.with_sizes else ())]
    yield report_of(runs, number, args, flags), None


def tiny_plan(shown: Exhibit, number: str, args: argparse.Namespace) -> Iterator[tuple[Words, Run | None]]:
    """The commands on the embedded tasks. R is the reward of training."""
    runs = [run for run in shown.runs if run.is_tiny]
    for run in runs:
        if run.trainer is not None:
            yield trainer_command(run, args, "http://127.0.0.1:8265"), run
        else:
            yield commands.laboratory(run, args.output, args.steps), run
    flags = [word for word in shown.report if word not in ("--metric", "eval/mean/avg")]
    yield report_of(runs, number, args, flags), None


def report_of(runs: Sequence[Run], number: str, args: argparse.Namespace, flags: Words) -> list[str]:
    """The report of these runs, in the exhibit's own folder, with its numbers in law.json."""
    folder = args.output / number.replace(" ", "")
    return commands.report(
        [folder_of(run, args) for run in runs], folder, "--export", str(folder / "law.json"), *flags
    )


def folder_of(run: Run, args: argparse.Namespace) -> Path:
    """Where a run writes."""
    return args.output / (run.tiny_name if args.scale == "tiny" else run.name)


def sizes_of(runs: Sequence[Run]) -> list[str]:
    """``--size`` of the report: the parameters of each run's model without its embeddings."""
    from openrlhf_cov.sizing.model_shape import KNOWN

    found = {run.name: KNOWN[run.recipe.variables["MODEL"]] for run in runs if run.recipe}
    parameters = {name: shape.layers * shape.layer_parameters + shape.hidden for name, shape in found.items()}
    return ["--size", *(f"{name}={count}" for name, count in parameters.items())]


def trainer_command(run: Run, args: argparse.Namespace, dashboard: str) -> list[str]:
    """A run of the whole trainer on the embedded addition, without a reference: the law is stated without."""
    from openrlhf_cov.cli import demo

    output = folder_of(run, args).resolve()
    words = demo.training_command("none", args.steps, task_of(args), output, dashboard, kl_coef=0.0)
    return [*words, *(run.trainer or ())]


def task_of(args: argparse.Namespace) -> Path:
    """The embedded addition, which the runs of one output folder share."""
    return (args.output / "tiny_task").resolve()


def carry_out(words: Words, run: Run | None, args: argparse.Namespace) -> None:
    """Run one command of a plan to its end; RunStopped if it fails. A run whose metrics are there is not repeated; the
    laboratory looks itself."""
    folder = folder_of(run, args) if run else None
    if folder is not None and "lab" not in commands_module(words) and _is_there(folder, args):
        say(f"# {folder} holds this run; it is left alone\n")
    elif run is not None and run.trainer is not None and args.scale == "tiny":
        _train_tiny(run, args)
    else:
        program = [sys.executable, *words[1:]] if words[0] == "python" else list(words)
        status = subprocess.run(program, cwd=SCRIPTS.parent if words[0] == "ray" else None).returncode
        if status:
            raise RunStopped(f"status {status} of: {commands.line(words)}")


def _is_there(folder: Path, args: argparse.Namespace) -> bool:
    metrics = folder / METRICS_FILE
    if not metrics.exists():
        return False
    if args.scale == "tiny" and len(read_metrics(metrics)) < args.steps:
        raise UsageError(f"{folder} holds fewer than --steps {args.steps} steps; remove it, or name another --output")
    return True


def _train_tiny(run: Run, args: argparse.Namespace) -> None:
    """With a Ray of its own, as the demo."""
    from openrlhf_cov.cli import demo
    from openrlhf_cov.cli.local_ray import local_ray

    output = folder_of(run, args).resolve()
    demo.check(argparse.Namespace(task="addition", folder=task_of(args), steps=args.steps, output=output))
    demo.make_task(task_of(args), "addition")
    with local_ray(num_gpus=2, num_cpus=8, log=output / "ray.log") as address:
        demo.train(trainer_command(run, args, address.dashboard), address.token, output, args.steps)


def dry_run(shown: Exhibit, plan: Iterator[tuple[Words, Run | None]], args: argparse.Namespace) -> int:
    """Check every command; 0 if all would run, else 2."""
    worst = 0
    for words, run in plan:
        faults = faults_of(words, run)
        name = folder_of(run, args).name if run else commands_module(words)
        say(f"{name}: it would run\n" if not faults else f"{name}: it would not run\n")
        for fault in faults:
            worst = refuse("reproduce", f"{name}: {fault}")
    return worst


def commands_module(words: Words) -> str:
    """The module of ``openrlhf_cov.cli`` that a command starts, itself or as a job of Ray."""
    return words[words.index("-m") + 1].rpartition(".")[2]


def faults_of(words: Words, run: Run | None) -> list[str]:
    """Why a command would not start, a line each; none if it would."""
    name, flags = commands_module(words), list(words[words.index("-m") + 2 :])
    if name in PARSED:
        module = import_module(f"openrlhf_cov.cli.{name}")
        return _faults(lambda: _parsed(module, name, flags))
    from openrlhf_cov.cli import train_ppo_ray

    recipe = run.recipe if run else None
    if run is not None and run.trainer is not None and str(flags).find("tiny_task") >= 0:
        return _faults(lambda: _with_argv(flags, train_ppo_ray.parse_args))
    nodes = str(recipe.nodes if recipe else 1)
    return _faults(lambda: _with_argv([*flags, *LAYOUT_OF_RUN, nodes], train_ppo_ray.main))


def _parsed(module, name: str, flags: list[str]) -> None:
    args = module.build_parser().parse_args(flags)
    if name == "lab":
        module.configured(args)
        module.LabSettings.from_args(args)


def _with_argv(flags: list[str], work) -> None:
    with _here(["train_ppo_ray", *flags]):
        work()


@contextmanager
def _here(argv: list[str]) -> Iterator[None]:
    """The command line, in the folder that a job of the recipes has."""
    kept, folder = sys.argv, os.getcwd()
    sys.argv = argv
    os.chdir(SCRIPTS.parent)
    try:
        yield
    finally:
        sys.argv = kept
        os.chdir(folder)


def _faults(work) -> list[str]:
    """Lines on stderr of work that ends with a status other than 0, or what it raised."""
    said = io.StringIO()
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(said):
            work()
    except SystemExit as end:
        return [line for line in said.getvalue().splitlines() if line.strip()] if end.code else []
    except (UsageError, ValueError) as error:
        return [str(error)]
    return []


if __name__ == "__main__":
    sys.exit(main())
