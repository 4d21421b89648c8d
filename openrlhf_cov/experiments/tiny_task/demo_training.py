"""The training of the demo on an embedded task: make the task, train on it in a process of its own, score the policy.

The command ``demo`` runs one training after the other on one Ray, ``reproduce --scale tiny`` runs those of an exhibit.
"""

import json
import math
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tqdm import tqdm

from openrlhf_cov.cluster.local_ray import environment, stop
from openrlhf_cov.cluster.packages import require
from openrlhf_cov.errors import RunStopped, UsageError
from openrlhf_cov.experiments.tiny_task.catalogue import TINY_TASKS, TinyTask
from openrlhf_cov.experiments.tiny_task.task_files import MadeTask, TaskSettings, evaluate, is_occupied, read_task
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
# What ``openrlhf_cov.experiments.tiny_task.task_files.evaluate`` finds.
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


def check_demo(*, task: str, folder: Path, steps: int, output: Path) -> None:
    """Refuse a demo that could not run; nothing is written.

    Args:
        task: Key of ``TINY_TASKS``.
        folder: Folder of the task, which may not exist yet.
        steps: Global steps.
        output: New folder of the run.

    Raises:
        UsageError: A folder is in use, the task gives fewer steps, a package is missing, or this machine cannot grade
            the task.
    """
    require()
    TINY_TASKS[task].check_ready()
    has_task = read_task(folder, task) is not None
    if not has_task and is_occupied(folder):
        raise UsageError(f"--folder {folder} is not empty and holds no finished task {task!r}; choose another folder")
    rows = len(_lines(folder / "train.jsonl")) if has_task else TaskSettings().train_rows
    if steps > rows // PROMPTS:
        raise UsageError(
            f"--steps {steps} is more than the task gives: {rows} training problems are {rows // PROMPTS} steps of "
            f"{PROMPTS} prompts"
        )
    try:
        if is_occupied(output):
            raise UsageError(f"--output {output} is not empty or no folder; choose a new folder")
    except OSError as error:
        raise UsageError(f"--output {output} cannot be written: {error.strerror}") from error


def make_output(output: Path) -> None:
    """Make the folder of a run. Raises UsageError if it cannot be made."""
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--output {output} cannot be written: {error.strerror}") from error


def make_task(folder: Path, name: str) -> None:
    """Make an embedded task, unless the folder holds it.

    Args:
        folder: Folder of the task, which is new or empty unless it holds the task.
        name: Key of ``TINY_TASKS``.

    Raises:
        UsageError: The command ``tiny-task`` refuses the folder.
        RunStopped: The task could not be made.
    """
    with making_task(folder, name) as wait_for_task:
        wait_for_task()


@contextmanager
def making_task(folder: Path, name: str) -> Iterator[Callable[[], None]]:
    """Make an embedded task in a process of its own, unless the folder holds it.

    Args:
        folder: Folder of the task, which is new or empty unless it holds the task.
        name: Key of ``TINY_TASKS``.

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
    # SIGTERM instead of SIGKILL, so that the process can remove its temporary folder.
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
    """Return the scores of the untrained policy, which ``openrlhf-cov tiny-task`` has written to ``task.json``."""
    _, made = task_in(task)
    scores = {name: getattr(made, name) for name in SCORES}
    if None not in scores.values():
        return scores
    say("scoring the untrained policy on the held-out problems")
    return score(task / "model", task)


def score(model: Path, task: Path) -> dict[str, float]:
    """Return the result of ``openrlhf_cov.experiments.tiny_task.task_files.evaluate`` on the held-out problems.

    Args:
        model: Folder of the policy.
        task: Folder of the embedded task. Its seed is used, so that policies are compared on the same random numbers.
    """
    from transformers.utils import logging

    logging.disable_progress_bar()
    rows = [json.loads(line) for line in _lines(task / "test.jsonl")]
    kind, made = task_in(task)
    return evaluate(model, rows, made.settings["seed"], kind)


def task_in(folder: Path) -> tuple[TinyTask, MadeTask]:
    """Return the task that a folder holds, and its ``task.json``."""
    made = read_task(folder)
    assert made is not None, folder
    return next(task for task in TINY_TASKS.values() if task.datasource == made.task), made


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def training_command(
    method: str,
    *,
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
    # As many prompts as the steps need, so that the only episode ends with the last step.
    flags = f"""
        --data.input_key input --data.label_key label --data.max_samples {steps * PROMPTS}
        --actor.num_gpus_per_node 1 --ref.num_gpus_per_node 1 --train.colocate_actor_ref --vllm.num_engines 1
        --algo.advantage.estimator group_norm --algo.kl.use_loss --algo.kl.estimator k3 --algo.kl.init_coef {kl_coef}
        --rollout.batch_size {PROMPTS} --rollout.n_samples_per_prompt {SAMPLES} --rollout.micro_batch_size 64
        --vllm.max_num_seqs {PROMPTS * SAMPLES}
        --train.batch_size 32 --train.micro_batch_size 32
        --actor.adam.lr 3e-5 --actor.lr_scheduler constant --ds.zero_stage 2
        --method {method} --rollout_seeded --cov_dump_every 10
    """
    paths = {
        "--actor.model_name_or_path": task / "model",
        "--data.prompt_dataset": task / "train.jsonl",
        "--ckpt.output_dir": output,
        "--ckpt.path": output / "checkpoints",
        "--logger.tensorboard_dir": output / "tensorboard",
    }
    words = [sys.executable, "-m", "openrlhf_cov.cli.train_ppo_ray"]
    words += [word for flag, path in paths.items() for word in (flag, str(path))]
    words += [*shlex.split(flags), *kind.flags, *METHOD_FLAGS[method]]
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

    Args:
        path: The metrics file, which may not exist yet.
        job: The training that writes it.
        wait: Called whenever the file has been read, about twice a second.
    """
    seen = 0
    ended = False
    while not ended:
        # Asked before the file is read: lines that the job wrote before its end are then never missed.
        ended = job.poll() is not None
        lines = read_metrics(path) if path.exists() else []
        yield from lines[seen:]
        seen = len(lines)
        wait()
        time.sleep(0.0 if ended else 0.5)


def number(line: dict, name: str) -> float:
    """Return a value of a metrics line.

    Args:
        line: A line of ``metrics.jsonl``.
        name: Name of the metric.

    Returns:
        The value; NaN if the line lacks the metric or has null, which stands for NaN and infinities.
    """
    value = line.get(name)
    return math.nan if value is None else value


def tokens(line: dict) -> float:
    """Return the response tokens of one step."""
    return number(line, "rollout/response_length_mean") * number(line, "rollout/num_samples")


def step_line(line: dict) -> str:
    """Return one step as a line for the terminal."""
    seconds = number(line, "timing/step_total")
    return (
        f"{line['step']:5d}  {number(line, 'rollout/reward_mean'):8.3f}  {number(line, 'entropy/mean'):7.3f}"
        f"  {number(line, 'cov/selected_frac'):8.4f}  {tokens(line) / seconds:8.0f}  {seconds:7.1f}"
    )


def say(message: str) -> None:
    """Print one line of progress."""
    terminal.say(f"demo: {message}\n", sys.stderr)
