"""Carry out the commands of a reproduction one after the other, and collect what they draw."""

import shlex
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

from openrlhf_cov.cluster.local_ray import local_ray, stop
from openrlhf_cov.errors import RunStopped, UsageError
from openrlhf_cov.experiments.reproduction.exhibits import PaperRun
from openrlhf_cov.experiments.reproduction.paper_commands import PROGRAM
from openrlhf_cov.experiments.reproduction.paper_scores import scores_of
from openrlhf_cov.experiments.reproduction.reproduction_plan import SCRIPTS, Command, Reproduction, Words
from openrlhf_cov.experiments.tiny_task import demo_training
from openrlhf_cov.utils.json_lines import write_lines
from openrlhf_cov.utils.orphans import die_with_parent
from openrlhf_cov.utils.terminal import say


def carry_out(command: Command, plan: Reproduction) -> None:
    """Run one command of a plan to its end, unless what it makes exists.

    Args:
        command: A command of the plan.
        plan: The plan, which says where the command writes. At the tiny scale a training of the whole trainer makes
            its task and its Ray itself, so the commands for these do nothing.

    Raises:
        RunStopped: The command failed.
        UsageError: A program is missing, or a run that was interrupted cannot be resumed.
    """
    words = command.words
    due = plan.due(command)
    if due is None:
        say("# it is there, and is left alone\n")
        return
    if plan.is_tiny and command.run is not None and command.run.trainer is not None:
        train_tiny(command.run, plan)
        return
    if plan.is_tiny and (command.name == "tiny-task" or due[:2] == ["ray", "start"]):
        return  # ``train_tiny`` makes the task and starts a Ray of its own
    if len(due) > len(words):
        added = " ".join(due[len(words) :])
        say(f"# it broke off, and goes on (if its job still runs, stop that first): {added}\n")
    status = call([*program_of(due[0]), *due[1:]], SCRIPTS.parent if due[0] == "ray" else None)
    if status:
        raise RunStopped(f"status {status} of: {shlex.join(due)}")


def program_of(name: str) -> list[str]:
    """Return how this process starts the program of a plan: this Python, or a file beside it or on the PATH.

    Raises:
        UsageError: There is no such program.
    """
    if name == "python":
        return [sys.executable]
    if name == PROGRAM:
        return [sys.executable, "-m", "openrlhf_cov.cli.main"]
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        raise UsageError(f"{name} is neither beside {sys.executable} nor on the PATH; install Ray (docs/install.md)")
    return [found]


def call(command: Words, folder: Path | None) -> int:
    """Run a command to its end and return its exit status.

    The command ends with this process, and so does what it started, as far as that can still be found.

    Args:
        command: The words of the command.
        folder: Its working folder; None for that of this process.
    """
    ends_with_us = partial(die_with_parent, signal.SIGTERM)
    child = subprocess.Popen(command, cwd=folder, start_new_session=True, preexec_fn=ends_with_us)
    try:
        return child.wait()
    finally:
        stop(child)


def train_tiny(run: PaperRun, plan: Reproduction) -> None:
    """Train on the embedded addition with a Ray of its own, as the demo does.

    Args:
        run: A run with flags of the whole trainer.
        plan: The plan at the tiny scale, for the folders and the number of steps.

    Raises:
        UsageError: The run cannot be made; see ``check_tiny``.
        RunStopped: The task could not be made, Ray could not be started, or the training failed.
    """
    check_tiny(run, plan)
    output = plan.folder_of(run)
    demo_training.make_output(output)
    demo_training.make_task(plan.task, "addition")
    with local_ray(num_gpus=2, num_cpus=8, log=output / "ray.log") as address:
        words = plan.training_on_ray(run, address.dashboard)
        demo_training.train(words, address.token, output, plan.steps)


def check_tiny(run: PaperRun, plan: Reproduction) -> None:
    """Check a run on the embedded addition before it starts, and write nothing.

    Args:
        run: A run with flags of the whole trainer.
        plan: The plan at the tiny scale, for the folders and the number of steps.

    Raises:
        UsageError: A folder is in use, the task gives fewer steps, or a package is missing; see
            ``openrlhf_cov.experiments.tiny_task.demo_training.check_demo``.
    """
    demo_training.check_demo(task="addition", folder=plan.task, steps=plan.steps, output=plan.folder_of(run))


def finish(plan: Reproduction, *, has_run: bool, collect: Path | None) -> None:
    """Say what is drawn, print the table of scores at the tiny scale, and copy pictures and numbers.

    Args:
        plan: The plan.
        has_run: True if its commands were carried out.
        collect: Folder for the copies; None for no copies.
    """
    folders = plan.report_folders()
    pictures = [folder / "figures" / f"{picture}.svg" for folder in folders for picture in plan.shown.pictures]
    say("# draws " + ", ".join(map(str, pictures)) + "\n")
    made = [*pictures, *(folder / "law.json" for folder in folders)]
    if has_run and plan.is_tiny and plan.shown.tables:
        table = scores_of([plan.folder_of(run) for run in plan.shown.runs if run.is_tiny])
        path = folders[0] / "scores.txt"
        write_lines(path, table)
        say("\n".join(["", *table, ""]))
        made.append(path)
    if collect:
        collect.mkdir(parents=True, exist_ok=True)
        for path in made:
            if path.exists():  # the report says which picture it left out, and why
                exhibit_name = path.relative_to(plan.output).parts[0]
                shutil.copyfile(path, collect / f"{exhibit_name}_{path.name}")
