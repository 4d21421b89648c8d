"""Train a small model with a covariance method on this machine, from nothing to a table.

The command makes an embedded task, starts a Ray of its own, trains, and scores the policy on held-out problems before
and after. It writes into the folder --output. --method all trains with each method in turn, with one seed and without
the KL term to the untrained policy, as the entropy law is stated, and draws one report.
"""

import argparse
import json
import math
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from openrlhf_cov.analysis.report.write import write_report
from openrlhf_cov.cli.entry_point import command_name, program
from openrlhf_cov.cluster.local_ray import RayAddress, environment, local_ray, stop
from openrlhf_cov.cluster.packages import require
from openrlhf_cov.cluster.ray_here import KEEP_ENGINES
from openrlhf_cov.errors import RunStopped, UsageError
from openrlhf_cov.experiments.tiny_task.catalogue import TINY_TASKS, TinyTask
from openrlhf_cov.experiments.tiny_task.task_files import TaskSettings, evaluate, is_occupied, read_task
from openrlhf_cov.utils import terminal
from openrlhf_cov.utils.metrics_log import METRICS_FILE, read_metrics
from openrlhf_cov.utils.orphans import die_with_parent

PROMPTS = 32
SAMPLES = 8
# Coefficient of the KL term to the untrained policy.
REFERENCE_KL = 1e-3
# Settings for micro-batches of a few hundred tokens; the paper's fractions would pick less than one token.
METHOD_FLAGS = {
    "none": [],
    "clip_cov": ["--clip_cov_ratio", "2e-2", "--clip_cov_lb", "0.5"],
    "kl_cov": ["--kl_cov_ratio", "2e-2"],
}
# In place of one of these.
ALL = "all"
# What ``task_files.evaluate`` finds.
SCORES = ("accuracy_greedy", "accuracy_sampled", "entropy", "mean_length")
# Seconds between two messages while a training starts.
STILL_STARTING = 10.0
# Message in the log of a training -> what starts after it, the latest phase first.
PHASES = {
    "Initializing a V1 LLM engine": "starting the vLLM engine",
    "PolicyRole": "loading the policy",
    "RolloutActor": "starting the vLLM engine",
    "Connected to Ray": "starting the actors",
}
# Steps at the end of a run over which the table of all averages entropy and accuracy.
MEAN_OF = 5
ONE_SEED = "One seed of each, nothing tuned: another seed differs by as much. docs/study.md has seeds and intervals."


@program("demo")
def main() -> int | None:
    """Run the demo; exit status 1 if training fails, 2 for a bad setting, 130 when interrupted."""
    return run(parse_args())


def parse_args() -> argparse.Namespace:
    """The flags of the demo."""
    parser = terminal.Parser(prog="demo", about=__doc__)
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
    check(args)
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
    """Train with one method on the task in a folder, into the folder ``output``, on a Ray that runs."""
    output.mkdir(exist_ok=True)
    say(f"training with --method {method}; the output of the training goes to {output / 'train.log'}")
    command = training_command(method, steps, task, output, None, kl_coef, task_in(task)[0])
    # The next method takes over the engine, whose start takes longer than many steps.
    variables = {**ray.token, "RAY_ADDRESS": ray.gcs, KEEP_ENGINES: "1", "PYTHONWARNINGS": "ignore"}
    train(command, variables, output, steps)


def check(args: argparse.Namespace) -> None:
    """Refuse what ``check_settings`` refuses; make the output folder."""
    check_settings(args)
    try:
        args.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--output {args.output} cannot be written: {error.strerror}") from error


def check_settings(args: argparse.Namespace) -> None:
    """Refuse folders in use, more steps than the task gives, missing packages, and a machine that cannot grade the
    task; nothing is written."""
    require()
    TINY_TASKS[args.task].check_ready()
    has_task = read_task(args.folder, args.task) is not None
    if not has_task and is_occupied(args.folder):
        raise UsageError(
            f"--folder {args.folder} is not empty and holds no finished task {args.task!r}; choose another folder"
        )
    rows = len(_lines(args.folder / "train.jsonl")) if has_task else TaskSettings().train_rows
    if args.steps > rows // PROMPTS:
        raise UsageError(
            f"--steps {args.steps} is more than the task gives: {rows} training problems are {rows // PROMPTS} steps "
            f"of {PROMPTS} prompts"
        )
    try:
        if is_occupied(args.output):
            raise UsageError(f"--output {args.output} is not empty or no folder; choose a new folder")
    except OSError as error:
        raise UsageError(f"--output {args.output} cannot be written: {error.strerror}") from error


def make_task(folder: Path, name: str) -> None:
    """Make an embedded task, unless the folder holds it."""
    with making_task(folder, name) as wait_for_task:
        wait_for_task()


@contextmanager
def making_task(folder: Path, name: str) -> Iterator[Callable[[], None]]:
    """Make an embedded task in a process of its own, unless the folder holds it.

    Yields:
        A function that waits until the folder holds the task. It raises UsageError or RunStopped if the task could
        not be made.
    """
    if read_task(folder, name) is not None:
        say(f"using the task in {folder}")
        yield lambda: None
        return
    say(f"making the task in {folder}")
    command = [sys.executable, "-m", "openrlhf_cov.cli.make_tiny_task", "--task", name, "--output", str(folder)]
    maker = subprocess.Popen(command, start_new_session=True, preexec_fn=partial(die_with_parent, signal.SIGTERM))

    def wait() -> None:
        status = maker.wait()
        if status:
            refused = UsageError if status == 2 else RunStopped
            raise refused(f"the embedded task could not be made in {folder}; name another folder with --folder")

    try:
        yield wait
    finally:
        stop(maker)


def score_before(task: Path) -> dict[str, float]:
    """Return the scores of the untrained policy, which ``make_tiny_task`` has written to ``task.json``."""
    _, content = task_in(task)
    if all(name in content for name in SCORES):
        return {name: content[name] for name in SCORES}
    say("scoring the untrained policy on the held-out problems")
    return score(task / "model", task)


def score(model: Path, task: Path) -> dict[str, float]:
    """Return the result of ``make_tiny_task.evaluate`` on the held-out problems, with the samples of ``task.json``."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    rows = [json.loads(line) for line in _lines(task / "test.jsonl")]
    made, content = task_in(task)
    return evaluate(model, rows, content["settings"]["seed"], made)


def task_in(folder: Path) -> tuple[TinyTask, dict[str, Any]]:
    """The task that a folder holds, and its ``task.json``."""
    content = read_task(folder)
    assert content is not None, folder
    return next(task for task in TINY_TASKS.values() if task.datasource == content["task"]), content


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def training_command(
    method: str,
    steps: int,
    task: Path,
    output: Path,
    address: str | None,
    kl_coef: float = REFERENCE_KL,
    kind: TinyTask = TINY_TASKS["addition"],
) -> list[str]:
    """Return the command of a training: GRPO, 8 updates per rollout, ZeRO-2.

    Args:
        method: Key of ``METHOD_FLAGS``.
        steps: Global steps.
        task: Folder of the embedded task.
        output: Folder of the run.
        address: Dashboard of a Ray to which the training is submitted as a job. None for a training that joins the
            Ray of ``RAY_ADDRESS`` itself, which starts some seconds sooner.
        kl_coef: Coefficient of the KL term to the untrained policy; 0 trains without a reference model.
        kind: The embedded task.
    """
    flags = f"""
        --actor.model_name_or_path {task}/model --data.prompt_dataset {task}/train.jsonl
        --data.input_key input --data.label_key label --data.max_samples {steps * PROMPTS}
        --actor.num_gpus_per_node 1 --ref.num_gpus_per_node 1 --train.colocate_actor_ref --vllm.num_engines 1
        --algo.advantage.estimator group_norm --algo.kl.use_loss --algo.kl.estimator k3 --algo.kl.init_coef {kl_coef}
        --rollout.batch_size {PROMPTS} --rollout.n_samples_per_prompt {SAMPLES} --rollout.micro_batch_size 64
        --train.batch_size 32 --train.micro_batch_size 32
        --actor.adam.lr 3e-5 --actor.lr_scheduler constant --ds.zero_stage 2
        --ckpt.output_dir {output} --ckpt.path {output}/checkpoints --logger.tensorboard_dir {output}/tensorboard
        --cov_type {method} --rollout_seeded --cov_dump_every 10
    """
    trainer = [sys.executable, "-m", "openrlhf_cov.cli.train_ppo_ray"]
    words = [*trainer, *shlex.split(flags), *kind.flags, *METHOD_FLAGS[method]]
    if address is None:
        return words
    submit = [str(Path(sys.executable).with_name("ray")), "job", "submit", "--address", address]
    submit += ["--runtime-env-json", json.dumps({"env_vars": {"PYTHONWARNINGS": "ignore"}})]
    return [*submit, "--", *words]


def train(command: list[str], variables: dict[str, str], output: Path, steps: int) -> None:
    """Run a training and show its progress: a line per step, and on a terminal a progress bar.

    Until the first step, which takes most of a minute, a line every ``STILL_STARTING`` seconds says what starts.

    Args:
        command: Command line of the training.
        variables: Environment variables beside those of this process, such as the token of its Ray.
        output: Folder of the run.
        steps: Global steps of the run.

    Raises:
        RunStopped: The training failed.
    """
    log_path = output / "train.log"
    begun = time.monotonic()
    said = begun
    seen = 0

    def wait() -> None:
        nonlocal said
        now = time.monotonic()
        if seen == 0 and now - said >= STILL_STARTING:
            said = now
            say(f"{starting_phase(log_path.read_text(errors='replace'))} ({now - begun:.0f} s)")

    with log_path.open("w") as log:
        job = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=environment() | variables, start_new_session=True
        )
    try:
        with tqdm(total=steps, desc="train", unit="step", disable=None) as bar:
            # Where there is no terminal the bar is off, and `bar.write` would leave lines in the buffer of a pipe.
            show = bar.write if not bar.disable else lambda line: terminal.say(f"{line}\n")
            for line in follow(output / METRICS_FILE, job, wait):
                if seen == 0:
                    show(" step  accuracy  entropy  selected  tokens/s  seconds")
                seen += 1
                show(step_line(line))
                bar.update()
    finally:
        stop(job)
    if job.returncode:
        tail = (output / "train.log").read_text(errors="replace").splitlines()[-15:]
        terminal.say("\n".join(tail) + "\n", sys.stderr)
        raise RunStopped(f"training failed (status {job.returncode}); the whole output is in {output / 'train.log'}")


def starting_phase(log: str) -> str:
    """Return what a training starts, by the messages in its log so far."""
    return next((phase for message, phase in PHASES.items() if message in log), "starting the training process")


def follow(path: Path, job: subprocess.Popen, wait: Callable[[], None] = lambda: None) -> Iterator[dict]:
    """Yield each line of a metrics file once, as it appears, until the job has ended.

    ``wait`` is called whenever the file has been read, about twice a second.
    """
    seen = 0
    ended = False
    while not ended:
        ended = job.poll() is not None
        lines = read_metrics(path) if path.exists() else []
        yield from lines[seen:]
        seen = len(lines)
        wait()
        time.sleep(0.0 if ended else 0.5)


def number(line: dict, name: str) -> float:
    """A value of a metrics line; NaN where it holds null, which stands for NaN and infinities, or nothing."""
    value = line.get(name)
    return math.nan if value is None else value


def tokens(line: dict) -> float:
    """Response tokens of one step."""
    return number(line, "rollout/response_length_mean") * number(line, "rollout/num_samples")


def step_line(line: dict) -> str:
    """One step for the terminal."""
    seconds = number(line, "timing/step_total")
    return (
        f"{line['step']:5d}  {number(line, 'rollout/reward_mean'):8.3f}  {number(line, 'entropy/mean'):7.3f}"
        f"  {number(line, 'cov/selected_frac'):8.4f}  {tokens(line) / seconds:8.0f}  {seconds:7.1f}"
    )


def table(method: str, before: dict, after: dict, output: Path, page: Path, seconds: float) -> str:
    """Return the result of a run as text."""
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
    """Return the results of the runs; entropy and training accuracy are means of the last ``MEAN_OF`` steps."""
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
    lines = [f"# {purpose}\n{shlex.join([*command_name(), *words])}\n" for purpose, words in commands.items()]
    return "Next:\n\n" + "\n".join(lines)


def _from_here(path: Path) -> str:
    """Return a path as it is typed in the current folder: relative where it lies below it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def say(message: str) -> None:
    """One line of progress."""
    terminal.say(f"demo: {message}\n", sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
