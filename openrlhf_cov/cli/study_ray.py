"""A study whose runs are those of a cluster: its flags are checked, its commands are for whoever has the machines."""

import io
import shlex
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from openrlhf_cov.errors import UsageError
from openrlhf_cov.study.plan import Run, Scores, all_runs, number_of_runs
from openrlhf_cov.study.spec import Spec
from openrlhf_cov.utils.terminal import say

TRAINER = ("python", "-m", "openrlhf_cov.cli.train_ppo_ray")


def command(spec: Spec, output: Path, run: Run) -> list[str]:
    """The run as a command line of the trainer."""
    folder = output / run.folder
    arm = spec.arm(run.arm)
    places = ["--ckpt.output_dir", str(folder), "--ckpt.path", str(folder / "state")]
    return [*TRAINER, *spec.words, *arm.words, *run.cell, "--train.seed", str(run.seed), *places]


def check(spec: Spec, path: Path, output: Path) -> None:
    """UsageError, naming the arm, for flags of a cell that the trainer's parser refuses."""
    from openrlhf_cov.cli import train_ppo_ray

    argv, said = sys.argv, io.StringIO()
    for arm in spec.arms:
        for cell in arm.cells:
            sys.argv = command(spec, output, Run(arm.name, "screen", cell, 0))[len(TRAINER) - 1 :]
            try:
                with redirect_stderr(said), redirect_stdout(io.StringIO()):  # upstream's warnings, the same for all
                    train_ppo_ray.parse_args()
            except SystemExit as error:
                reason = said.getvalue().strip().splitlines()[-1].partition(": error: ")[2]
                raise UsageError(f"{path}: arm {arm.name}: {reason}") from error
            finally:
                sys.argv = argv


def dry_run(spec: Spec, output: Path, scores: Scores) -> None:
    """Every run that is known before tuning, as a line for a shell."""
    known = all_runs(spec, scores)
    for run in known:
        say(shlex.join(command(spec, output, run)) + "\n")
    say(f"# {spec.title}: {len(known)} of {number_of_runs(spec)} runs; the others follow from what tuning finds\n")
