"""Ranges of upstream's numbers: what it divides by, waits for or trains with, checked before it computes with them."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

# Flags that count something: at least 1, or not given where upstream has no default.
POSITIVE = (
    *(f"{model}.num_nodes" for model in ("actor", "ref", "critic", "reward")),
    *(f"{model}.num_gpus_per_node" for model in ("actor", "ref", "critic", "reward")),
    *("vllm.num_engines", "vllm.tensor_parallel_size", "ds.ring_attn_size", "ds.tensor_parallel_size", "ds.zpg"),
    *("rollout.batch_size", "rollout.micro_batch_size", "rollout.n_samples_per_prompt", "rollout.max_new_tokens"),
    *("rollout.vllm_generate_batch_size", "rollout.max_tokens_per_gpu", "train.max_tokens_per_gpu"),
    *("train.batch_size", "train.micro_batch_size", "train.max_epochs", "train.num_episodes"),
    *("train.async_queue_size", "data.max_len", "data.max_samples", "algo.kl.horizon", "ds.ring_attn_head_stride"),
    *("eval.n_samples_per_prompt", "logger.logging_steps", "ckpt.max_num", "ds.lora.alpha"),
)

# Flags that say every how many steps: at least 1, or -1 for never.
INTERVALS = ("ckpt.save_steps", "eval.steps")

# Flag -> interval of its values, in the notation of mathematics; a value that is not given, None, fits.
RANGES = {
    **{
        f"{model}.{name}": span
        for model in ("actor", "critic")
        for name, span in {
            "adam.lr": "[0, 1]",
            "adam.betas": "[0, 1)",
            "adam.eps": "(0, 1]",
            "adam.weight_decay": "[0, inf)",
            "muon.lr": "[0, 1]",
            "muon.momentum": "[0, 1)",
            "lr_warmup_ratio": "[0, 1]",
            "min_lr_ratio": "[0, 1]",
            "max_norm": "[0, inf]",
        }.items()
    },
    "actor.eps_clip": "[0, inf]",
    "actor.eps_clip_low_high": "[0, inf]",
    "actor.dual_clip": "(1, inf]",
    "actor.entropy_coef": "(-inf, inf)",
    "actor.aux_loss_coef": "[0, inf)",
    "critic.value_clip": "(0, inf]",
    "algo.advantage.lambd": "[0, 1]",
    "algo.advantage.gamma": "[0, 1]",
    "algo.advantage.is_correction_threshold": "[0, inf]",
    "algo.dynamic_filtering_range": "[-inf, inf]",
    "algo.kl.init_coef": "[0, inf)",
    "algo.kl.target": "(0, inf)",
    "reward.clip_range": "[-inf, inf]",
    "reward.overlong_buffer_len": "(0, inf)",
    "reward.overlong_penalty_factor": "[0, inf)",
    "reward.stop_properly_penalty_coef": "(-inf, 1]",
    "rollout.temperature": "[0.01, inf)",
    "rollout.top_p": "(0, 1]",
    "eval.temperature": "[0, inf)",
    "train.ema_beta": "[0, 1]",
    "train.seed": "[0, 4294967295]",
    "vllm.gpu_memory_utilization": "(0, 1]",
    "ckpt.max_mem": "(0, inf]",
    "ds.zero_stage": "[0, 3]",
    "ds.lora.rank": "[0, 65536]",
    "ds.lora.dropout": "[0, 1)",
}

REASONS = {
    "rollout.temperature": "; vLLM samples at no lower temperature, and log-probs are of logits divided by it",
}

# Flags that take LOW HIGH.
ORDERED = ("reward.clip_range", "algo.dynamic_filtering_range", "algo.advantage.is_correction_threshold")


def range_faults(args: Mapping[str, Any]) -> Iterator[str]:
    """Yield one line for each flag, by its dotted name in ``args``, whose value is outside of its range."""
    for name in (*POSITIVE, *INTERVALS):
        value = args[name]
        if value is None or value >= 1 or (name in INTERVALS and value == -1):
            continue
        yield f"--{name} {value}: must be at least 1{' (or -1: never)' if name in INTERVALS else ''}"
    for name, span in RANGES.items():
        # A flag may have one value or several, such as LOW HIGH.
        values = args[name] if isinstance(args[name], (list, tuple)) else [args[name]]
        shown = " ".join(f"{value:g}" for value in values if value is not None)
        if not all(value is None or lies_in(span, value) for value in values):
            yield f"--{name} {shown}: must lie in {span}{REASONS.get(name, '')}"
        elif name in ORDERED and sorted(values) != list(values):
            yield f"--{name} {shown}: the lower bound comes first"


def lies_in(span: str, value: float) -> bool:
    """Return True if a value lies in an interval; NaN lies in none.

    Args:
        span: The interval in the notation of mathematics, such as "[0, 1)" or "(0, inf]".
        value: The value.
    """
    low, high = map(float, span[1:-1].split(","))
    inside = low <= value <= high and not math.isnan(value)
    return inside and (span[0] == "[" or value != low) and (span[-1] == "]" or value != high)
