"""Train a small model with a covariance method on this machine, from nothing to a table.

The command makes an embedded task, starts a Ray of its own, trains, and scores the policy on held-out problems before
and after. It writes into the folder --output. --method all trains with each method in turn, with one seed and without
the KL term to the untrained policy, as the entropy law is stated, and draws one report.
"""

import argparse
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from openrlhf_cov.analysis.report.write import write_report
from openrlhf_cov.cli.entry_point import program
from openrlhf_cov.cluster.local_ray import RayAddress, local_ray
from openrlhf_cov.cluster.ray_here import KEEP_ENGINES
from openrlhf_cov.experiments.tiny_task.catalogue import TINY_TASKS
from openrlhf_cov.experiments.tiny_task.demo_training import (
    METHOD_FLAGS,
    PROMPTS,
    REFERENCE_KL,
    SAMPLES,
    check_demo,
    make_output,
    making_task,
    number,
    say,
    score,
    score_before,
    task_in,
    tokens,
    train,
    training_command,
)
from openrlhf_cov.utils import terminal
from openrlhf_cov.utils.metrics_log import METRICS_FILE, read_metrics

# In place of the name of a method.
ALL = "all"
# Steps at the end of a run over which the table of all averages entropy and accuracy.
MEAN_OF = 5
ONE_SEED = (
    "One seed of each, nothing tuned: another seed differs by as much. docs/study_commands.md has seeds and intervals."
)


@program("openrlhf-cov demo")
def main() -> int | None:
    """Run the demo; exit status 1 if training fails, 2 for a bad setting, 130 when interrupted."""
    return run(parse_args())


def parse_args() -> argparse.Namespace:
    """Parse the flags of the demo."""
    parser = terminal.Parser(prog="openrlhf-cov demo", about=__doc__)
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


def run(args: argparse.Namespace) -> None:
    """Make the task, train once or with each method, score before and after, write the report, print the table.

    All trainings share one Ray and, one after the other, one engine.
    """
    started = time.monotonic()
    check_demo(task=args.task, folder=args.folder, steps=args.steps, output=args.output)
    make_output(args.output)
    say(f"task {args.task}, --method {args.method}, {args.steps} steps; everything is written to {args.output}")
    task = args.folder.resolve()
    output = args.output.resolve()
    is_comparison = args.method == ALL
    runs = {method: output / method for method in METHOD_FLAGS} if is_comparison else {args.method: output}
    kl_coef = 0.0 if is_comparison else REFERENCE_KL

    # The task is made while Ray starts: each keeps less than one core busy.
    with making_task(task, args.task) as wait_for_task:
        say(f"starting Ray; its output goes to {output / 'ray.log'}")
        with local_ray(num_gpus=2, num_cpus=8, log=output / "ray.log") as ray:
            wait_for_task()
            before = score_before(task)
            for method, folder in runs.items():
                train_method(method, args.steps, task, folder, ray, kl_coef)

    scores = {}
    for method, folder in runs.items():
        say(f"scoring the policy trained with --method {method} on the held-out problems")
        scores[method] = score(folder, task)
    say("writing the report")
    page = write_report(list(runs.values()), output / "report")
    seconds = time.monotonic() - started
    if is_comparison:
        terminal.say(table_of_all(before, scores, output, page, seconds))
    else:
        terminal.say(table(args.method, before, scores[args.method], output, page, seconds))
    terminal.say(next_steps(task, list(runs.values()), output))


def train_method(
    method: str, steps: int, task: Path, output: Path, ray: RayAddress, kl_coef: float = REFERENCE_KL
) -> None:
    """Train with one method on a Ray that runs.

    Args:
        method: Key of ``METHOD_FLAGS``.
        steps: Global steps.
        task: Folder of the embedded task.
        output: Folder of the run, which is made.
        ray: The Ray.
        kl_coef: Coefficient of the KL term to the untrained policy; 0 trains without a reference model.

    Raises:
        RunStopped: The training failed.
    """
    output.mkdir(exist_ok=True)
    say(f"training with --method {method}; the output of the training goes to {output / 'train.log'}")
    kind, _ = task_in(task)
    command = training_command(method, steps=steps, task=task, output=output, address=None, kl_coef=kl_coef, kind=kind)
    # The next method takes over the engine, whose start takes longer than many steps.
    variables = {**ray.token, "RAY_ADDRESS": ray.gcs, KEEP_ENGINES: "1", "PYTHONWARNINGS": "ignore"}
    train(command, variables, output, steps)


def table(method: str, before: dict, after: dict, output: Path, page: Path, seconds: float) -> str:
    """Return the result of a run as text.

    Args:
        method: The method that trained.
        before: Scores of the untrained policy on the held-out problems, by name.
        after: The same of the trained policy.
        output: Folder of the run.
        page: The report.
        seconds: Wall time of the demo.
    """
    lines = read_metrics(output / METRICS_FILE)
    entropy, reward = (
        [number(line, name) for line in (lines[0], lines[-1])] for name in ("entropy/mean", "rollout/reward_mean")
    )
    generated = sum(map(tokens, lines))
    generating = sum(number(line, "timing/generation") for line in lines)
    total = sum(number(line, "timing/step_total") for line in lines)
    return f"""
--method {method} on the embedded task: {len(lines)} steps of {PROMPTS} prompts x {SAMPLES} samples
                                    before     after
held-out accuracy, greedy          {before["accuracy_greedy"]:7.1%}   {after["accuracy_greedy"]:7.1%}
held-out accuracy, temperature 1   {before["accuracy_sampled"]:7.1%}   {after["accuracy_sampled"]:7.1%}
                                first step  last step
entropy, nats per token            {entropy[0]:7.3f}   {entropy[1]:7.3f}
training accuracy                  {reward[0]:7.1%}   {reward[1]:7.1%}

tokens per second   {generated / generating:,.0f} generating, {generated / total:,.0f} over the whole step
wall time           {seconds:,.0f} s, {total:,.0f} s of it in steps
checkpoint          {output}
metrics             {output / METRICS_FILE}
report              {page}
"""


def table_of_all(before: dict, scores: Mapping[str, dict], output: Path, page: Path, seconds: float) -> str:
    """Return the results of the runs as text.

    Entropy and training accuracy are means of the last ``MEAN_OF`` steps.

    Args:
        before: Scores of the untrained policy on the held-out problems, by name.
        scores: Method -> the same of the policy that it trained.
        output: Folder with a run for each method.
        page: The report.
        seconds: Wall time of the demo.
    """
    runs = {method: read_metrics(output / method / METRICS_FILE) for method in scores}

    def row(title: str, first: str, values: list[str]) -> str:
        return f"{title:<34}{first:>9}" + "".join(f"{value:>10}" for value in values)

    def tail(name: str, shape: str) -> list[str]:
        ends = [[number(line, name) for line in lines[-MEAN_OF:]] for lines in runs.values()]
        return [format(sum(end) / len(end), shape) for end in ends]

    first = next(iter(runs.values()))[0]
    lines = [row("", "before", list(scores))]
    for title, name in (("greedy", "accuracy_greedy"), ("temperature 1", "accuracy_sampled")):
        values = [f"{score[name]:.1%}" for score in scores.values()]
        lines.append(row(f"held-out accuracy, {title}", f"{before[name]:.1%}", values))
    entropy = number(first, "entropy/mean")
    accuracy = number(first, "rollout/reward_mean")
    lines.append(row("entropy, nats per token", f"{entropy:.3f}", tail("entropy/mean", ".3f")))
    lines.append(row("training accuracy", f"{accuracy:.1%}", tail("rollout/reward_mean", ".1%")))
    lines += ["", ONE_SEED, "", f"wall time  {seconds:,.0f} s", f"runs       {output}", f"report     {page}"]
    return "\n" + "\n".join(lines) + "\n"


def next_steps(task: Path, runs: Sequence[Path], output: Path) -> str:
    """Return the commands that a newcomer may want next, as they are typed in the current folder.

    Args:
        task: Folder of the embedded task.
        runs: Folders of the runs.
        output: Folder of the demo; new folders of the commands lie in it.
    """
    kind, _ = task_in(task)
    folders = [_from_here(run) for run in runs]
    commands = {
        "show the metrics of the training": ["watch", *folders, "--once"],
        "fit the entropy law": ["report", *folders, "--output", _from_here(output / "law")],
    }
    if kind.evaluation_flags is not None:
        evaluation = ["evaluate", "--model", folders[-1], "--benchmarks", _from_here(task / "benchmark.jsonl")]
        evaluation += [*kind.evaluation_flags, "--max_tokens", str(kind.evaluation_tokens)]
        evaluation += ["--samples", "8", "--temperature", "1", "--output", _from_here(output / "evaluation")]
        commands["evaluate the trained policy through vLLM"] = evaluation
    lines = [f"# {purpose}\n{shlex.join([*terminal.command_name(), *words])}\n" for purpose, words in commands.items()]
    return "Next:\n\n" + "\n".join(lines)


def _from_here(path: Path) -> str:
    """Return a path as it is typed in the current folder: relative where it lies below it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


if __name__ == "__main__":
    sys.exit(main())
