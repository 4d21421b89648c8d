"""The embedded tasks as the lab sees them: problems to train on, problems held out, a reward, a base policy."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from transformers import LlamaForCausalLM, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from openrlhf_cov.errors import UsageError, reason_of
from openrlhf_cov.experiments.lab.request import SHORTCUT_TASKS
from openrlhf_cov.experiments.tiny_task import commands, graph_paths, hidden_skills, problems, programs, two_peaks
from openrlhf_cov.experiments.tiny_task.base_policy import (
    PROGRAMS_POLICY,
    BasePolicyConfig,
    make_base_policy,
    make_program_policy,
)
from openrlhf_cov.experiments.tiny_task.commands_policy import COMMANDS_POLICY, make_commands_policy
from openrlhf_cov.experiments.tiny_task.headroom_policies import (
    LARGE_SKILLS_POLICY,
    PATHS_POLICY,
    SKILLS_POLICY,
    TablePolicyConfig,
    make_paths_policy,
    make_skills_policy,
    make_table_policy,
)
from openrlhf_cov.experiments.tiny_task.shipped_policies import settings_of, shipped_policy
from openrlhf_cov.experiments.tiny_task.task_files import SEEN_BY_NO_BASE_POLICY
from openrlhf_cov.rewards import addition
from openrlhf_cov.rewards.code.rule import grade_code
from openrlhf_cov.utils.json_lines import read_json

HELD_OUT_SUMS = SEEN_BY_NO_BASE_POLICY
HELD_OUT_PROGRAMS = SEEN_BY_NO_BASE_POLICY
# Seed of the base policies that come with the package.
SHIPPED_SEED = 0
# Commands of each letter in a split, so that it has the letters as they are drawn.
OF_A_LETTER = 8
ADDITION_POLICY = BasePolicyConfig()

Made = tuple[LlamaForCausalLM, PreTrainedTokenizerBase]


class Question(Protocol):
    """A prompt of the task and its expected answer."""

    @property
    def prompt(self) -> str:
        """The text that it continues."""
        ...

    @property
    def label(self) -> str:
        """The text that the reward compares with."""
        ...


@dataclass(frozen=True)
class Task:
    """One embedded task. All its prompts have the same number of tokens."""

    name: str
    # Limit of a response.
    tokens: int
    # A problem to train on.
    draw: Callable[[random.Random], Question]
    # Problems that no policy trains on, with the kinds as they are drawn: of curves, and of every choice.
    validation: Sequence[Question]
    # Others like these, which decide nothing.
    test: Sequence[Question]
    # What a problem is counted under, "" where all are alike.
    kind: Callable[[Question], str]
    # (response with its end, label).
    is_right: Callable[[str, str], bool]
    # Dataclass of everything that determines the base policy beside its seed.
    policy: Any
    # Seed -> the base policy and its tokenizer.
    make: Callable[[int], Made]
    # True for the questions that the habit of the base policy does not answer. The task counts as solved by the greedy
    # accuracy on these. Where they are not all questions, evaluations report that accuracy as ``greedy_hard``.
    needs_exploration: Callable[[Question], bool] = lambda question: True
    # Response -> the probability that it is rewarded in training. None: the reward is 1 for a correct response.
    mean_reward: Callable[[str], float] | None = None
    # True if a question has several correct answers. Evaluations then count the different ones among the samples.
    has_many_answers: bool = False
    # The questions of every rollout, in this order. Empty: each question of a rollout comes from ``draw``.
    replicas: tuple[Question, ...] = ()
    # Place in a response, from 0, of the token that decides between answers.
    decision_token: int = 0
    # Prompt -> the name of its skill, for a task whose decision token names a skill. None: no token does.
    skill_of: Callable[[str], str] | None = None
    # The names of the skills.
    skills: tuple[str, ...] = ()
    # Prefix of the names of the parameters that are trained; "" trains all.
    trained: str = ""

    def questions(self, rng: random.Random, count: int) -> list[Question]:
        """Return the questions of one rollout.

        Args:
            rng: Source of the questions; not used by a task that trains replicas.
            count: Number of questions.

        Raises:
            UsageError: If the task trains a fixed number of replicas and ``count`` is another number.
        """
        if not self.replicas:
            return [self.draw(rng) for _ in range(count)]
        if count != len(self.replicas):
            raise UsageError(
                f"--rollout.batch_size {count}: the task {self.name} trains all of its {len(self.replicas)} replicas "
                f"in every rollout; use --rollout.batch_size {len(self.replicas)}"
            )
        return list(self.replicas)

    def base_policy(self, folder: Path, seed: int) -> Made:
        """Return the base policy: the one that comes with the package, or one that is trained once.

        Args:
            folder: Folder of base policies. The policy is kept there and read from there afterwards, with the same
                weights; a damaged one, or one of other settings, is made again.
            seed: Seed of the base policy.

        Returns:
            The model, in which only the parameters of ``trained`` receive gradients, and its tokenizer.

        Raises:
            UsageError: The policy cannot be written or read.
        """
        made = settings_of(self.name, seed, self.policy)
        kept = folder / f"{self.name}-{seed}"
        record = kept / "lab.json"
        config = read_json(kept / "config.json")  # without it the library makes the largest model of the kind
        # The files may be those of a process that was killed while it saved them.
        is_whole = isinstance(config, dict) and "hidden_size" in config
        is_whole = is_whole and all((kept / name).is_file() for name in ("model.safetensors", "tokenizer.json"))
        parts: Made | tuple[()] = ()
        if not is_whole or read_json(record) != made:
            parts = shipped_policy(self.name, seed, self.policy) or self.make(seed)
        try:
            for part in parts:
                part.save_pretrained(kept)
            if parts:
                # Written last: without it, or with other settings in it, the policy is made again.
                record.write_text(json.dumps(made), encoding="utf-8")
            # Read from the files even when just made, so that a first run has the weights of all later ones.
            model = LlamaForCausalLM.from_pretrained(kept)
            tokenizer = PreTrainedTokenizerFast.from_pretrained(kept)
        except Exception as error:  # of a full disk or a damaged file the libraries raise what they like
            raise UsageError(
                f"the base policy {kept} cannot be written or read: {reason_of(error)}; make room, or delete it"
            ) from error
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.startswith(self.trained))
        return model, tokenizer


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
        skill_of=lambda prompt: commands.SKILL_OF[prompt[0]],
        skills=tuple(commands.SKILLS),
    )


def _addition() -> Task:
    split = problems.split_problems(seed=0, held_out=HELD_OUT_SUMS)
    return Task(
        name="addition",
        # The longest answer that the base policy has learned has 18 tokens with its end.
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
        # A response without an end was cut off, even if what is there is a program.
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


def _shortcut(share: float = hidden_skills.DEFAULT_SHARE) -> Task:
    return _hidden_skills(hidden_skills.shortcut_task(share))


def _shortcut_large(share: float = hidden_skills.DEFAULT_SHARE) -> Task:
    return _hidden_skills(hidden_skills.shortcut_task(share, "shortcut_large"), LARGE_SKILLS_POLICY)


def _hidden_skills(skills: hidden_skills.SkillTask, policy: BasePolicyConfig = SKILLS_POLICY) -> Task:
    train, validation, test = commands.split_digits()

    def split(name: str, digits: list[str]) -> list[Question]:
        rng = random.Random(f"{name} hidden skills")
        return [
            skills.question(letter, triple)
            for letter in commands.LETTERS
            for triple in rng.sample(digits, OF_A_LETTER)
        ]

    def asked(question: Question) -> hidden_skills.SkillQuestion:
        return skills.question(question.prompt[0], question.prompt[1:])

    return Task(
        name=skills.name,
        tokens=hidden_skills.RESPONSE_TOKENS,
        draw=lambda rng: skills.draw(train, rng),
        validation=split("validation", validation),
        test=split("test", test),
        kind=lambda question: asked(question).kind,
        is_right=hidden_skills.is_correct,
        policy=policy,
        make=lambda seed: make_skills_policy(skills, policy, seed),
        needs_exploration=lambda question: asked(question).needs_exploration,
        skill_of=lambda prompt: hidden_skills.SKILL_OF[prompt[0]],
        skills=tuple(hidden_skills.SKILLS),
    )


def _graph_paths() -> Task:
    paths = graph_paths.path_task()
    return Task(
        name="graph_paths",
        tokens=graph_paths.RESPONSE_TOKENS,
        draw=lambda rng: rng.choice(paths.train),
        validation=paths.validation,
        test=paths.test,
        kind=lambda question: "",
        is_right=paths.is_correct,
        policy=PATHS_POLICY,
        make=lambda seed: make_paths_policy(paths, PATHS_POLICY, seed),
        has_many_answers=True,
        decision_token=1,  # a path begins with the source of the prompt
    )


def _two_peaks() -> Task:
    replicas = tuple(two_peaks.Replica(word) for word in two_peaks.REPLICA_WORDS)
    config = TablePolicyConfig()
    return Task(
        name="two_peaks",
        tokens=1,
        draw=lambda rng: rng.choice(replicas),
        # Every replica has logits of its own, so there is no question that could be held out.
        validation=replicas,
        test=replicas,
        kind=lambda question: "",
        is_right=lambda response, label: two_peaks.is_better_arm(response),
        policy=config,
        make=lambda seed: make_table_policy(config, seed),
        mean_reward=two_peaks.mean_reward,
        replicas=replicas,
        trained="lm_head",
    )


TASKS: dict[str, Callable[..., Task]] = {
    "commands": _commands,
    "addition": _addition,
    "code": _code,
    "shortcut": _shortcut,
    "shortcut_large": _shortcut_large,
    "tail": partial(_hidden_skills, hidden_skills.TAIL),
    "graph_paths": _graph_paths,
    "two_peaks": _two_peaks,
}


def make_task(name: str, shortcut_share: float) -> Task:
    """Return an embedded task.

    Args:
        name: Key of ``TASKS``.
        shortcut_share: Share of the prompts, from 0 to 1, on which tasks of ``SHORTCUT_TASKS`` also accept the habit
            of the base policy. The other tasks do not use it.
    """
    if name in SHORTCUT_TASKS:
        return TASKS[name](shortcut_share)
    return TASKS[name]()
