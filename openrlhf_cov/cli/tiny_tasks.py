"""The embedded tasks that ``make_tiny_task`` writes and the demo trains, by name. Imports PyTorch only when asked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from openrlhf_cov.errors import UsageError
from openrlhf_cov.rewards import addition
from openrlhf_cov.rewards.code.rule import check_code_ready
from openrlhf_cov.tiny_task import commands, problems, programs

PACKAGE = Path(__file__).parents[1]


class Writable(Protocol):
    """A problem that can be written to a file."""

    def to_row(self) -> dict[str, str]:
        """A line of the data files."""
        ...

    def to_benchmark_row(self) -> dict[str, str]:
        """A line of a benchmark."""
        ...


@dataclass(frozen=True, kw_only=True)
class TinyTask:
    """What the commands have to know about one embedded task."""

    datasource: str
    """Its name in files."""
    about: str
    folder: Path
    """Where the demo keeps it unless a flag says otherwise."""
    problems: int
    """There are so many."""
    evaluation_tokens: int
    """Bound on a response in the evaluation."""
    split: Callable[[int, int], tuple[Sequence[Any], Sequence[Any]]]
    """(seed, number held out) -> what trains and what does not, each of ``Writable``."""
    policy: Callable[[], Any]
    """The ``BasePolicyConfig``."""
    make_policy: Callable[[Sequence[Any], Any, int], Any]
    """(problems, config, seed) -> the base policy and its tokenizer."""
    reward: Callable[[], Callable[..., dict[str, Any]]]
    """The reward function, with upstream's signature."""
    flags: tuple[str, ...]
    """Flags of a training: the reward, and lengths in tokens."""
    check_ready: Callable[[], None] = lambda: None
    """UsageError where this machine cannot grade it."""


def _split_sums(seed: int, held_out: int) -> tuple[Sequence[problems.Addition], Sequence[problems.Addition]]:
    split = problems.split_problems(seed, held_out)
    return split.train, split.held_out


def _sums_policy() -> Any:
    from openrlhf_cov.tiny_task.base_policy import BasePolicyConfig

    return BasePolicyConfig()


def _make_sums_policy(train: Sequence[problems.Addition], policy: Any, seed: int) -> Any:
    from openrlhf_cov.tiny_task.base_policy import make_base_policy

    return make_base_policy(train, policy, seed)


def _reward() -> Callable[..., dict[str, Any]]:
    from openrlhf_cov.tiny_task.reward_func import reward_func

    return reward_func


def _commands_policy() -> Any:
    from openrlhf_cov.tiny_task.commands_policy import COMMANDS_POLICY

    return COMMANDS_POLICY


def _make_commands_policy(train: Sequence[commands.Command], policy: Any, seed: int) -> Any:
    """The laboratory's, which has seen all digits to train on, in heads that vLLM takes on a CPU."""
    from openrlhf_cov.tiny_task.commands_policy import in_wider_heads, make_commands_policy

    model, tokenizer = make_commands_policy(policy, seed)
    return in_wider_heads(model, 32), tokenizer


def _programs_policy() -> Any:
    from openrlhf_cov.tiny_task.base_policy import PROGRAMS_POLICY

    return PROGRAMS_POLICY


def _make_programs_policy(train: Sequence[programs.Exercise], policy: Any, seed: int) -> Any:
    from openrlhf_cov.tiny_task.base_policy import make_program_policy

    return make_program_policy(train, policy, seed)


def _programs_reward() -> Callable[..., dict[str, Any]]:
    from openrlhf_cov.rewards.reward_func import make_reward_func

    return make_reward_func(programs.REWARD)


def check_sandbox() -> None:
    """UsageError where no program can be run."""
    try:
        check_code_ready(programs.REWARD)
    except UsageError as error:
        raise UsageError(f"--task code runs programs in a sandbox, and {error.__cause__ or error}") from error


TINY_TASKS = {
    "addition": TinyTask(
        datasource=addition.DATASOURCE,
        about="two-digit addition",
        folder=Path("runs/tiny_task"),
        problems=len(problems.OPERANDS) ** 2,
        evaluation_tokens=40,  # the longest written answer has 18 with its end
        split=_split_sums,
        policy=_sums_policy,
        make_policy=_make_sums_policy,
        reward=_reward,
        flags=(
            *("--reward.remote_url", str(PACKAGE / "tiny_task" / "reward_func.py")),
            *("--data.max_len", "48", "--rollout.max_new_tokens", "32"),
        ),
    ),
    "commands": TinyTask(
        datasource=commands.DATASOURCE,
        about="hidden commands, the task of docs/study.md",
        folder=Path("runs/tiny_commands"),
        problems=len(commands.LETTERS) * (720 - commands.HELD_OUT_DIGITS),
        evaluation_tokens=commands.RESPONSE_TOKENS,
        split=commands.split_commands,
        policy=_commands_policy,
        make_policy=_make_commands_policy,
        reward=_reward,
        flags=(
            *("--reward.remote_url", str(PACKAGE / "tiny_task" / "reward_func.py"), "--actor.adam.lr", "1e-4"),
            *("--data.max_len", "16", "--rollout.max_new_tokens", str(commands.RESPONSE_TOKENS)),
        ),
    ),
    "code": TinyTask(
        datasource=programs.DATASOURCE,
        about="one-line programs, run in a sandbox",
        folder=Path("runs/tiny_code"),
        problems=programs.EXERCISES,
        evaluation_tokens=programs.RESPONSE_TOKENS,
        split=programs.split_exercises,
        policy=_programs_policy,
        make_policy=_make_programs_policy,
        reward=_programs_reward,
        flags=(
            *("--reward.remote_url", str(PACKAGE / "rewards" / "reward_func.py")),
            *("--reward_source", "code", "--code_extract", "whole"),
            *("--data.max_len", "48", "--rollout.max_new_tokens", str(programs.RESPONSE_TOKENS)),
        ),
        check_ready=check_sandbox,
    ),
}
"""--task -> the task."""
