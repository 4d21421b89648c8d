"""The embedded tasks that ``make_tiny_task`` writes and the demo trains, by name. Imports PyTorch only when asked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from openrlhf_cov.errors import UsageError
from openrlhf_cov.experiments.tiny_task import commands, problems, programs
from openrlhf_cov.rewards import addition
from openrlhf_cov.rewards.code.rule import check_code_ready

PACKAGE = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class TinyTask:
    """The properties of one embedded task that the commands use."""

    # Its name in files.
    datasource: str
    about: str
    # Where the demo keeps it unless a flag says otherwise.
    folder: Path
    # There are so many.
    problems: int
    # Bound on a response in the evaluation.
    evaluation_tokens: int
    # Flags of ``openrlhf-cov evaluate`` for its benchmark; None where that command has no grader for the task.
    evaluation_flags: tuple[str, ...] | None = ("--template", "none")
    # (seed, number held out) -> what trains and what does not, each with ``to_row()``, a line of the data files, and
    # ``to_benchmark_row()``, one of a benchmark.
    split: Callable[[int, int], tuple[Sequence[Any], Sequence[Any]]]
    # The ``BasePolicyConfig``.
    policy: Callable[[], Any]
    # (problems, config, seed) -> the base policy and its tokenizer.
    make_policy: Callable[[Sequence[Any], Any, int], Any]
    # The policy that comes with the package -> the one that ``make_policy`` trains.
    adapt: Callable[[Any], Any] = lambda model: model
    # The reward function, with upstream's signature.
    reward: Callable[[], Callable[..., dict[str, Any]]]
    # Flags of a training: the reward, and lengths in tokens.
    flags: tuple[str, ...]
    # UsageError where this machine cannot grade it.
    check_ready: Callable[[], None] = lambda: None


def _load(name: str) -> Any:
    """Return the object with a name of the form "module:name" in this package."""
    module, attribute = name.split(":")
    return getattr(import_module(f"openrlhf_cov.{module}"), attribute)


def _call(name: str, *arguments: Any) -> Any:
    """Return the result of a function that is named as in ``_load``."""
    return _load(name)(*arguments)


def check_sandbox() -> None:
    """Raise UsageError where no program can be run."""
    try:
        check_code_ready(programs.REWARD)
    except UsageError as error:
        raise UsageError(f"--task code runs programs in a sandbox, and {error.__cause__ or error}") from error


# --task -> the task.
TINY_TASKS = {
    "addition": TinyTask(
        datasource=addition.DATASOURCE,
        about="two-digit addition",
        folder=Path("runs/tiny_task"),
        problems=len(problems.OPERANDS) ** 2,
        evaluation_tokens=40,  # the longest written answer has 18 with its end
        split=problems.split_problems,
        policy=partial(_call, "experiments.tiny_task.base_policy:BasePolicyConfig"),
        make_policy=partial(_call, "experiments.tiny_task.base_policy:make_base_policy"),
        reward=partial(_load, "experiments.tiny_task.tiny_reward_func:reward_func"),
        flags=(
            *("--reward.remote_url", str(PACKAGE / "experiments" / "tiny_task" / "tiny_reward_func.py")),
            *("--data.max_len", "48", "--rollout.max_new_tokens", "32"),
        ),
    ),
    "commands": TinyTask(
        datasource=commands.DATASOURCE,
        about="find the skill that belongs to each letter (docs/lab.md)",
        folder=Path("runs/tiny_commands"),
        problems=len(commands.LETTERS) * (720 - commands.HELD_OUT_DIGITS),
        evaluation_tokens=commands.RESPONSE_TOKENS,
        evaluation_flags=None,
        split=commands.split_commands,
        policy=partial(_load, "experiments.tiny_task.commands_policy:COMMANDS_POLICY"),
        make_policy=partial(_call, "experiments.tiny_task.commands_policy:make_wide_policy"),
        adapt=partial(_call, "experiments.tiny_task.commands_policy:in_vllm_heads"),
        reward=partial(_load, "experiments.tiny_task.tiny_reward_func:reward_func"),
        flags=(
            *(
                "--reward.remote_url",
                str(PACKAGE / "experiments" / "tiny_task" / "tiny_reward_func.py"),
                "--actor.adam.lr",
                "1e-4",
            ),
            *("--data.max_len", "16", "--rollout.max_new_tokens", str(commands.RESPONSE_TOKENS)),
        ),
    ),
    "code": TinyTask(
        datasource=programs.DATASOURCE,
        about="one-line programs, run in a sandbox",
        folder=Path("runs/tiny_code"),
        problems=programs.EXERCISES,
        evaluation_tokens=programs.RESPONSE_TOKENS,
        evaluation_flags=("--template", "none", "--code_extract", "whole"),
        split=programs.split_exercises,
        policy=partial(_load, "experiments.tiny_task.base_policy:PROGRAMS_POLICY"),
        make_policy=partial(_call, "experiments.tiny_task.base_policy:make_program_policy"),
        reward=partial(_call, "rewards.reward_func:make_reward_func", programs.REWARD),
        flags=(
            *("--reward.remote_url", str(PACKAGE / "rewards" / "reward_func.py")),
            *("--reward_source", "code", "--code_extract", "whole"),
            *("--data.max_len", "48", "--rollout.max_new_tokens", str(programs.RESPONSE_TOKENS)),
        ),
        check_ready=check_sandbox,
    ),
}
