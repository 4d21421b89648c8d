"""Checks of TRL's ``GRPOConfig``: options that do not go with the methods, and what to use instead."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from torch import nn

from openrlhf_cov.integrations.choice import in_python
from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.method import MORE_UPDATES, fills
from openrlhf_cov.models.slots import UNCLIPPED, ClipRange, ProcessEstimator
from openrlhf_cov.settings import flag_of

# TRL's loss types that average PPO's token losses, and the same average in words of our trainer. Its other loss types
# replace PPO's surrogate.
AVERAGES = {"dapo": "token-mean", "grpo": "seq-mean-token-mean", "dr_grpo": "constant", "bnpo": "micro-batch-mean"}

# Words of our trainer in a message of a method -> words of TRL.
NAMES = {
    MORE_UPDATES: "raise steps_per_generation or num_iterations",
    "--actor.loss_agg_mode token-mean": "loss_type='dapo'",
    "--actor.loss_agg_mode": "loss_type",
    "--actor.entropy_coef": "entropy_coef",
    "--actor.eps_clip_low_high": "(epsilon, epsilon_high)",
    "--actor.dual_clip": "delta",
    "--rollout.n_samples_per_prompt": "num_generations",
}


def in_words_of_trl(message: str) -> str:
    """Return a message of a method with the names of TRL's options."""
    for ours, theirs in NAMES.items():
        message = message.replace(ours, theirs)
    return in_python(message)


def gives_clip(args: Any) -> bool:
    """Return True if the options of the PPO clip are not TRL's defaults."""
    return args.epsilon != 0.2 or args.epsilon_high is not None


def ppo_clip(config: CovConfig, args: Any) -> tuple[float, float]:
    """Return (eps_low, eps_high) of the PPO clip under the settings of a step.

    Args:
        config: The settings of the methods in one step.
        args: The ``GRPOConfig``.
    """
    # A method that moves the clip sets it in every step. A published clip yields to one that the user gives.
    if config.moved_clip:
        return config.moved_clip
    if config.ppo_clip and not gives_clip(args):
        return config.ppo_clip
    return args.epsilon, args.epsilon if args.epsilon_high is None else args.epsilon_high


def recorded_settings(config: CovConfig, args: Any) -> dict[str, Any]:
    """Return the settings of a run by flag of our trainer, as far as the analysis of a run asks for them.

    Args:
        config: The settings of the methods.
        args: The ``GRPOConfig``.
    """
    methods = {f"--{flag_of(entry)}": getattr(config, entry.name) for entry in fields(CovConfig)}
    return {
        **methods,
        "--algo.kl.init_coef": args.beta,
        "--actor.entropy_coef": args.entropy_coef,
        "--actor.eps_clip_low_high": ppo_clip(config.at(0), args) if gives_clip(args) else None,
        "--actor.adam.lr": args.learning_rate,
        "--rollout.n_samples_per_prompt": args.num_generations,
        "--train.max_epochs": args.num_iterations,
        "--train.seed": args.seed,
    }


def check_options(config: CovConfig, args: Any, extras: Mapping[str, Any]) -> None:
    """Raise ValueError, naming the option, for what does not go with the methods.

    Args:
        config: The settings of the methods.
        args: The ``GRPOConfig``.
        extras: Further arguments of the trainer, by name.
    """
    for fault in (*_faults_of_options(args, extras), *_faults_of_methods(config, args)):
        raise ValueError(fault)


def check_model(config: CovConfig, model: Any) -> None:
    """Check that the methods can train a model.

    Args:
        config: The settings of the methods.
        model: The policy, a model of transformers.

    Raises:
        ValueError: The model has dropout, so that its log-probs differ from pass to pass, or its vocabulary is too
            small for an entropy that a setting names.
    """
    try:
        config.check_reachable(model.get_input_embeddings().num_embeddings)
    except ValueError as error:
        raise ValueError(in_python(str(error))) from error
    if any(isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules()):
        raise ValueError(
            "disable_dropout=False: with dropout the methods would see other log-probs than the loss; use True"
        )
    # The attention of Llama and others applies this rate without a module of dropout, so disable_dropout misses it.
    rates = {getattr(module, "attention_dropout", None) for module in model.modules()}
    if rate := max((rate for rate in rates if isinstance(rate, float)), default=0.0):
        raise ValueError(
            f"the model has attention_dropout={rate:g}, by which the methods would see other log-probs than the loss; "
            "set it to 0 in the config of the model"
        )


def _faults_of_options(args: Any, extras: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong whichever method runs."""
    if args.steps_per_generation % args.gradient_accumulation_steps:
        yield (
            f"steps_per_generation={args.steps_per_generation} must be a multiple of gradient_accumulation_steps="
            f"{args.gradient_accumulation_steps}, so that an optimizer step uses samples of one rollout"
        )
    if args.loss_type not in AVERAGES:
        yield (
            f"loss_type={args.loss_type!r} replaces PPO's surrogate; use GRPOTrainer, or a method in place of it with "
            f"one of loss_type {', '.join(AVERAGES)}"
        )
    if args.importance_sampling_level != "token":
        yield (
            f"importance_sampling_level={args.importance_sampling_level!r}: methods act on tokens; use 'token' and "
            "method='gspo_token'"
        )
    if args.top_entropy_quantile < 1.0:
        yield (
            f"top_entropy_quantile={args.top_entropy_quantile}: TRL would mask tokens that methods count; use 1.0 and "
            "method='top_entropy'"
        )
    if args.use_adaptive_entropy:
        yield "use_adaptive_entropy=True: use method='adaptive_entropy', which measures the entropy of whole rollouts"
    if args.off_policy_mask_threshold is not None:
        yield (
            f"off_policy_mask_threshold={args.off_policy_mask_threshold}: TRL would mask responses that methods "
            "count; use None"
        )
    if args.use_vllm and args.vllm_importance_sampling_correction:
        yield (
            "vllm_importance_sampling_correction=True: TRL would weigh tokens after the methods have weighed them; "
            "use False"
        )
    for name in ("tools", "environment_factory"):
        if extras.get(name):
            yield f"{name}: the tokens of tools are masked after the methods have counted them; drop it"


def _faults_of_methods(config: CovConfig, args: Any) -> Iterator[str]:
    """Yield what is wrong with the methods that run."""
    for method in config.methods:
        if fills(method, ProcessEstimator):
            yield f"method={method.name!r} trains a process reward model; use openrlhf-cov train, which has one"
        if fills(method, ClipRange) and gives_clip(args):
            yield f"epsilon={args.epsilon}, epsilon_high={args.epsilon_high}: {method.name} sets the clip; drop them"
    if config.at(0).ppo_clip == UNCLIPPED and gives_clip(args):
        names = ", ".join(method.name for method in config.methods)
        yield f"epsilon={args.epsilon}, epsilon_high={args.epsilon_high}: {names} has no PPO clip; drop them"
    if config.surrogate and args.delta is not None:
        yield f"delta={args.delta}: {config.surrogate.name} has no PPO clip; use None"
    if config.estimator:
        name = config.estimator.name
        if args.scale_rewards != "group":
            yield f"scale_rewards={args.scale_rewards!r}: {name} computes the advantages itself; use 'group'"
        if args.multi_objective_aggregation != "sum_then_normalize":
            yield (
                f"multi_objective_aggregation={args.multi_objective_aggregation!r}: {name} computes the advantages of "
                "the summed rewards; use 'sum_then_normalize'"
            )

    # What a method refuses in our trainer, it refuses here, too. Its message names flags of our trainer.
    flags = {
        "actor.entropy_coef": args.entropy_coef,
        "actor.loss_agg_mode": AVERAGES.get(args.loss_type),
        "actor.dual_clip": args.delta,
        "rollout.n_samples_per_prompt": args.num_generations,
    }
    if gives_clip(args):
        flags["actor.eps_clip_low_high"] = ppo_clip(config.at(0), args)
    for method in config.methods:
        message = method.refuses(config, flags)
        if message:
            yield in_words_of_trl(message)


def warnings_of(config: CovConfig, args: Any, updates: int) -> Iterator[str]:
    """Yield a warning for each option that is allowed but probably not meant.

    Args:
        config: The settings of the methods.
        args: The ``GRPOConfig``, which ``check_options`` has accepted.
        updates: Number of optimizer steps of a rollout.
    """
    for method in config.methods:
        if method.one_update and updates == 1:
            reason = in_python(method.one_update)
            yield (
                f"method={method.name!r} with one update per rollout: {reason}. Raise steps_per_generation or "
                "num_iterations"
            )
    if config.aggregation and AVERAGES[args.loss_type] != config.aggregation:
        yield (
            f"loss_type={args.loss_type!r}: {config.surrogate.name if config.surrogate else ''} was published with "
            "the mean over responses, loss_type='grpo'"
        )
