"""Limits on how much a vLLM engine computes at once (pure)."""

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineLimits:
    """Sequences that an engine generates at once, and tokens that it computes in one step."""

    sequences: int
    batched_tokens: int


# The defaults of verl's rollouts, which we take on GPUs.
GPU_LIMITS = EngineLimits(sequences=1024, batched_tokens=8192)

# vLLM 0.29 has larger defaults for its class LLM and for its server. It makes none for engines that are made as
# upstream makes them (ENGINE_CONTEXT), which get SchedulerConfig's on every device.
VLLM_LIMITS = EngineLimits(sequences=128, batched_tokens=2048)


def engine_limits(sequences: int, batched_tokens: int, on_gpus: bool) -> EngineLimits:
    """Return how many sequences and tokens a vLLM engine computes at once.

    A default gives way to the other value where that is given: vLLM refuses fewer tokens than sequences.

    Args:
        sequences: Value of ``--vllm.max_num_seqs``; 0 for the default.
        batched_tokens: Value of ``--vllm.max_num_batched_tokens``; 0 for the default.
        on_gpus: True for the defaults of ``GPU_LIMITS``, False for those of ``VLLM_LIMITS``.
    """
    default = GPU_LIMITS if on_gpus else VLLM_LIMITS
    if not sequences:
        sequences = min(default.sequences, batched_tokens or default.batched_tokens)
    return EngineLimits(sequences, batched_tokens or max(default.batched_tokens, sequences))


def engine_arguments(sequences: int, batched_tokens: int, on_gpus: bool, max_model_len: int | None = None) -> dict:
    """Return the arguments of a vLLM engine that set these limits.

    An engine on a CPU host keeps vLLM's defaults unless a flag is given. It reads prompts whole, so its step has room
    for the longest one.

    Args:
        sequences: Value of ``--vllm.max_num_seqs``; 0 if not given.
        batched_tokens: Value of ``--vllm.max_num_batched_tokens``; 0 if not given.
        on_gpus: True on a GPU host.
        max_model_len: Longest prompt and response together, in tokens.
    """
    if not on_gpus and not sequences and not batched_tokens:
        return {}
    limits = engine_limits(sequences, batched_tokens, on_gpus)
    tokens = limits.batched_tokens if on_gpus else max(limits.batched_tokens, max_model_len or 0)
    return {"max_num_seqs": limits.sequences, "max_num_batched_tokens": tokens}
