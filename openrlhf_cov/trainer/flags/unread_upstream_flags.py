"""Flags of OpenRLHF that a run would ignore because of its other flags: refused instead.

OpenRLHF accepts them, so that a run seems to have a setting that it does not have. Flags of placement and memory are
not checked here: they change no number of a run, and layouts place models that a run lacks.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# Estimators that discount rewards; the others judge a response as a whole.
DISCOUNTED = ("gae", "reinforce")
# Estimators whose advantages are whitened over all tokens of a step.
WHITENED = ("gae", "reinforce", "reinforce_baseline")
# Schedules of the learning rate that need no arguments of their own and no metric.
LR_SCHEDULERS = (
    *("constant", "constant_with_warmup", "linear", "cosine", "cosine_with_restarts", "polynomial", "inverse_sqrt"),
    *("cosine_with_min_lr", "cosine_warmup_with_min_lr"),
)
WITH_MIN_LR = ("cosine_with_min_lr", "cosine_warmup_with_min_lr")
# Flags of the critic that are no settings of its training: where it is placed, and what is refused with a critic, too.
NOT_OF_CRITIC = ("critic.num_nodes", "critic.num_gpus_per_node", "critic.muon.ns_steps", "critic.muon.nesterov")

Flags = Mapping[str, Any]


@dataclass(frozen=True)
class Condition:
    """When some flags are read.

    Attributes:
        names: The flags, by their dotted names.
        is_met: (flags of the run) -> True if the run reads them.
        unread: (flags of the run) -> what follows "--flag value" where it does not: the reason and what to do.
        neutral: A value that is in force also where the flags are not read, and which may be given.
    """

    names: tuple[str, ...]
    is_met: Callable[[Flags], bool]
    unread: Callable[[Flags], str]
    neutral: Any = None


def unread_upstream_flags(flags: Flags, given: Collection[str]) -> Iterator[str]:
    """Yield one line for each flag of OpenRLHF that was given and that the run would ignore.

    Args:
        flags: The flags of the run by dotted name, with the values that methods and presets set.
        given: Names of the flags on the command line. Only these are checked.
    """
    conditions = [*_CONDITIONS, *_of_optimizer("actor"), *_of_optimizer("critic"), _of_critic(flags)]
    if "algo.kl.init_coef" not in given:
        conditions.append(_OF_A_PRESET_WITHOUT_KL)
    for condition in conditions:
        if condition.is_met(flags):
            continue
        for name in condition.names:
            value = flags[name]
            if name in given and (condition.neutral is None or value != condition.neutral):
                yield f"--{name}{_shown(value)} {condition.unread(flags)}"


def _shown(value: Any) -> str:
    """Return a value as it stands after its flag on a command line; nothing for a switch."""
    if isinstance(value, bool):
        return ""
    values = value if isinstance(value, (list, tuple)) else [value]
    return "".join(f" {each:g}" if isinstance(each, float) else f" {each}" for each in values)


def _needs(flag: str) -> Callable[[Flags], str]:
    """Return the message for flags that need a flag that is missing."""
    return lambda flags: f"only applies with --{flag}; add that, or drop it"


def _is_on(flag: str) -> Callable[[Flags], bool]:
    """Return the condition that a flag is set and not 0."""
    return lambda flags: bool(flags[flag])


def _without_estimator(advice: str) -> Callable[[Flags], str]:
    return lambda flags: (
        f"has no effect with --algo.advantage.estimator {flags['algo.advantage.estimator']}{advice}; drop it"
    )


def _without_deviation(flags: Flags) -> str:
    estimator = flags["algo.advantage.estimator"]
    then = "choose dr_grpo, which does not divide by it" if estimator == "group_norm" else "drop it"
    return f"has no effect with --algo.advantage.estimator {estimator}, which is not whitened over the step; {then}"


def _without_kl(flags: Flags) -> str:
    return "has no effect with --algo.kl.init_coef 0, a run without a KL term; give a coefficient above 0, or drop it"


def _without_correction(flags: Flags) -> str:
    if flags["algo.advantage.is_correction_level"] == "off":
        return "only applies with --algo.advantage.is_correction_level token or seq; add that, or drop it"
    return (
        "has no effect with --actor.policy_loss_type gspo, whose ratio is to the policy of the engine instead; drop it"
    )


_CONDITIONS = (
    Condition(("algo.kl.target",), _is_on("algo.kl.init_coef"), _without_kl),
    Condition(("algo.kl.horizon",), _is_on("algo.kl.target"), _needs("algo.kl.target")),
    Condition(("algo.kl.unbiased_gradient",), _is_on("algo.kl.use_loss"), _needs("algo.kl.use_loss")),
    Condition(
        ("algo.advantage.gamma",),
        lambda flags: flags["algo.advantage.estimator"] in DISCOUNTED,
        _without_estimator(", which does not discount"),
        neutral=1.0,
    ),
    Condition(
        ("algo.advantage.lambd",),
        lambda flags: flags["algo.advantage.estimator"] == "gae",
        _without_estimator(""),
        neutral=1.0,
    ),
    Condition(
        ("algo.advantage.no_std_norm",),
        lambda flags: flags["algo.advantage.estimator"] in WHITENED,
        _without_deviation,
    ),
    Condition(
        (
            "algo.advantage.is_correction_mode",
            "algo.advantage.is_correction_gating",
            "algo.advantage.is_correction_threshold",
        ),
        lambda flags: (
            flags["algo.advantage.is_correction_level"] != "off" and flags["actor.policy_loss_type"] == "ppo"
        ),
        _without_correction,
    ),
    Condition(
        ("actor.loss_agg_mode",),
        lambda flags: flags["actor.policy_loss_type"] == "ppo",
        lambda flags: "has no effect with --actor.policy_loss_type gspo, which averages over sequences; drop it",
        neutral="seq-mean-token-mean",
    ),
    Condition(
        ("actor.eps_clip",),
        lambda flags: flags["actor.eps_clip_low_high"] is None,
        lambda flags: (
            f"has no effect with --actor.eps_clip_low_high{_shown(flags['actor.eps_clip_low_high'])}, which "
            "takes its place; drop one of the two"
        ),
    ),
    Condition(
        ("algo.dynamic_filtering_range",),
        _is_on("algo.dynamic_filtering_enable"),
        _needs("algo.dynamic_filtering_enable"),
    ),
    Condition(
        ("reward.overlong_penalty_factor",),
        lambda flags: flags["reward.overlong_buffer_len"] is not None,
        _needs("reward.overlong_buffer_len"),
    ),
    Condition(("train.ema_beta",), _is_on("train.enable_ema"), _needs("train.enable_ema")),
    Condition(("train.async_queue_size",), _is_on("train.async_enable"), _needs("train.async_enable")),
    # Elsewhere the size of micro-batches changes no number of a run.
    Condition(
        ("train.micro_batch_size",),
        lambda flags: not (flags["cov_scope"] == "micro_batch" and flags["train.dynamic_batch_enable"]),
        lambda flags: (
            "has no effect with --train.dynamic_batch_enable, by which micro-batches of --cov_scope "
            "micro_batch hold --train.max_tokens_per_gpu tokens; drop one of the two"
        ),
    ),
    Condition(
        ("data.input_template",),
        lambda flags: not flags["data.apply_chat_template"],
        lambda flags: "has no effect with --data.apply_chat_template, which writes the prompt; drop one of the two",
    ),
    Condition(
        ("eval.steps", "eval.split", "eval.temperature", "eval.n_samples_per_prompt"),
        _is_on("eval.dataset"),
        _needs("eval.dataset"),
        neutral=-1,
    ),
    Condition(
        ("eval.split",),
        lambda flags: not (flags["eval.dataset"] or "").startswith("bench:"),
        lambda flags: "has no effect with --eval.dataset bench:NAMES; drop it",
    ),
    Condition(
        ("eval.dataset",),
        lambda flags: flags["eval.steps"] > 0 or flags["eval_at_start"],
        lambda flags: "is never evaluated; add --eval.steps or --eval.at_start, or drop it",
    ),
    Condition(
        ("logger.wandb.org", "logger.wandb.group", "logger.wandb.project", "logger.wandb.run_name"),
        _is_on("logger.wandb.key"),
        lambda flags: (
            "only applies with --logger.wandb.key; add that, or set the variables of W&B beside --log_to "
            "wandb, such as WANDB_PROJECT"
        ),
    ),
)


# Presets have a coefficient of 0, which these flags would seem to change. A 0 on the command line is meant.
_OF_A_PRESET_WITHOUT_KL = Condition(
    ("algo.kl.use_loss", "algo.kl.estimator", "algo.kl.unbiased_gradient", "algo.kl.horizon"),
    _is_on("algo.kl.init_coef"),
    _without_kl,
)


def _of_optimizer(model: str) -> tuple[Condition, ...]:
    """Return the conditions on the optimizer and the learning rate of ``actor`` or ``critic``."""
    scheduler = f"{model}.lr_scheduler"
    optimizer = f"{model}.optim"
    return (
        Condition(
            (f"{model}.lr_warmup_ratio",),
            lambda flags: flags[scheduler] != "constant",
            lambda flags: (
                f"has no effect with --{scheduler} constant; choose --{scheduler} constant_with_warmup, or drop it"
            ),
            neutral=0.0,
        ),
        Condition(
            (f"{model}.min_lr_ratio",),
            lambda flags: flags[scheduler] in WITH_MIN_LR,
            lambda flags: (
                f"has no effect with --{scheduler} {flags[scheduler]}; choose --{scheduler} "
                f"{WITH_MIN_LR[0]}, or drop it"
            ),
        ),
        Condition(
            (f"{model}.muon.lr", f"{model}.muon.momentum"),
            lambda flags: flags[optimizer] == "muon",
            lambda flags: f"only applies with --{optimizer} muon; add that, or drop it",
        ),
    )


def _of_critic(flags: Flags) -> Condition:
    """Return the condition on the flags that train a critic, which only the estimator gae has."""
    return Condition(
        tuple(name for name in flags if name.startswith("critic.") and name not in NOT_OF_CRITIC),
        lambda flags: flags["algo.advantage.estimator"] == "gae",
        _without_estimator(", which has no critic"),
    )


def combination_faults(flags: Flags) -> Iterator[str]:
    """Yield one line for each value of OpenRLHF's flags that would end a run after its engines have started.

    Args:
        flags: The flags of the run by dotted name.
    """
    for model in ("actor", "critic"):
        scheduler = flags[f"{model}.lr_scheduler"]
        if scheduler not in LR_SCHEDULERS:
            yield f"--{model}.lr_scheduler {scheduler}: must be one of {', '.join(LR_SCHEDULERS)}"
    backend = flags["vllm.sync_backend"]
    if backend not in ("nccl", "gloo"):
        yield f"--vllm.sync_backend {backend}: must be nccl or gloo"
    buffer = flags["reward.overlong_buffer_len"]
    limit = "rollout.max_new_tokens" if flags["rollout.max_new_tokens"] else "data.max_len"
    if buffer is not None and buffer > flags[limit]:
        yield (
            f"--reward.overlong_buffer_len {buffer:g} is more than --{limit} {flags[limit]}, the longest response; "
            "lower it"
        )
    yield from _correction_faults(flags)
    template = flags["data.input_template"]
    if template is not None and (fault := _template_fault(template)):
        yield f"--data.input_template {template!r}: {fault}"


def _correction_faults(flags: Flags) -> Iterator[str]:
    """Yield faults of the rollout correction, which upstream's loss refuses when the policy is built."""
    advantage = "algo.advantage.is_correction_"
    level = flags[f"{advantage}level"]
    gating = flags[f"{advantage}gating"]
    bounds = flags[f"{advantage}threshold"]
    if level == "off":
        return
    if flags[f"{advantage}mode"] == "clip" and (level == "seq" or gating != "ratio"):
        yield (
            f"--{advantage}mode clip: only the ratios of tokens can be clipped; give --{advantage}level token and "
            f"--{advantage}gating ratio, or --{advantage}mode mask"
        )
    if gating != "ratio" and len(bounds) == 2 and bounds[0] > 0:
        yield (
            f"--{advantage}gating {gating} has an upper bound alone, got --{advantage}threshold{_shown(bounds)}; give "
            "one number"
        )


def _template_fault(template: str) -> str | None:
    """Return why a template cannot hold a prompt; None if it can."""
    if "{}" not in template:
        return "it has no {} for the prompt; add it, or drop the flag"
    try:
        template.format("")
    except (IndexError, KeyError, ValueError, AttributeError):
        return "it must have {} once, for the prompt; write all other braces twice, such as \\boxed{{}}"
    return None
