"""The presets of ``openrlhf-cov train --preset NAME``: flags that belong together, as one table each.

A preset gives flags other defaults. Flags on the command line win over it, and so does what a method was published
with, such as the PPO clip of KL-Cov.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Preset:
    """One preset. Flags are written as on a command line, without the dashes; a switch has the value "".

    Attributes:
        about: What the preset is for.
        flags: The flags that it sets.
        without_method: Flags of a run without ``--method``: the PPO clip, which a method sets itself.
        on_gpus: Flags of hosts with GPUs: where models are placed, and what saves memory.
        of_methods: Method -> flags of a run with it.
    """

    about: str
    flags: Mapping[str, str]
    without_method: Mapping[str, str]
    on_gpus: Mapping[str, str]
    of_methods: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


# The defaults of OpenRLHF are those of PPO: a critic, a reference model, and one response to each prompt.
GROUP_RELATIVE = {
    # The responses to a prompt are the baseline of each other, so there is no critic.
    "algo.advantage.estimator": "group_norm",
    # No KL penalty, so there is no reference model.
    "algo.kl.init_coef": "0",
    "actor.loss_agg_mode": "token-mean",
    "rollout.temperature": "1",
    "rollout.top_p": "1",
    "train.max_epochs": "1",
    "actor.lr_scheduler": "constant",
}

# Training and vLLM take turns on the same GPUs.
COLOCATED = {
    "train.colocate_all": "",
    "vllm.enable_sleep": "",
    "ds.enable_sleep": "",
    "vllm.gpu_memory_utilization": "0.8",
    "vllm.enable_prefix_caching": "",
    "ds.zero_stage": "3",
    "ds.grad_accum_dtype": "fp32",
    "actor.gradient_checkpointing_enable": "",
    # Forward passes are filled up to a number of tokens, whatever the lengths of responses.
    "ds.packing_samples": "",
    "train.dynamic_batch_enable": "",
}

ONE_NODE = {
    **COLOCATED,
    "actor.num_nodes": "1",
    "actor.num_gpus_per_node": "8",
    "vllm.num_engines": "8",
    "train.max_tokens_per_gpu": "16384",
    "rollout.max_tokens_per_gpu": "16384",
}

# Groups whose responses all have the same reward have no advantage; other prompts take their place.
DYNAMIC_SAMPLING = {
    "algo.dynamic_filtering_enable": "",
    "algo.dynamic_filtering_range": "0 1",
    "sampling_max_rounds": "10",
    "sampling_oversample_max": "6",
}

GRPO = {
    **GROUP_RELATIVE,
    "rollout.batch_size": "128",
    "rollout.n_samples_per_prompt": "8",
    # Samples of an update: 128 x 8 / 4, so four updates of each rollout.
    "train.batch_size": "256",
    "data.max_len": "4096",
    "rollout.max_new_tokens": "3072",
    "actor.adam.lr": "1e-6",
}

# arXiv 2505.22617, section 4.3, and the authors' scripts; scripts/train_qwen2.5.sh has the same settings.
PAPER = {
    **GROUP_RELATIVE,
    **DYNAMIC_SAMPLING,
    "rollout.batch_size": "256",
    "rollout.n_samples_per_prompt": "8",
    # 256 x 8 / 8: eight updates of each rollout.
    "train.batch_size": "256",
    "data.max_len": "10240",
    "rollout.max_new_tokens": "8192",
    "actor.adam.betas": "0.9 0.999",
    "actor.adam.weight_decay": "0",
    "actor.max_norm": "1",
}

PAPER_CLIP = {"actor.eps_clip_low_high": "0.2 0.2", "actor.dual_clip": "10"}

PRESETS = {
    "grpo": Preset(
        about="GRPO with four updates per rollout, without critic and reference model",
        flags=GRPO,
        without_method={"actor.eps_clip_low_high": "0.2 0.2"},
        on_gpus=ONE_NODE,
    ),
    "dapo": Preset(
        about="DAPO (arXiv 2503.14476): clip-higher, dynamic sampling, token mean, overlong penalty",
        flags={
            **GROUP_RELATIVE,
            **DYNAMIC_SAMPLING,
            "rollout.batch_size": "512",
            "rollout.n_samples_per_prompt": "16",
            # 512 x 16 / 16: sixteen updates of each rollout.
            "train.batch_size": "512",
            # Responses of 20,480 tokens, the last 4,096 of which cost up to 1 of the reward.
            "data.max_len": "22528",
            "rollout.max_new_tokens": "20480",
            "reward.overlong_buffer_len": "4096",
            "reward.overlong_penalty_factor": "1",
            "actor.adam.lr": "1e-6",
        },
        without_method={"actor.eps_clip_low_high": "0.2 0.28"},
        on_gpus=ONE_NODE | {"train.max_tokens_per_gpu": "24576", "rollout.max_tokens_per_gpu": "24576"},
    ),
    "paper-7b": Preset(
        about="the settings of arXiv 2505.22617 for Qwen2.5-7B, on 8 GPUs of 80 GB",
        flags={**PAPER, "actor.adam.lr": "5e-7"},
        without_method=PAPER_CLIP,
        of_methods={"kl_cov": {"kl_cov_ratio": "2e-3"}},
        on_gpus=ONE_NODE | {"train.max_tokens_per_gpu": "40960", "rollout.max_tokens_per_gpu": "40960"},
    ),
    "paper-32b": Preset(
        about="the settings of arXiv 2505.22617 for Qwen2.5-32B, on 4 nodes of 8 GPUs of 80 GB",
        flags={**PAPER, "actor.adam.lr": "1e-6"},
        without_method=PAPER_CLIP,
        of_methods={"kl_cov": {"kl_cov_ratio": "2e-4"}},
        on_gpus=ONE_NODE
        | {
            "actor.num_nodes": "4",
            "vllm.num_engines": "8",
            "vllm.tensor_parallel_size": "4",
            "train.max_tokens_per_gpu": "40960",
            "rollout.max_tokens_per_gpu": "40960",
        },
    ),
    "on-policy": Preset(
        about="GRPO with one update per rollout, so that every sample comes from the current policy",
        # Samples of an update: 128 x 8, a whole rollout.
        flags=GRPO | {"train.batch_size": "1024"},
        without_method={},
        on_gpus=ONE_NODE,
    ),
}

# Placement of a host without GPUs, where the slots are only numbers to Ray.
WITHOUT_GPUS = {"actor.num_nodes": "1", "actor.num_gpus_per_node": "1", "vllm.num_engines": "1"}


def flags_of_preset(name: str, methods: Collection[str], *, has_gpus: bool) -> dict[str, str]:
    """Return the flags that a preset sets, without dashes -> as on a command line; a switch has the value "".

    Args:
        name: A key of ``PRESETS``.
        methods: Names of the methods of the run, each of which may change flags of the preset.
        has_gpus: True on a host with GPUs, where the preset also places models and saves memory.
    """
    preset = PRESETS[name]
    flags = dict(preset.flags)
    if not methods:
        flags |= preset.without_method
    for method in methods:
        flags |= preset.of_methods.get(method, {})
    flags |= preset.on_gpus if has_gpus else WITHOUT_GPUS
    return flags


def words_of(flags: Mapping[str, str]) -> list[str]:
    """Return flags as the words of a command line."""
    return [word for flag, value in flags.items() for word in (f"--{flag}", *value.split())]


def follow_given(name: str, values: dict[str, Any], parsed: Mapping[str, Any], given: Collection[str]) -> None:
    """Change values of a preset that depend on flags that the command line sets otherwise.

    With another number of GPUs the engines still take all of them. Engines of asynchronous training do not sleep. A
    PPO clip that is given as ``--actor.eps_clip`` replaces the range of the preset, which would win over it. The
    update of ``on-policy`` still has all samples of another rollout, and with dynamic sampling none of an older
    policy.

    Args:
        name: The preset.
        values: Destination of a flag -> the preset's value; changed in place.
        parsed: The parsed command line, with the values of the preset as defaults.
        given: Destinations of the flags on the command line.
    """
    if "vllm.num_engines" not in given:
        gpus = parsed["actor.num_nodes"] * parsed["actor.num_gpus_per_node"]
        values["vllm.num_engines"] = max(1, gpus // parsed["vllm.tensor_parallel_size"])
    if parsed["train.async_enable"] and "vllm.enable_sleep" not in given:
        values["vllm.enable_sleep"] = False  # the engines generate while the policy trains
    if "actor.eps_clip" in given and "actor.eps_clip_low_high" in values:
        values["actor.eps_clip_low_high"] = None
    if name != "on-policy":
        return
    if "train.batch_size" not in given:
        values["train.batch_size"] = parsed["rollout.batch_size"] * parsed["rollout.n_samples_per_prompt"]
    if parsed["algo.dynamic_filtering_enable"]:
        values["sampling_max_staleness"] = 0
