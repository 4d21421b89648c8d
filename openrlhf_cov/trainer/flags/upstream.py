"""Declare the flags of OpenRLHF 0.11.2 under the same names, with the same types and defaults.

The table is ours, so no source of OpenRLHF is executed to learn its flags. ``tests/contract/test_flags.py`` compares
every entry with what the installed OpenRLHF declares, and fails when a release adds, drops or changes a flag.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from openrlhf_cov.settings import help_with_default


@dataclass(frozen=True)
class Flag:
    """One command-line flag.

    Attributes:
        name: Dotted name without the leading dashes, such as ``actor.adam.lr``.
        type: Type of the value. ``bool`` declares a switch, which takes no value.
        default: Value without the flag.
        help: One sentence for ``--help``.
        choices: Values that are accepted; None accepts all of the type.
        nargs: Number of values as in ``argparse``; None for one.
        clears: Name of another switch that this switch sets to False.
    """

    name: str
    type: type
    default: Any
    help: str
    choices: tuple[str, ...] | None = None
    nargs: int | str | None = None
    clears: str | None = None

    def add_to(self, parser: argparse._ArgumentGroup) -> None:
        """Declare this flag in a parser or in a group of its flags."""
        option = f"--{self.name}"
        if self.clears is not None:
            parser.add_argument(option, dest=self.clears, action="store_false", help=self.help)
            return
        if self.type is bool:
            parser.add_argument(option, action="store_true", default=self.default, help=self.help)
            return
        choices = None if self.choices is None else list(self.choices)
        help = help_with_default(self.help, self.default)
        parser.add_argument(option, type=self.type, default=self.default, choices=choices, nargs=self.nargs, help=help)


PLACEMENT = (
    Flag("actor.num_nodes", int, 1, "Number of nodes of the policy."),
    Flag("actor.num_gpus_per_node", int, 8, "Number of GPUs of the policy on each node."),
    Flag("ref.num_nodes", int, 1, "Number of nodes of the reference model."),
    Flag("ref.num_gpus_per_node", int, 8, "Number of GPUs of the reference model on each node."),
    Flag("critic.num_nodes", int, 1, "Number of nodes of the critic."),
    Flag("critic.num_gpus_per_node", int, 8, "Number of GPUs of the critic on each node."),
    Flag("reward.num_nodes", int, 1, "Number of nodes of the reward model."),
    Flag("reward.num_gpus_per_node", int, 8, "Number of GPUs of the reward model on each node."),
    Flag("train.colocate_actor_ref", bool, False, "Place policy and reference model on the same GPUs."),
    Flag("train.colocate_critic_reward", bool, False, "Place critic and reward model on the same GPUs."),
    Flag("train.colocate_all", bool, False, "Place all models, and the vLLM engines, on the same GPUs."),
    Flag("ref.offload", bool, False, "Keep the weights of the reference model in CPU memory."),
    Flag("reward.offload", bool, False, "Keep the weights of the reward model in CPU memory."),
)

MODELS = (
    Flag("actor.model_name_or_path", str, None, "Hugging Face id or folder of the policy."),
    Flag("critic.model_name_or_path", str, None, "Hugging Face id or folder of the critic; used by gae alone."),
    Flag("reward.model_name_or_path", str, None, "Hugging Face id or folder of a reward model."),
    Flag("ds.value_head_prefix", str, "score", "Name of the value head in checkpoints of critics and reward models."),
    Flag("actor.freeze_visual_encoder", bool, False, "Do not train the visual encoder of a vision-language model."),
    Flag("data.disable_fast_tokenizer", bool, False, "Load the tokenizer that is written in Python."),
    Flag("use_ms", bool, False, "Download models and data from ModelScope."),
)

VLLM = (
    Flag("vllm.num_engines", int, None, "Number of vLLM engines."),
    Flag("vllm.tensor_parallel_size", int, 1, "Number of GPUs of each engine."),
    Flag("vllm.gpu_memory_utilization", float, 0.95, "Fraction of the memory of a GPU that an engine may use."),
    Flag("vllm.enable_prefix_caching", bool, False, "Keep the key-value cache of prompts that have a common prefix."),
    Flag("vllm.enforce_eager", bool, False, "Run the engines without CUDA graphs."),
    Flag("vllm.enable_sleep", bool, False, "Free the memory of engines while models train on the same GPUs."),
    Flag("vllm.sync_backend", str, "nccl", "Backend that sends the weights to the engines: nccl, or gloo on CPUs."),
    Flag("vllm.sync_with_ray", bool, False, "Send the weights through a collective group of Ray."),
)

ROLLOUTS = (
    Flag("rollout.batch_size", int, 1024, "Number of prompts of a global step."),
    Flag("rollout.n_samples_per_prompt", int, 1, "Number of responses to each prompt."),
    Flag("rollout.vllm_generate_batch_size", int, None, "Number of prompts sent at once; default: the batch size."),
    Flag("rollout.micro_batch_size", int, 1, "Number of responses that a GPU scores at once."),
    Flag("rollout.max_tokens_per_gpu", int, None, "Number of tokens that a GPU scores at once, with dynamic batches."),
    Flag("rollout.max_new_tokens", int, None, "Limit of a response in tokens; default: what --data.max_len leaves."),
    Flag("rollout.temperature", float, 1.0, "Sampling temperature of the rollouts."),
    Flag("rollout.top_p", float, 1.0, "Nucleus of the sampling distribution of the rollouts."),
)

DATA = (
    Flag("data.prompt_dataset", str, None, "Hugging Face id, file or folder of the prompts; several with commas."),
    Flag("data.prompt_probs", str, None, "Share of each prompt data set, separated by commas."),
    Flag("data.prompt_split", str, "train", "Split of the prompt data set."),
    Flag("data.input_key", str, "input", "Column of the prompt."),
    Flag("data.label_key", str, None, "Column of the label."),
    Flag("data.input_template", str, None, "Text with {} where the prompt belongs."),
    Flag("data.apply_chat_template", bool, False, "Write prompts with the chat template of the tokenizer."),
    Flag("data.max_len", int, 2048, "Limit of prompt and response together, in tokens."),
    Flag("data.max_samples", int, int(1e8), "Number of prompts that are read at most."),
    Flag("data.dataloader_num_workers", int, 0, "Number of processes that read prompts."),
    Flag("data.image_key", str, "images", "Column of the image paths or URLs."),
    Flag("data.max_images_per_prompt", int, 0, "Number of images of a prompt at most; 0 for text alone."),
)

REWARDS = (
    Flag("reward.remote_url", str, None, "Reward function (a .py file) or URLs of reward servers, with commas."),
    Flag("train.agent_func_path", str, None, "Python file with an AgentExecutor, for several turns."),
    Flag("reward.normalize_enable", bool, False, "Normalise the rewards of a reward model."),
    Flag("reward.clip_range", float, (-10, 10), "Range to which rewards are clipped.", nargs=2),
    Flag("reward.overlong_buffer_len", float, None, "Length in tokens of the buffer of the overlong penalty."),
    Flag("reward.overlong_penalty_factor", float, 1, "Penalty at the end of the overlong buffer."),
    Flag(
        "reward.stop_properly_penalty_coef",
        float,
        None,
        "Reward of a truncated response: a factor from 0 to 1, or a negative reward in its place.",
    ),
)

TRAINING = (
    Flag("train.num_episodes", int, 1, "Number of passes over the prompts."),
    Flag("train.max_epochs", int, 1, "Number of passes over the samples of a rollout."),
    Flag("train.batch_size", int, 128, "Number of responses of an optimizer step, over all GPUs."),
    Flag("train.micro_batch_size", int, 1, "Number of responses in a forward pass of a GPU."),
    Flag("train.dynamic_batch_enable", bool, False, "Fill forward passes up to a number of tokens."),
    Flag("train.max_tokens_per_gpu", int, 16192, "Number of tokens in a forward pass, with dynamic batches."),
    Flag("train.seed", int, 42, "Seed of the run."),
    Flag("train.full_determinism_enable", bool, False, "Use deterministic kernels."),
    Flag("train.enable_ema", bool, False, "Keep an exponential moving average of the weights of the policy."),
    Flag("train.ema_beta", float, 0.992, "Decay of the moving average of the weights."),
    Flag("train.async_enable", bool, False, "Generate the next rollouts while the policy trains."),
    Flag("train.async_queue_size", int, 1, "Number of finished rollouts that may wait, in asynchronous training."),
    Flag(
        "train.partial_rollout_enable",
        bool,
        False,
        "Pause the engines while they get new weights, and continue their responses afterwards.",
    ),
)

POLICY_LOSS = (
    Flag("actor.policy_loss_type", str, "ppo", "Importance ratio of each token or of a sequence.", ("ppo", "gspo")),
    Flag(
        "actor.loss_agg_mode",
        str,
        "token-mean",
        "Mean over all tokens, or over the means of the sequences.",
        ("token-mean", "seq-mean-token-mean"),
    ),
    Flag("actor.eps_clip", float, 0.2, "Width of the PPO clip range on both sides of 1."),
    Flag("actor.eps_clip_low_high", float, None, "Width of the PPO clip range below and above 1.", nargs=2),
    Flag("actor.dual_clip", float, None, "Bound of the dual clip for negative advantages."),
    Flag("actor.entropy_coef", float, None, "Coefficient of the entropy bonus; 0 logs the entropy alone."),
    Flag("actor.aux_loss_coef", float, 0, "Coefficient of the balancing loss of a mixture of experts."),
    Flag("algo.kl.init_coef", float, 0.01, "Coefficient of the KL penalty toward the reference model."),
    Flag("algo.kl.target", float, None, "KL that an adaptive coefficient holds."),
    Flag("algo.kl.horizon", int, 10000, "Horizon of the adaptive KL coefficient, in samples."),
    Flag("algo.kl.use_loss", bool, False, "Add the KL penalty to the loss instead of the reward."),
    Flag("algo.kl.estimator", str, "k1", "Estimator of the KL penalty.", ("k1", "k2", "k3")),
    Flag("algo.kl.unbiased_gradient", bool, False, "Give a KL loss the gradient of the exact reverse KL."),
)

ADVANTAGES = (
    Flag(
        "algo.advantage.estimator",
        str,
        "gae",
        "Estimator of the advantages; group_norm is GRPO's.",
        ("gae", "reinforce", "rloo", "reinforce_baseline", "group_norm", "dr_grpo", "flash_reinforce"),
    ),
    Flag("algo.advantage.gamma", float, 1, "Discount of rewards."),
    Flag("algo.advantage.lambd", float, 1, "Lambda of generalised advantage estimation."),
    Flag("algo.advantage.no_std_norm", bool, False, "Do not divide advantages by their standard deviation."),
    Flag(
        "algo.advantage.is_correction_level",
        str,
        "off",
        "Correct the mismatch of engine and policy log-probs, for each token or sequence.",
        ("off", "token", "seq"),
    ),
    Flag(
        "algo.advantage.is_correction_mode",
        str,
        "mask",
        "Mask tokens or sequences out of bounds, or clip their ratios.",
        ("mask", "clip"),
    ),
    Flag(
        "algo.advantage.is_correction_gating",
        str,
        "ratio",
        "Statistic that is compared with the bounds.",
        ("ratio", "binary_kl", "tv"),
    ),
    Flag(
        "algo.advantage.is_correction_threshold",
        float,
        [0.5, 5.0],
        "Lower and upper bound of the statistic, or the upper bound alone.",
        nargs="+",
    ),
    Flag("algo.dynamic_filtering_enable", bool, False, "Train on groups whose mean score lies in a range alone."),
    Flag("algo.dynamic_filtering_range", float, (0, 1), "Range of the mean score of a group.", nargs=2),
)

CRITIC = (
    Flag("critic.value_clip", float, 0.5, "Width of the clip range of values."),
    Flag("critic.freezing_steps", int, -1, "The critic alone trains up to this step, counted from 0; -1: in no step."),
    Flag("critic.save_value_network", bool, False, "Export the critic at the end."),
)

DEEPSPEED = (
    Flag("ds.zero_stage", int, 2, "ZeRO stage, from 0 to 3."),
    Flag("ds.param_dtype", str, "bf16", "Type of the weights in forward and backward passes.", ("bf16", "fp16")),
    Flag("ds.grad_accum_dtype", str, None, "Type in which gradients are accumulated; default: that of the weights."),
    Flag("ds.adam_offload", bool, False, "Keep the optimizer states in CPU memory and update there."),
    Flag("ds.enable_sleep", bool, False, "Move the optimizer states to CPU memory while engines generate."),
    Flag("ds.overlap_comm", bool, False, "Reduce gradients while the backward pass runs."),
    Flag("ds.zpg", int, 1, "Size of the secondary partition of ZeRO++."),
    Flag("ds.deepcompile", bool, False, "Compile the model with DeepCompile."),
    Flag("ds.tensor_parallel_size", int, 1, "Number of GPUs that share the layers of a trained model."),
    Flag("ds.ring_attn_size", int, 1, "Number of GPUs that share a sequence by ring attention."),
    Flag("ds.ring_attn_head_stride", int, 1, "Number of heads that ring attention computes at once."),
    Flag("ds.packing_samples", bool, False, "Pack samples into one row instead of padding them."),
    Flag("ds.attn_implementation", str, "flash_attention_2", "Attention kernels, by the name in transformers."),
    Flag(
        "ds.experts_implementation",
        str,
        None,
        "Kernels of a mixture of experts; default: chosen by transformers.",
        ("eager", "batched_mm", "grouped_mm", "deepgemm"),
    ),
    Flag("ds.use_liger_kernel", bool, False, "Use the Liger kernels."),
    Flag("actor.gradient_checkpointing_enable", bool, False, "Compute activations again in the backward pass."),
    Flag("actor.gradient_checkpointing_reentrant", bool, False, "Use the reentrant form of gradient checkpointing."),
    Flag("ds.load_in_4bit", bool, False, "Load the base weights in 4 bits."),
    Flag("ds.lora.rank", int, 0, "Rank of LoRA adapters; 0 trains all weights."),
    Flag("ds.lora.alpha", int, 16, "Scale of LoRA adapters, divided by the rank."),
    Flag("ds.lora.target_modules", str, "all-linear", "Modules that get a LoRA adapter.", nargs="*"),
    Flag("ds.lora.dropout", float, 0, "Dropout of LoRA adapters."),
    Flag("local_rank", int, -1, "Rank on its node; set by DeepSpeed."),
)

EVALUATION = (
    Flag("eval.dataset", str, None, "Evaluation data: a prompt data set, or benchmarks as bench:aime24,math500."),
    Flag("eval.split", str, "train", "Split of the evaluation data set."),
    Flag("eval.steps", int, -1, "Number of global steps between evaluations; -1 for none."),
    Flag("eval.temperature", float, 0.6, "Sampling temperature of the evaluation."),
    Flag("eval.n_samples_per_prompt", int, 4, "Number of responses to each prompt of the evaluation."),
)

CHECKPOINTS = (
    Flag("ckpt.output_dir", str, "./ckpt", "Folder of metrics and of the exported model."),
    Flag("ckpt.path", str, "./ckpt/checkpoints_ppo_ray", "Folder of the checkpoints."),
    Flag("ckpt.save_steps", int, -1, "Number of global steps between checkpoints; -1 for none."),
    Flag("ckpt.load_enable", bool, False, "Resume from the newest checkpoint."),
    Flag("ckpt.max_num", int, 3, "Number of checkpoints that are kept."),
    Flag("ckpt.max_mem", float, float("inf"), "Size of the checkpoints of each model at most, in GiB."),
    Flag("ckpt.save_hf", bool, False, "Export the model with each checkpoint."),
    Flag("ckpt.disable_ds", bool, False, "Write no DeepSpeed checkpoints."),
    Flag(
        "ckpt.best_metric_key",
        str,
        "",
        "Metric of the model exported to <ckpt.path>/best; auto: the first; empty: none.",
    ),
    Flag("ds.use_universal_ckpt", bool, False, "Load a universal checkpoint of DeepSpeed."),
)

LOGGING = (
    Flag("logger.logging_steps", int, 1, "Number of global steps between log lines."),
    Flag("logger.tensorboard_dir", str, None, "Folder of TensorBoard logs."),
    Flag("logger.wandb.key", str, None, "API key of W&B, or *** to read WANDB_API_KEY."),
    Flag("logger.wandb.org", str, None, "Entity of W&B."),
    Flag("logger.wandb.group", str, None, "Group of the run in W&B."),
    Flag("logger.wandb.project", str, "openrlhf_train_ppo", "Project of the run in W&B."),
)


def optimizer_flags(role: str, learning_rate: float) -> tuple[Flag, ...]:
    """Return the flags of the optimizer and the learning-rate schedule of a model.

    Args:
        role: ``actor`` or ``critic``, the first part of the names.
        learning_rate: Default of the learning rate of AdamW.
    """
    return (
        Flag(f"{role}.optim", str, "adam", "Optimizer.", ("adam", "muon")),
        Flag(f"{role}.adam.lr", float, learning_rate, "Learning rate of AdamW."),
        Flag(f"{role}.adam.betas", float, (0.9, 0.95), "Decay of the moments of AdamW.", nargs=2),
        Flag(f"{role}.adam.eps", float, 1e-8, "Epsilon of AdamW."),
        Flag(f"{role}.adam.weight_decay", float, 0.0, "Weight decay of AdamW."),
        Flag(f"{role}.muon.lr", float, 0.02, "Learning rate of Muon, for matrices."),
        Flag(f"{role}.muon.momentum", float, 0.95, "Momentum of Muon."),
        Flag(f"{role}.muon.ns_steps", int, 5, "Newton-Schulz steps of Muon; DeepSpeed ignores it."),
        Flag(f"{role}.muon.nesterov", bool, True, "Use Nesterov momentum in Muon; the default."),
        Flag(f"{role}.muon.no_nesterov", bool, True, "Use plain momentum in Muon.", clears=f"{role}.muon.nesterov"),
        Flag(f"{role}.lr_scheduler", str, "cosine_with_min_lr", "Learning-rate schedule, as named by transformers."),
        Flag(f"{role}.lr_warmup_ratio", float, 0.03, "Share of the updates in which the learning rate rises."),
        Flag(f"{role}.min_lr_ratio", float, 0.1, "Last learning rate as a fraction of the highest."),
        Flag(f"{role}.max_norm", float, 1.0, "Norm to which gradients are clipped."),
    )


def flag_groups() -> Iterator[tuple[str, tuple[Flag, ...]]]:
    """Yield (title in ``--help``, flags) for every group of OpenRLHF's flags."""
    # The default name of a run contains the time of its start, so this flag cannot be a constant.
    run_name = Flag("logger.wandb.run_name", str, f"ppo_{datetime.now():%m%dT%H:%M}", "Name of the run in W&B.")
    yield "placement", PLACEMENT
    yield "models", MODELS
    yield "vLLM engines", VLLM
    yield "rollouts", ROLLOUTS
    yield "prompts", DATA
    yield "rewards", REWARDS
    yield "training", TRAINING
    yield "PPO loss and KL penalty", POLICY_LOSS
    yield "advantages", ADVANTAGES
    yield "optimizer of the policy", optimizer_flags("actor", learning_rate=1e-6)
    yield "critic", CRITIC + optimizer_flags("critic", learning_rate=9e-6)
    yield "DeepSpeed, attention and LoRA", DEEPSPEED
    yield "evaluation", EVALUATION
    yield "checkpoints", CHECKPOINTS
    yield "logging", (*LOGGING, run_name)


def add_upstream_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare every flag of OpenRLHF in ``parser``."""
    for title, flags in flag_groups():
        group = parser.add_argument_group(title)
        for flag in flags:
            flag.add_to(group)
