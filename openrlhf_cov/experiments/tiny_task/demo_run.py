"""A demo from nothing to its results: the task, the trainings on one Ray, the scores before and after, the report."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from openrlhf_cov.analysis.report.write import write_report
from openrlhf_cov.cluster.local_ray import RayAddress, local_ray
from openrlhf_cov.cluster.ray_here import KEEP_ENGINES
from openrlhf_cov.experiments.tiny_task.demo_training import (
    METHOD_FLAGS,
    REFERENCE_KL,
    check_demo,
    make_output,
    making_task,
    say,
    score,
    score_before,
    task_in,
    train,
    training_command,
)

# In place of the name of a method: each of ``METHOD_FLAGS``, one after the other.
ALL = "all"

# Result of ``openrlhf_cov.experiments.tiny_task.task_files.evaluate`` on the held-out problems, by name.
Scores = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """The result of a demo. All folders are absolute."""

    # Folder of the embedded task.
    task: Path
    # Folder of the demo.
    output: Path
    # Method -> folder of the run that it trained.
    runs: Mapping[str, Path]
    # Scores of the untrained policy, and of the trained one by method.
    before: Scores
    after: Mapping[str, Scores]
    # The report.
    page: Path
    # Wall time of the demo.
    seconds: float


def run_demo(method: str, *, task_name: str, folder: Path, steps: int, output: Path) -> DemoResult:
    """Make the task, train once or with each method, score before and after, and write the report.

    All trainings share one Ray and, one after the other, one engine. Those of ``ALL`` have no KL term to the untrained
    policy, as the entropy law is stated.

    Args:
        method: Key of ``METHOD_FLAGS``, or ``ALL``.
        task_name: Key of ``TINY_TASKS``.
        folder: Folder of the task, which may not exist yet.
        steps: Global steps of each training.
        output: New folder of the demo.

    Raises:
        UsageError: A folder is in use, the task gives fewer steps, a package is missing, or this machine cannot grade
            the task.
        RunStopped: The task could not be made, Ray could not be started, or a training failed.
    """
    started = time.monotonic()
    check_demo(task=task_name, folder=folder, steps=steps, output=output)
    make_output(output)
    say(f"task {task_name}, --method {method}, {steps} steps; everything is written to {output}")
    task = folder.resolve()
    output = output.resolve()
    is_comparison = method == ALL
    runs = {name: output / name for name in METHOD_FLAGS} if is_comparison else {method: output}
    kl_coef = 0.0 if is_comparison else REFERENCE_KL

    # The task is made while Ray starts: each keeps less than one core busy.
    with making_task(task, task_name) as wait_for_task:
        say(f"starting Ray; its output goes to {output / 'ray.log'}")
        with local_ray(num_gpus=2, num_cpus=8, log=output / "ray.log") as ray:
            wait_for_task()
            before = score_before(task)
            for name, run in runs.items():
                train_method(name, steps, task, run, ray, kl_coef)

    after = {}
    for name, run in runs.items():
        say(f"scoring the policy trained with --method {name} on the held-out problems")
        after[name] = score(run, task)
    say("writing the report")
    page = write_report(list(runs.values()), output / "report")
    seconds = time.monotonic() - started
    return DemoResult(task=task, output=output, runs=runs, before=before, after=after, page=page, seconds=seconds)


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
