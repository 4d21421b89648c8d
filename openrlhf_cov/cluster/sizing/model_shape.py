"""The shape of a language model, read from its config.json, and what follows from it (pure)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge

from openrlhf_cov.utils.record_checks import OPEN, checked_value

Positive = Annotated[int, Ge(1)]


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A decoder of Llama's kind: grouped-query attention, a gated MLP, RMS norms."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    # The output head is the embedding.
    tied: bool
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    # Longest sequence, with what rotary embeddings are stretched by; None if the config does not say.
    max_positions: int | None = None

    @property
    def query_width(self) -> int:
        """Numbers per token in the queries of a layer."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Numbers per token in the keys of a layer, and in its values."""
        return self.kv_heads * self.head_dim

    @property
    def embedding(self) -> int:
        """Parameters of the embedding, the largest matrix that is gathered as a whole."""
        return self.vocab * self.hidden

    @property
    def layer_parameters(self) -> int:
        """Parameters of one decoder layer."""
        attention = 2 * self.hidden * (self.query_width + self.kv_width)
        attention += self.qkv_bias * (self.query_width + 2 * self.kv_width) + self.output_bias * self.hidden
        attention += self.qk_norm * 2 * self.head_dim
        mlp = 3 * self.hidden * self.intermediate + self.mlp_bias * (2 * self.intermediate + self.hidden)
        return attention + mlp + 2 * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters; a tied head counts once."""
        return self.embedding * (1 if self.tied else 2) + self.layers * self.layer_parameters + self.hidden


# model_type -> parts that a layer of it has beside matrices and norms; what the config switches on comes on top.
BIASES = {"llama": (), "mistral": (), "qwen2": ("qkv_bias",), "qwen3": ("qk_norm",)}

# Numbers of a head where the config does not say, unless the heads divide the hidden size among them.
HEAD_DIM = {"qwen3": 128}

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True, kw_only=True)
class _ConfigFields:
    """The sizes of a decoder in its config.json. An optional field may also be null."""

    __pydantic_config__ = OPEN

    hidden_size: Positive
    num_hidden_layers: Positive
    num_attention_heads: Positive
    intermediate_size: Positive
    vocab_size: Positive
    num_key_value_heads: Positive | None = None
    head_dim: Positive | None = None
    attention_bias: bool | None = None
    mlp_bias: bool | None = None
    tie_word_embeddings: bool | None = None


def shape_of_config(config: Mapping[str, Any]) -> ModelShape:
    """Return the shape that a config.json describes.

    Raises:
        ValueError: The memory of such a model is not estimated, or a size is missing or no size; the message says why.
    """
    kind = config.get("model_type")
    if any(config.get(name) for name in EXPERTS):
        raise ValueError(f"model_type {kind!r} has experts, whose memory is not estimated")
    if kind not in BIASES:
        raise ValueError(f"memory is not estimated for model_type {kind!r}, but for {', '.join(BIASES)}")
    found = checked_value(_ConfigFields, dict(config))
    # Not every model divides its hidden size among the heads: Qwen3 and Mistral-Nemo do not.
    head_dim = found.head_dim or HEAD_DIM.get(kind) or found.hidden_size // found.num_attention_heads
    parts = dict.fromkeys(BIASES[kind], True)
    if kind != "qwen2" and found.attention_bias:
        parts |= {"qkv_bias": True, "output_bias": True}
    if kind == "llama" and found.mlp_bias:
        parts["mlp_bias"] = True
    return ModelShape(
        hidden=found.hidden_size,
        layers=found.num_hidden_layers,
        heads=found.num_attention_heads,
        intermediate=found.intermediate_size,
        vocab=found.vocab_size,
        **parts,
        kv_heads=found.num_key_value_heads or found.num_attention_heads,
        head_dim=head_dim,
        tied=bool(found.tie_word_embeddings),
        max_positions=_stretched(config),
    )


# Rotary embeddings whose max_position_embeddings is the longest sequence already.
UNSTRETCHED = ("default", "llama3", "longrope", "su")


def _stretched(config: Mapping[str, Any]) -> int | None:
    """Return max_position_embeddings as vLLM counts them.

    Rotary embeddings that are not among ``UNSTRETCHED`` multiply the number by their factor.
    """
    longest = config.get("max_position_embeddings")
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    rope = rope if isinstance(rope, dict) else {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in UNSTRETCHED:
        if kind == "yarn":
            longest = rope.get("original_max_position_embeddings") or longest
        factor = rope.get("factor") or 1.0
        longest = int(longest * factor) if isinstance(longest, int) and isinstance(factor, int | float) else None
    allowed = config.get("model_max_length")
    return max(longest, allowed) if longest and isinstance(allowed, int) else longest


_COLUMNS = ("hidden", "layers", "heads", "kv_heads", "head_dim", "intermediate", "vocab", "tied", "max_positions")


def _known(*row: Any, qkv_bias: bool = False) -> ModelShape:
    return ModelShape(**dict(zip(_COLUMNS, row, strict=True)), qkv_bias=qkv_bias)


# Hub name -> shape of the models of the recipes, for hosts without a network.
KNOWN: dict[str, ModelShape] = {
    "Qwen/Qwen2.5-0.5B": _known(896, 24, 14, 2, 64, 4864, 151936, True, 32768, qkv_bias=True),
    "Qwen/Qwen2.5-1.5B": _known(1536, 28, 12, 2, 128, 8960, 151936, True, 131072, qkv_bias=True),
    "Qwen/Qwen2.5-3B": _known(2048, 36, 16, 2, 128, 11008, 151936, True, 32768, qkv_bias=True),
    "Qwen/Qwen2.5-7B": _known(3584, 28, 28, 4, 128, 18944, 152064, False, 131072, qkv_bias=True),
    "Qwen/Qwen2.5-14B": _known(5120, 48, 40, 8, 128, 13824, 152064, False, 131072, qkv_bias=True),
    "Qwen/Qwen2.5-32B": _known(5120, 64, 40, 8, 128, 27648, 152064, False, 131072, qkv_bias=True),
    "Qwen/Qwen2.5-1.5B-Instruct": _known(1536, 28, 12, 2, 128, 8960, 151936, True, 32768, qkv_bias=True),
    "Qwen/Qwen2.5-3B-Instruct": _known(2048, 36, 16, 2, 128, 11008, 151936, True, 32768, qkv_bias=True),
    "Qwen/Qwen2.5-7B-Instruct": _known(3584, 28, 28, 4, 128, 18944, 152064, False, 32768, qkv_bias=True),
    "mistralai/Mistral-7B-v0.3": _known(4096, 32, 32, 8, 128, 14336, 32768, False, 32768),
    "mistralai/Mistral-Nemo-Base-2407": _known(5120, 40, 32, 8, 128, 14336, 131072, False, 131072),
    "mistralai/Mistral-Small-24B-Base-2501": _known(5120, 40, 32, 8, 128, 32768, 131072, False, 32768),
    "meta-llama/Llama-3.2-3B": _known(3072, 28, 24, 8, 128, 8192, 128256, True, 131072),
    "meta-llama/Llama-3.1-8B": _known(4096, 32, 32, 8, 128, 14336, 128256, False, 131072),
    "deepseek-ai/deepseek-math-7b-base": _known(4096, 30, 32, 32, 128, 11008, 102400, False, 4096),
    "HuggingFaceTB/SmolLM2-135M": _known(576, 30, 9, 3, 64, 1536, 49152, True, 8192),
    "HuggingFaceTB/SmolLM2-135M-Instruct": _known(576, 30, 9, 3, 64, 1536, 49152, True, 8192),
}
