"""The folder of an embedded task: base policy, training and test problems, and what the policy can do."""

import json
import logging
import tempfile
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from openrlhf_cov.experiments.tiny_task.catalogue import TINY_TASKS, TinyTask
from openrlhf_cov.utils.json_lines import write_json, write_lines
from openrlhf_cov.utils.record_checks import OPEN, find_record

logger = logging.getLogger(__name__)

EVALUATION_BATCH_SIZE = 256

# Problems at the head of a split that no base policy is trained on, also where a task holds out fewer. The demo and
# the lab, which hold out different numbers of problems, so start from the same policy.
SEEN_BY_NO_BASE_POLICY = 512

MODEL_FILES = ("model/model.safetensors", "model/config.json", "model/tokenizer.json")

TASK_FILES = (*MODEL_FILES, "train.jsonl", "test.jsonl")


@dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """The choices of the command line; raises ValueError, naming the flag, for a value out of range."""

    task: str = "addition"
    seed: int = 0
    train_rows: int = 4096
    test_rows: int = 256

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"--seed {self.seed}: must be from 0 to 2**63 - 1")
        for name in ("train_rows", "test_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} {getattr(self, name)}: must be at least 1")
        problems = TINY_TASKS[self.task].problems
        if self.train_rows + self.test_rows > problems:
            raise ValueError(
                f"--train_rows and --test_rows are at most {problems} together, as there are no more problems; "
                f"got {self.train_rows} and {self.test_rows}"
            )


@dataclass(frozen=True)
class MadeTask:
    """The ``task.json`` of a finished task, as far as it is read."""

    __pydantic_config__ = OPEN

    # ``TinyTask.datasource``.
    task: str
    # See ``recorded_settings``.
    settings: dict[str, Any]
    # Numbers of ``evaluate``; a task that was made without an evaluation has none.
    accuracy_greedy: float | None = None
    accuracy_sampled: float | None = None
    entropy: float | None = None
    mean_length: float | None = None


def recorded_settings(settings: TaskSettings, policy: Any) -> dict[str, Any]:
    """Return everything that determines a task, as ``task.json`` has it.

    Args:
        settings: The task, its seed and numbers of rows.
        policy: The ``BasePolicyConfig`` of the base policy.
    """
    named = {name: value for name, value in asdict(settings).items() if name != "task"}  # stands beside the settings
    tokens = TINY_TASKS[settings.task].evaluation_tokens
    return {**named, "max_new_tokens": tokens, "base_policy": asdict(policy)}


def write_task(output: Path, settings: TaskSettings, policy: Any) -> dict[str, Any]:
    """Make an embedded task, write it to a folder, and return the content of its ``task.json``.

    All files are written to a temporary folder beside ``output``, which is renamed at the end.

    Args:
        output: The folder to write, which is new or empty.
        settings: The task, its seed and numbers of rows.
        policy: The ``BasePolicyConfig`` of the base policy.

    Raises:
        OSError: The folder cannot be written.
    """
    started = time.monotonic()
    made = TINY_TASKS[settings.task]
    train, held_out = made.split(settings.seed, settings.test_rows)
    test = [problem.to_row() for problem in held_out]
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as scratch:
        folder = Path(scratch, "task")
        folder.mkdir()
        trained = [problem.to_row() for problem in train[: settings.train_rows]]
        write_lines(folder / "train.jsonl", map(json.dumps, trained))
        write_lines(folder / "test.jsonl", map(json.dumps, test))
        write_lines(folder / "benchmark.jsonl", (json.dumps(problem.to_benchmark_row()) for problem in held_out))
        model, tokenizer = _base_policy(settings, policy)
        model.save_pretrained(folder / "model")
        tokenizer.save_pretrained(folder / "model")
        task = {
            "task": made.datasource,
            "settings": recorded_settings(settings, policy),
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            **evaluate(folder / "model", test, settings.seed, made),
            "seconds": round(time.monotonic() - started, 1),
        }
        write_json(folder / "task.json", task)
        # One rename at the end: a task that was interrupted leaves no folder that looks like one.
        folder.replace(output)
    return task


def _base_policy(settings: TaskSettings, policy: Any) -> tuple[Any, Any]:
    """Return base policy and tokenizer: those that come with the package, or newly trained ones."""
    from openrlhf_cov.experiments.tiny_task.shipped_policies import shipped_policy

    made = TINY_TASKS[settings.task]
    held_out = max(settings.test_rows, SEEN_BY_NO_BASE_POLICY)
    # A shipped policy has seen all problems but the first SEEN_BY_NO_BASE_POLICY, so also some of a larger test.
    if held_out == SEEN_BY_NO_BASE_POLICY:
        shipped = shipped_policy(settings.task, settings.seed, policy)
        if shipped is not None:
            model, tokenizer = shipped
            return made.adapt(model), tokenizer
    unseen, _ = made.split(settings.seed, held_out)
    return made.make_policy(unseen, policy, settings.seed)


def evaluate(model_dir: Path, rows: list[dict[str, str]], seed: int, task: TinyTask) -> dict[str, float]:
    """Evaluate a policy on the test problems, greedily and at temperature 1.

    Args:
        model_dir: Folder of the policy.
        rows: Rows of ``test.jsonl``.
        seed: Seed of the folder's ``task.json``.
        task: The embedded task.

    Returns:
        Both accuracies, and at temperature 1 the entropy in nats per token and the mean length in tokens.
    """
    from openrlhf_cov.experiments.tiny_task.accuracy import evaluate_policy

    logger.info("evaluating the policy in %s on %d held-out problems", model_dir, len(rows))
    bounds = {"batch_size": EVALUATION_BATCH_SIZE, "max_new_tokens": task.evaluation_tokens}
    score = partial(evaluate_policy, model_dir, rows, seed=seed, reward=task.reward(), **bounds)
    greedy = score(temperature=0.0)
    sampled = score(temperature=1.0)
    return {
        "accuracy_greedy": greedy.accuracy,
        "accuracy_sampled": sampled.accuracy,
        "entropy": sampled.entropy,
        "mean_length": sampled.mean_length,
    }


def is_occupied(output: Path) -> bool:
    """Return True if ``output`` is a folder with content, or anything other than a folder."""
    return output.exists() and not (output.is_dir() and not any(output.iterdir()))


def read_task(output: Path, *names: str) -> MadeTask | None:
    """Return the task of a folder that holds a finished one with all its files, else None.

    Args:
        output: The folder.
        names: Names of the tasks that count; all tasks if none is named.
    """
    task = find_record(MadeTask, output / "task.json")
    known = [TINY_TASKS[name].datasource for name in names or TINY_TASKS]
    is_whole = all((output / name).is_file() for name in TASK_FILES)
    return task if task is not None and task.task in known and is_whole else None


def settings_difference(recorded: dict[str, Any], wanted: dict[str, Any]) -> str:
    """Return ``name value, not value`` for each top-level setting that differs; empty if none does.

    Args:
        recorded: The settings of a task that exists, whose value is shown first.
        wanted: The settings that are asked for. A setting that only one of both has differs from None.
    """
    names = [name for name in {**wanted, **recorded} if recorded.get(name) != wanted.get(name)]
    return "; ".join(f"{name} {recorded.get(name)}, not {wanted.get(name)}" for name in names)
