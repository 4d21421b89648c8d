"""The embedded tasks as the laboratory sees them: problems to train on, problems held out, a reward, a base policy."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from transformers import LlamaForCausalLM, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from openrlhf_cov.errors import UsageError, reason_of
from openrlhf_cov.experiments.tiny_task import commands, problems, programs
from openrlhf_cov.experiments.tiny_task.base_policy import (
    PROGRAMS_POLICY,
    BasePolicyConfig,
    make_base_policy,
    make_program_policy,
)
from openrlhf_cov.experiments.tiny_task.commands_policy import COMMANDS_POLICY, make_commands_policy
from openrlhf_cov.experiments.tiny_task.shipped_policies import settings_of, shipped_policy
from openrlhf_cov.experiments.tiny_task.task_files import SEEN_BY_NO_BASE_POLICY
from openrlhf_cov.rewards import addition
from openrlhf_cov.rewards.code.rule import grade_code
from openrlhf_cov.utils.json_lines import read_json

HELD_OUT_SUMS, HELD_OUT_PROGRAMS = SEEN_BY_NO_BASE_POLICY, SEEN_BY_NO_BASE_POLICY
SHIPPED_SEED = 0
"""Seed of the base policies that come with the package."""
OF_A_LETTER = 8
"""Commands of each letter in a split, so that it has the letters as they are drawn."""
ADDITION_POLICY = BasePolicyConfig()

Made = tuple[LlamaForCausalLM, PreTrainedTokenizerBase]


class Question(Protocol):
    """What a policy is asked, and what it should answer."""

    @property
    def prompt(self) -> str:
        """The text that it continues."""
        ...

    @property
    def label(self) -> str:
        """What the reward compares with."""
        ...


@dataclass(frozen=True)
class Task:
    """One embedded task. All its prompts have the same number of tokens."""

    name: str
    tokens: int
    """Limit of a response."""
    draw: Callable[[random.Random], Question]
    """A problem to train on."""
    validation: Sequence[Question]
    """Problems that no policy trains on, with the kinds as they are drawn: of curves, and of every choice."""
    test: Sequence[Question]
    """Others like these, which decide nothing."""
    kind: Callable[[Question], str]
    """What a problem is counted under, "" where all are alike."""
    is_right: Callable[[str, str], bool]
    """(response with its end, label)."""
    policy: BasePolicyConfig
    make: Callable[[int], Made]
    """Seed -> the base policy and its tokenizer."""

    def base_policy(self, folder: Path, seed: int) -> Made:
        """Return the base policy: the one that comes with the package, or one that is trained once.

        Either is kept in ``folder`` and read from there afterwards, with the same weights.
        """
        made = settings_of(self.name, seed, self.policy)
        kept = folder / f"{self.name}-{seed}"
        record = kept / "lab.json"
        config = read_json(kept / "config.json")  # without it the library makes the largest model of the kind
        is_whole = isinstance(config, dict) and "hidden_size" in config
        is_whole = is_whole and all((kept / name).is_file() for name in ("model.safetensors", "tokenizer.json"))
        parts: Made | tuple[()] = ()
        if not is_whole or read_json(record) != made:
            parts = shipped_policy(self.name, seed, self.policy) or self.make(seed)
        try:
            for part in parts:
                part.save_pretrained(kept)
            if parts:
                record.write_text(json.dumps(made), encoding="utf-8")
            return LlamaForCausalLM.from_pretrained(kept), PreTrainedTokenizerFast.from_pretrained(kept)
        except Exception as error:  # of a full disk or a damaged file the libraries raise what they like
            raise UsageError(
                f"the base policy {kept} cannot be written or read: {reason_of(error)}; make room, or delete it"
            ) from error


def _commands() -> Task:
    train, validation, test = commands.split_digits()

    def split(name: str, digits: list[str]) -> list[Question]:
        rng = random.Random(f"{name} commands")
        return [
            commands.Command(each, triple) for each in commands.LETTERS for triple in rng.sample(digits, OF_A_LETTER)
        ]

    return Task(
        name="commands",
        tokens=commands.RESPONSE_TOKENS,
        draw=lambda rng: commands.draw(train, rng),
        validation=split("validation", validation),
        test=split("test", test),
        kind=lambda problem: commands.SKILL_OF[problem.prompt[0]],
        is_right=commands.is_right,
        policy=COMMANDS_POLICY,
        make=lambda seed: make_commands_policy(COMMANDS_POLICY, seed),
    )


def _addition() -> Task:
    split = problems.split_problems(seed=0, held_out=HELD_OUT_SUMS)
    return Task(
        name="addition",
        tokens=24,
        draw=lambda rng: rng.choice(split.train),
        validation=split.held_out[: HELD_OUT_SUMS // 2],
        test=split.held_out[HELD_OUT_SUMS // 2 :],
        kind=lambda problem: "",
        is_right=addition.is_right,
        policy=ADDITION_POLICY,
        make=lambda seed: make_base_policy(split.train, ADDITION_POLICY, seed),
    )


def _code() -> Task:
    train, held_out = programs.split_exercises(seed=0, held_out=HELD_OUT_PROGRAMS)

    def is_right(response: str, label: str) -> bool:
        return response.endswith(addition.EOS_TOKEN) and grade_code(response, label, programs.REWARD).correct

    return Task(
        name="code",
        tokens=programs.RESPONSE_TOKENS,
        draw=lambda rng: rng.choice(train),
        validation=held_out[: HELD_OUT_PROGRAMS // 2],
        test=held_out[HELD_OUT_PROGRAMS // 2 :],
        kind=lambda problem: "",
        is_right=is_right,
        policy=PROGRAMS_POLICY,
        make=lambda seed: make_program_policy(train, PROGRAMS_POLICY, seed),
    )


TASKS = {"commands": _commands, "addition": _addition, "code": _code}
