"""Load the models of the roles, with their optimizers and tokenizers, onto one rank.

The flags reach the models as they do in upstream's actors. The policy and the reference are ``CovActor``, which gives
log-probs and entropies without the matrix of logits.
"""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from openrlhf.models import get_llm_for_sequence_regression
from openrlhf.utils import get_tokenizer

from openrlhf_cov.models.cov_config import process_reward_of
from openrlhf_cov.trainer.model.actor_model import CovActor


@dataclass(frozen=True)
class LoadedPolicy:
    """The policy of one rank.

    ``actor.model`` is its DeepSpeed engine. ``ema_model`` is None without ``--train.enable_ema``.
    """

    actor: CovActor
    optimizer: Any
    scheduler: Any
    tokenizer: Any
    ema_model: CovActor | None


@dataclass(frozen=True)
class LoadedProcessReward:
    """The process reward model of one rank; ``actor.model`` is its DeepSpeed engine."""

    actor: CovActor
    scheduler: Any


@dataclass(frozen=True)
class LoadedCritic:
    """The critic of one rank.

    ``engine`` is its DeepSpeed engine. ``tokenizer`` is None unless the model is exported at the end of the run
    (``--critic.save_value_network``).
    """

    engine: Any
    scheduler: Any
    tokenizer: Any


def load_policy(strategy: Any, pretrain: str, max_steps: int) -> LoadedPolicy:
    """Load the policy for training.

    Args:
        strategy: The strategy of the rank, after ``setup_distributed``.
        pretrain: Name or folder of the model.
        max_steps: Number of optimizer steps of the run, from which the learning rate is scheduled.
    """
    args = strategy.args
    actor = _trained_actor(strategy, pretrain)
    strategy.print(actor)
    tokenizer = _tokenizer(strategy, pretrain, actor.model)
    average = None
    if args.train.enable_ema:
        average = CovActor(pretrain, ds_config=strategy.get_ds_eval_config(offload=True), **_common_arguments(args))
    _use_gradient_checkpointing(actor, args)
    # After gradient checkpointing: DeepSpeed's engine hides the methods of the model.
    actor, optimizer, scheduler = strategy.prepare((actor, _optimizer_settings(args.actor, max_steps)))
    if average is not None:
        average = _prepare_for_scoring(strategy, average, offload=True)
    return LoadedPolicy(actor, optimizer, scheduler, tokenizer, average)


def load_process_reward(strategy: Any, pretrain: str, max_steps: int) -> LoadedProcessReward:
    """Load the process reward model for training.

    It has the architecture of a language model, like the policy. Its optimizer is Adam, with a constant learning rate
    and without weight decay.

    Args:
        strategy: The strategy of the rank, after ``setup_distributed``.
        pretrain: Name or folder of the model.
        max_steps: Number of optimizer steps of the run.
    """
    args = strategy.args
    options = process_reward_of(args)
    assert options is not None  # a run that loads this model has its settings
    actor = _trained_actor(strategy, pretrain)
    _use_gradient_checkpointing(actor, args)
    settings = {
        "optim": "adam",
        "muon": vars(args.actor.muon),
        "adam": {**vars(args.actor.adam), "lr": options.learning_rate, "weight_decay": 0.0},
        "lr_scheduler": "constant",
        "lr_warmup_ratio": 0.0,
        "max_norm": options.max_norm,
        "scheduler_steps": max_steps,
    }
    actor, _, scheduler = strategy.prepare((actor, settings))
    return LoadedProcessReward(actor, scheduler)


def load_critic(strategy: Any, pretrain: str, max_steps: int) -> LoadedCritic:
    """Load the critic for training.

    A critic that starts from the policy's files gets a new value head, because those files have none.

    Args:
        strategy: The strategy of the rank, after ``setup_distributed``.
        pretrain: Name or folder of the model.
        max_steps: Number of optimizer steps of the run, from which the learning rate is scheduled.
    """
    args = strategy.args
    critic = get_llm_for_sequence_regression(
        pretrain,
        "critic",
        normalize_reward=args.reward.normalize_enable,
        lora_rank=args.ds.lora.rank,
        lora_alpha=args.ds.lora.alpha,
        lora_dropout=args.ds.lora.dropout,
        target_modules=args.ds.lora.target_modules,
        ds_config=strategy.get_ds_train_config(),
        value_head_prefix=args.ds.value_head_prefix,
        init_value_head=args.actor.model_name_or_path == args.critic.model_name_or_path,
        **_common_arguments(args),
    )
    _print_value_model(strategy, critic)
    tokenizer = _tokenizer(strategy, pretrain, critic) if args.critic.save_value_network else None
    _use_gradient_checkpointing(critic, args)
    engine, _, scheduler = strategy.prepare((critic, _optimizer_settings(args.critic, max_steps)))
    return LoadedCritic(engine, scheduler, tokenizer)


def load_reference(strategy: Any, pretrain: str) -> CovActor:
    """Load the reference policy, which is never trained.

    Args:
        strategy: The strategy of the rank, after ``setup_distributed``.
        pretrain: Name or folder of the model.

    Returns:
        The model in evaluation mode, in a DeepSpeed engine.
    """
    args = strategy.args
    reference = CovActor(
        pretrain,
        ds_config=strategy.get_ds_eval_config(offload=args.ref.offload),
        temperature=args.rollout.temperature,
        use_liger_kernel=args.ds.use_liger_kernel,
        **_common_arguments(args),
    )
    strategy.print(reference)
    reference = _prepare_for_scoring(strategy, reference, offload=args.ref.offload)
    reference.eval()
    return reference


def load_reward_model(strategy: Any, pretrain: str) -> Any:
    """Load a reward model, which is never trained.

    Args:
        strategy: The strategy of the rank, after ``setup_distributed``.
        pretrain: Name or folder of the model.

    Returns:
        Its DeepSpeed engine, in evaluation mode.
    """
    args = strategy.args
    model = get_llm_for_sequence_regression(
        pretrain,
        "reward",
        normalize_reward=args.reward.normalize_enable,
        ds_config=strategy.get_ds_eval_config(offload=args.reward.offload),
        value_head_prefix=args.ds.value_head_prefix,
        **_common_arguments(args),
    )
    _print_value_model(strategy, model)
    engine = _prepare_for_scoring(strategy, model, offload=args.reward.offload)
    engine.eval()
    return engine


def _trained_actor(strategy: Any, pretrain: str) -> CovActor:
    """Return a language model that the flags of the policy configure, before it has a DeepSpeed engine."""
    args = strategy.args
    return CovActor(
        pretrain,
        lora_rank=args.ds.lora.rank,
        lora_alpha=args.ds.lora.alpha,
        lora_dropout=args.ds.lora.dropout,
        target_modules=args.ds.lora.target_modules,
        ds_config=strategy.get_ds_train_config(),
        temperature=args.rollout.temperature,
        use_liger_kernel=args.ds.use_liger_kernel,
        freeze_visual_encoder=args.actor.freeze_visual_encoder,
        **_common_arguments(args),
    )


def _common_arguments(args: SimpleNamespace) -> dict[str, Any]:
    return {
        "attn_implementation": args.ds.attn_implementation,
        "experts_implementation": args.ds.experts_implementation,
        "param_dtype": args.ds.param_dtype,
        "load_in_4bit": args.ds.load_in_4bit,
        "packing_samples": args.ds.packing_samples,
    }


def _optimizer_settings(flags: SimpleNamespace, max_steps: int) -> dict[str, Any]:
    """Return the settings of an optimizer and its schedule from the flags of the policy or of the critic."""
    return {
        "optim": flags.optim,
        "muon": vars(flags.muon),
        "adam": vars(flags.adam),
        "lr_scheduler": flags.lr_scheduler,
        "lr_warmup_ratio": flags.lr_warmup_ratio,
        "min_lr_ratio": flags.min_lr_ratio,
        "max_norm": flags.max_norm,
        "scheduler_steps": max_steps,
    }


def _prepare_for_scoring(strategy: Any, model: Any, offload: bool) -> Any:
    if offload:
        model._offload = True  # the strategy reads this flag of the model when it makes the engine
    return strategy.prepare(model)


def _use_gradient_checkpointing(model: Any, args: SimpleNamespace) -> None:
    # The flags of the policy hold for every model that is trained.
    if args.actor.gradient_checkpointing_enable:
        settings = {"use_reentrant": args.actor.gradient_checkpointing_reentrant}
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=settings)


def _tokenizer(strategy: Any, pretrain: str, model: Any) -> Any:
    use_fast = not strategy.args.data.disable_fast_tokenizer
    return get_tokenizer(pretrain, model, "left", strategy, use_fast=use_fast)


def _print_value_model(strategy: Any, model: Any) -> None:
    strategy.print(model)
    strategy.print(f"reward normalization status: {strategy.args.reward.normalize_enable}")
    strategy.print(f"mean: {model.mean}, std {model.std}")
