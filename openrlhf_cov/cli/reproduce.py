"""Print the commands that reproduce a figure or table of arXiv 2505.22617: runs, evaluations and report.

--run carries the commands out one after the other. --dry_run starts nothing and says of each command whether it would
run: it checks flags, benchmarks, training data and output folders, and for a training also the memory, but no trained
models. --scale tiny takes the embedded tasks, on any host, for the figures and tables that have a meaning there.
"""

import argparse
import io
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from importlib import import_module
from pathlib import Path

from openrlhf_cov.cli.entry_point import program
from openrlhf_cov.cluster.local_ray import stop
from openrlhf_cov.data.templates import FOR_PROGRAMS
from openrlhf_cov.errors import RunStopped, UsageError
from openrlhf_cov.experiments.reproduction import paper_commands
from openrlhf_cov.experiments.reproduction.exhibits import FIGURES, TABLES, Exhibit, PaperRun, exhibit
from openrlhf_cov.experiments.reproduction.paper_scores import scores_of
from openrlhf_cov.utils.json_lines import write_lines
from openrlhf_cov.utils.metrics_log import METRICS_FILE
from openrlhf_cov.utils.orphans import die_with_parent
from openrlhf_cov.utils.output_folders import check_folder
from openrlhf_cov.utils.terminal import Parser, refuse, say

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
LAYOUT_OF_RUN = ("--dry_run", "--dry_run_gpus", "8", "--dry_run_gpu_memory", "80", "--dry_run_nodes")
# In a message that data is missing.
ABSENCES = ("no such file", "no such folder", "no file ", "no *.jsonl files")
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
        "--steps",
        type=int,
        metavar="N",
        help="of a run at the tiny scale (default: 200; 40 through the whole trainer)",
    )
    parser.add_argument(
        "--collect", type=Path, metavar="DIR", help="with --run, copy pictures and numbers there, as figure8_NAME"
    )
    return parser


@program("reproduce")
def main(argv: list[str] | None = None) -> int:
    """Exit status 0; 2 with one line for bad input or a command that would not run, 1 for one that failed, 130 and 143
    when interrupted."""
    return reproduce(build_parser().parse_args(argv))


def reproduce(args: argparse.Namespace) -> int:
    """Carry out the request; return the exit status."""
    shown = exhibit(args.figure, args.table)
    number = f"figure {args.figure}" if args.figure is not None else f"table {args.table}"
    settle(args, shown, number)
    say(f"# {number}: {shown.title}\n")
    plan = tiny_plan if args.scale == "tiny" else paper_plan
    if args.dry_run:
        return dry_run(plan(shown, number, args), args)
    if args.scale == "paper":
        say(f"# from {SCRIPTS.parent}, where a Ray runs\n")
        say("".join(f"# yours to bring: {path}\n" for path in paper_commands.brought(shown, args.data_dir)))
    for words, run in plan(shown, number, args):
        say(comment_on(words, run, args))
        say(shlex.join(words) + "\n")
        if args.run:
            carry_out(words, run, args)
    finish(shown, number, args)
    return 0


def settle(args: argparse.Namespace, shown: Exhibit, number: str) -> None:
    """Fill in the defaults, and make the folders absolute; UsageError for what cannot be.

    A number of steps has a folder of its own at the tiny scale, where exhibits share runs.
    """
    tiny = args.scale == "tiny"
    if args.steps is None:
        args.steps = shown.steps
    if args.steps < 2:
        raise UsageError(f"--steps {args.steps}: must be at least 2")
    if tiny and shown.not_tiny:
        raise UsageError(f"--scale tiny: {number} has none: {shown.not_tiny}; leave the flag out")
    if args.collect and not args.run:
        raise UsageError("--collect copies what --run makes; add --run")
    output = args.output or Path("runs/reproduce" if tiny else "/checkpoints")
    args.output = (output / f"{args.steps}-steps" if tiny else output).absolute()
    args.data_dir = args.data_dir.absolute()
    if args.run:
        check_folder(args.output)


def comment_on(words: Words, run: PaperRun | None, args: argparse.Namespace) -> str:
    """A line in front of a run, and of what else is submitted."""
    if run is not None:
        return f"# run {folder_of(run, args).name}\n"
    if "--model" in words:
        return f"# {commands_module(words)} {Path(words[words.index('--model') + 1]).name}\n"
    return ""


def finish(shown: Exhibit, number: str, args: argparse.Namespace) -> None:
    """Say what was drawn; the table of scores at the tiny scale, and the copies that were asked for."""
    name = number.replace(" ", "")
    folder = args.output / name
    domains = by_domain([run for run in shown.runs if run.recipe]) if args.scale == "paper" else {"": []}
    folders = [args.output / (name + domain) for domain in domains]
    pictures = [each / "figures" / f"{picture}.svg" for each in folders for picture in shown.pictures]
    say("# draws " + ", ".join(map(str, pictures)) + "\n")
    made = [*pictures, *(each / "law.json" for each in folders)]
    if args.run and args.scale == "tiny" and shown.tables:
        table = scores_of([folder_of(run, args) for run in shown.runs if run.is_tiny])
        write_lines(folder / "scores.txt", table)
        say("\n".join(["", *table, ""]))
        made.append(folder / "scores.txt")
    if args.collect:
        args.collect.mkdir(parents=True, exist_ok=True)
        for path in made:
            if path.exists():  # the report says which picture it left out, and why
                of = path.relative_to(args.output).parts[0]
                shutil.copyfile(path, args.collect / f"{of}_{path.name}")


def paper_plan(shown: Exhibit, number: str, args: argparse.Namespace) -> Iterator[tuple[Words, PaperRun | None]]:
    """The commands at the paper's scale, in order; with a training its run."""
    yield from ((words, None) for words in paper_commands.benchmark_files(shown, args.data_dir))
    yield from ((words, None) for words in paper_commands.preparations(shown, args.data_dir))
    for run in shown.runs:
        if run.recipe:
            yield paper_commands.training(run, SCRIPTS, args.data_dir, args.output), run
    yield from ((words, None) for words in paper_commands.evaluations(shown, SCRIPTS, args.data_dir, args.output))
    for domain, runs in by_domain([run for run in shown.runs if run.recipe]).items():
        flags = [*shown.report, *(sizes_of(runs) if shown.with_sizes else ())]
        yield report_of(runs, number + domain, args, flags), None


def tiny_plan(shown: Exhibit, number: str, args: argparse.Namespace) -> Iterator[tuple[Words, PaperRun | None]]:
    """The commands on the embedded tasks. R is the reward of training."""
    runs = [run for run in shown.runs if run.is_tiny]
    if any(run.trainer is not None for run in runs):
        yield paper_commands.module("make_tiny_task", "--task", "addition", "--output", str(task_of(args))), None
        yield ["ray", "start", "--head", "--num-gpus", "2", "--num-cpus", "8"], None
    for run in runs:
        if run.trainer is not None:
            yield trainer_command(run, args, "http://127.0.0.1:8265"), run
        else:
            yield paper_commands.laboratory(run, args.output, args.steps), run
    flags = [word for word in shown.report if word not in ("--metric", "eval/mean/avg")]
    yield report_of(runs, number, args, flags), None


def report_of(runs: Sequence[PaperRun], number: str, args: argparse.Namespace, flags: Words) -> list[str]:
    """The report of these runs, in the exhibit's own folder, with its numbers in law.json."""
    folder = args.output / number.replace(" ", "")
    places = ("--output", str(folder), "--export", str(folder / "law.json"))
    return paper_commands.module("report", *(str(folder_of(run, args)) for run in runs), *places, *flags)


def by_domain(runs: Sequence[PaperRun]) -> dict[str, list[PaperRun]]:
    """The runs of each report, by what its folder's name has at the end: programs have a law of their own."""
    programs = [run for run in runs if run.recipe and run.recipe.template in FOR_PROGRAMS]
    others = [run for run in runs if run not in programs]
    return {"": others, "-programs": programs} if others and programs else {"": list(runs)}


def folder_of(run: PaperRun, args: argparse.Namespace) -> Path:
    """Return the folder that a run writes to."""
    return args.output / (run.tiny_name if args.scale == "tiny" else run.name)


def sizes_of(runs: Sequence[PaperRun]) -> list[str]:
    """``--size`` of the report: the parameters of each run's model without its embeddings."""
    from openrlhf_cov.cluster.sizing.model_shape import KNOWN

    found = {run.name: KNOWN[run.recipe.variables["MODEL"]] for run in runs if run.recipe}
    parameters = {name: shape.layers * shape.layer_parameters + shape.hidden for name, shape in found.items()}
    return ["--size", *(f"{name}={count}" for name, count in parameters.items())]


def trainer_command(run: PaperRun, args: argparse.Namespace, dashboard: str) -> list[str]:
    """A run of the whole trainer on the embedded addition, without a reference: the law is stated without."""
    from openrlhf_cov.cli import demo

    output = folder_of(run, args)
    words = demo.training_command("none", args.steps, task_of(args), output, dashboard, kl_coef=0.0)
    return [*words, *(run.trainer or ())]


def task_of(args: argparse.Namespace) -> Path:
    """The embedded addition, which the runs of one output folder share."""
    return args.output / "tiny_task"


def carry_out(words: Words, run: PaperRun | None, args: argparse.Namespace) -> None:
    """Run one command of a plan to its end; RunStopped if it fails.

    A run that is there is not repeated, one that broke off goes on from its checkpoint; the lab looks itself.
    ``_train_tiny`` makes task and Ray.
    """
    due = what_is_due(words, run, args)
    if due is None:
        say("# it is there, and is left alone\n")
    elif run is not None and run.trainer is not None and args.scale == "tiny":
        _train_tiny(run, args)
    elif due[:2] != ["ray", "start"] and commands_module(due) != "make_tiny_task":
        if len(due) > len(words):
            added = " ".join(due[len(words) :])
            say(f"# it broke off, and goes on (if its job still runs, stop that first): {added}\n")
        status = _call([path_of(due[0]), *due[1:]], SCRIPTS.parent if due[0] == "ray" else None)
        if status:
            raise RunStopped(f"status {status} of: {shlex.join(due)}")


def what_is_due(words: Words, run: PaperRun | None, args: argparse.Namespace) -> Words | None:
    """The command of a run as it is to be given now; None where its folder holds the trained model.

    UsageError for a run that broke off without a checkpoint.
    """
    if run is None or commands_module(words) == "lab":
        return words
    from openrlhf_cov.trainer.preflight.check_run import find_weights, has_checkpoint

    folder = folder_of(run, args)
    if find_weights(folder) and (folder / "config.json").is_file():
        return None
    if args.scale == "paper" and has_checkpoint(folder / "state"):
        return [*words, "--ckpt.load_enable"]
    if (folder / METRICS_FILE).exists():
        raise UsageError(
            f"{folder} holds a run that broke off and has no checkpoint to go on from; remove it, or name another "
            "--output"
        )
    return words


def path_of(name: str) -> str:
    """The program that a command of a plan starts with: beside this Python, or found on the PATH."""
    if name == "python":
        return sys.executable
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        raise UsageError(f"{name} is neither beside {sys.executable} nor on the PATH; install Ray (docs/install.md)")
    return found


def _call(command: Words, folder: Path | None) -> int:
    """Exit status; the command ends with this process, and what it started does where this one can still say so."""
    ends_with_us = partial(die_with_parent, signal.SIGTERM)
    child = subprocess.Popen(command, cwd=folder, start_new_session=True, preexec_fn=ends_with_us)
    try:
        return child.wait()
    finally:
        stop(child)


def _train_tiny(run: PaperRun, args: argparse.Namespace) -> None:
    """Run with a Ray of its own, as the demo does."""
    from openrlhf_cov.cli import demo
    from openrlhf_cov.cluster.local_ray import local_ray

    output = folder_of(run, args)
    demo.check(_of_the_demo(run, args))
    demo.make_task(task_of(args), "addition")
    with local_ray(num_gpus=2, num_cpus=8, log=output / "ray.log") as address:
        demo.train(trainer_command(run, args, address.dashboard), address.token, output, args.steps)


def _of_the_demo(run: PaperRun, args: argparse.Namespace) -> argparse.Namespace:
    return argparse.Namespace(task="addition", folder=task_of(args), steps=args.steps, output=folder_of(run, args))


def dry_run(plan: Iterator[tuple[Words, PaperRun | None]], args: argparse.Namespace) -> int:
    """Check every command; 0 if all would run, else 2.

    A file that an earlier command of the plan makes may still be missing: that is no fault of a later command.
    """
    worst = 0
    made: dict[Path, str] = {}
    to_bring: list[Path] = []
    if args.scale == "paper":
        to_bring = paper_commands.brought(exhibit(args.figure, args.table), args.data_dir)
    for path in to_bring:
        if not path.is_file():
            worst = refuse("reproduce", f"{path}: no such file, and no command makes it; bring it")
    for words, run in plan:
        name = folder_of(run, args).name if run else commands_module(words)
        faults = []
        awaited = []
        for fault in faults_of(words, run, args):
            maker = maker_of_missing(fault, made, to_bring)
            if maker is None:
                faults.append(fault)
            elif maker not in awaited:
                awaited.append(maker)
        after = f", after {' and '.join(awaited)}" if awaited else ""
        say(f"{name}: it would not run\n" if faults else f"{name}: it would run{after}\n")
        for fault in faults:
            worst = refuse("reproduce", f"{name}: {fault}")
        for path in outputs_of(words):
            made.setdefault(path, name)
    return worst


def outputs_of(words: Words) -> list[Path]:
    """Return the folders of data that a command makes for later ones."""
    name = commands_module(words)
    flag = {"evaluate": "--write_data", "prepare_data": "--output", "make_tiny_task": "--output"}.get(name)
    return [Path(words[words.index(flag) + 1])] if flag in words else []


def maker_of_missing(fault: str, made: Mapping[Path, str], to_bring: Sequence[Path]) -> str | None:
    """Return the earlier command that makes the data whose absence a fault is about; None for any other fault.

    Args:
        fault: What is wrong with a command.
        made: Folder -> name of the command of the plan that fills it.
        to_bring: Files that no command makes.
    """
    if not any(absence in fault for absence in ABSENCES) or any(path.name in fault for path in to_bring):
        return None
    return next((maker for folder, maker in made.items() if str(folder) in fault), None)


def commands_module(words: Words) -> str:
    """The module of ``openrlhf_cov.cli`` that a command starts, itself or as a job of Ray; or the command's first
    words."""
    return words[words.index("-m") + 1].rpartition(".")[2] if "-m" in words else " ".join(words[:2])


def faults_of(words: Words, run: PaperRun | None, args: argparse.Namespace) -> list[str]:
    """Why a command would not start, a line each; none if it would."""
    name = commands_module(words)
    try:
        due = what_is_due(words, run, args)
    except UsageError as error:
        return [str(error)]
    if due is None or "-m" not in due:
        return []
    flags = list(due[due.index("-m") + 2 :])
    if name != "train_ppo_ray":
        return _faults(lambda: _checked(name, flags))
    from openrlhf_cov.cli import demo, train_ppo_ray

    if args.scale == "tiny" and run is not None:
        return [
            *_faults(lambda: _with_argv(flags, train_ppo_ray.parse_args)),
            *_faults(lambda: demo.check_settings(_of_the_demo(run, args))),
        ]
    nodes = str(run.recipe.nodes if run and run.recipe else 1)
    return _faults(lambda: _with_argv([*flags, *LAYOUT_OF_RUN, nodes], lambda: sys.exit(train_ppo_ray.main())))


def _checked(name: str, flags: list[str]) -> None:
    """Flags, and what the command looks at before it works: files that it reads, folders that it writes."""
    module = import_module(f"openrlhf_cov.cli.{name}")
    parser = module.build_parser()
    if name == "lab":
        module.LabRequest.of(parser, flags).check()
        return
    args = parser.parse_args(flags)
    looks = {"prepare_data": "check_inputs", "evaluate": "check_inputs", "report": "check_flags"}.get(name)
    if looks:
        getattr(module, looks)(args)


def _with_argv(flags: list[str], work) -> None:
    """The work with the trainer's command line, in the folder that a job of the recipes has."""
    kept = sys.argv
    folder = os.getcwd()
    sys.argv = ["train_ppo_ray", *flags]
    os.chdir(SCRIPTS.parent)
    try:
        work()
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
