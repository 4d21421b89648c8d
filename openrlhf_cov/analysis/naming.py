"""Names that other trainers use for the metrics of docs/metrics.md."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from openrlhf_cov.errors import UsageError
from openrlhf_cov.utils.metric_table import ENTROPY, STEP, STEP_TOTAL, TIME

# What stands before the numbers of an evaluation in OpenRLHF, in TRL and here.
EVALUATION = "eval/"
# The step of an evaluation, in rows of W&B in which OpenRLHF and this project log an evaluation alone.
EVALUATION_STEP = f"{EVALUATION}global_step"

# The clock of a row, in seconds; W&B's is ``_timestamp``. It tells which rows a resumed run has left behind.
CLOCKS = ("time", "_timestamp")

# Names that a mapping may use for ours.
SHORT_NAMES = {"entropy": ENTROPY, "length": "response_length"}


@dataclass(frozen=True)
class Naming:
    """Names of a trainer: ``columns`` holds, for each of ours, theirs, best first.

    ``prefix`` stands before all its training metrics, names that begin with one of ``evaluation`` are evaluations.
    """

    columns: Mapping[str, tuple[str, ...]]
    prefix: str
    evaluation: tuple[str, ...]


NAMINGS = {
    # openrlhf 0.11.2, utils/logging_utils.py: "train/" and "eval/" before the names of metrics.jsonl; entropy_loss is
    # the mean entropy during the updates, only with --actor.entropy_coef. With openrlhf_cov, entropy/mean is there.
    "openrlhf": Naming(
        columns={
            STEP: ("step", "train/global_step", "global_step", "_step", "Step"),
            ENTROPY: (f"train/{ENTROPY}", ENTROPY, "train/entropy_loss", "entropy_loss"),
            "reward": ("train/reward", "reward"),
        },
        prefix="train/",
        evaluation=(EVALUATION, "eval_"),
    ),
    # verl, trainer/ppo/metric_utils.py and ray_trainer.py (2025); before mid-2025 the entropy was actor/entropy_loss.
    # The score is what the reward function gave, critic/rewards has a KL penalty in it. Evaluations are
    # val-core/SOURCE/acc/mean@N, before val/test_score/SOURCE.
    "verl": Naming(
        columns={
            STEP: ("step", "training/global_step", "global_step", "_step", "Step"),
            ENTROPY: ("actor/entropy", "actor/entropy_loss"),
            "reward": ("critic/score/mean", "critic/rewards/mean"),
            "score": ("critic/score/mean",),
            "response_length": ("response_length/mean",),
            "ppo_kl": ("actor/ppo_kl",),
            "kl": ("actor/kl_loss", "actor/reward_kl_penalty"),
            "policy_loss": ("actor/pg_loss",),
            "ppo/clip_frac": ("actor/pg_clipfrac",),
            "actor_grad_norm": ("actor/grad_norm",),
            "actor_lr": ("actor/lr",),
            "timing/generation": ("timing_s/gen",),
            "timing/ppo_train": ("timing_s/update_actor",),
            STEP_TOTAL: ("timing_s/step",),
        },
        prefix="",
        evaluation=("val-core/", "val-aux/", "val/"),
    ),
    # TRL, trainer/grpo_trainer.py (2025), through transformers' rewrite_logs, which turns eval_X into eval/X and sets
    # train/ before the others; trainer_state.json and CSV files made of it have no train/.
    "trl": Naming(
        columns={
            STEP: ("step", "train/global_step", "global_step", "_step", "Step"),
            ENTROPY: ("train/entropy", "entropy"),
            "reward": ("train/reward", "reward"),
            "response_length": ("train/completions/mean_length", "completions/mean_length"),
            "kl": ("train/kl", "kl"),
            "group_reward_std": ("train/reward_std", "reward_std"),
            "actor_grad_norm": ("train/grad_norm", "grad_norm"),
            "actor_lr": ("train/learning_rate", "learning_rate"),
        },
        prefix="train/",
        evaluation=(EVALUATION, "eval_"),
    ),
}


@dataclass(frozen=True)
class Renaming:
    """Our name -> theirs, of training and of evaluation columns; one of theirs may serve two of ours."""

    training: dict[str, str]
    evaluation: dict[str, str]
    # Their column with the step of rows that have an evaluation alone, None without one.
    evaluation_step: str | None = None


def renaming(names: Iterable[str], mapping: Mapping[str, str] | str | None = None) -> Renaming:
    """Return our names for the columns of a log, with STEP among them if the log has a column for it.

    What is not mapped keeps its name, without the trainer's prefix.

    Args:
        names: The columns of the log.
        mapping: {ours: theirs}, such as {"entropy": "actor/entropy", "reward": "critic/score/mean"}, or the name of
            one of ``NAMINGS``; None for the one of them that knows most of the names.

    Raises:
        UsageError: A name is not in the log, or ``mapping`` is no name of ``NAMINGS``.
    """
    names = list(names)
    if isinstance(mapping, str) and mapping not in NAMINGS:
        raise UsageError(f"no names of {mapping!r} are known, only of {', '.join(NAMINGS)}")
    known = NAMINGS[mapping] if isinstance(mapping, str) else max(NAMINGS.values(), key=lambda each: _fit(each, names))
    wanted = {**known.columns, TIME: CLOCKS}
    chosen = {ours: next((name for name in each if name in names), None) for ours, each in wanted.items()}
    if isinstance(mapping, Mapping):
        for given, name in mapping.items():
            ours = SHORT_NAMES.get(given, given)
            if name not in names:
                near = difflib.get_close_matches(name, names, n=3, cutoff=0.4) or sorted(names)[:10]
                raise UsageError(
                    f"{ours} is mapped to {name!r}, which the log does not have; it has {', '.join(near)}"
                )
            chosen[ours] = name
    chosen = {ours: name for ours, name in chosen.items() if name is not None}
    evaluation_step = EVALUATION_STEP if EVALUATION_STEP in names and EVALUATION_STEP not in chosen.values() else None
    others = [name for name in names if name not in (*chosen.values(), evaluation_step)]
    evaluation = {name.removeprefix(EVALUATION): name for name in others if name.startswith(known.evaluation)}
    training = {name.removeprefix(known.prefix): name for name in others if not name.startswith(known.evaluation)}
    return Renaming(training | chosen, evaluation, evaluation_step)


def _fit(naming: Naming, names: list[str]) -> tuple[int, int]:
    """Return how many of these names a naming knows: entropy and reward first, then all."""
    known = {ours for ours, theirs in naming.columns.items() if any(name in names for name in theirs)}
    return len(known & {ENTROPY, "reward"}), len(known)
