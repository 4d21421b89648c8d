from dataclasses import replace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from openrlhf_cov.cluster.sizing.model_shape import BIASES, KNOWN, shape_of_config

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 56,
    "vocab_size": 100,
    "tie_word_embeddings": False,
    "max_position_embeddings": 64,
}


def parameters_on_meta(config):
    """What transformers builds, without memory."""
    kind = config.pop("model_type")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **config))
    return sum(parameter.numel() for parameter in model.parameters())


CHANGES = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "every head with its keys": {"num_key_value_heads": 4},
    "wide heads": {"head_dim": 16},
    "attention bias": {"attention_bias": True},
    "MLP bias": {"mlp_bias": True},
}
NOT_A_SETTING = {
    *(("qwen2", name) for name in ("wide heads", "attention bias", "MLP bias")),
    *(("mistral", name) for name in ("attention bias", "MLP bias")),
    ("qwen3", "MLP bias"),
}
CASES = [(kind, name) for kind in BIASES for name in CHANGES if (kind, name) not in NOT_A_SETTING]


@pytest.mark.parametrize(("kind", "change"), CASES)
def test_parameters_are_those_that_transformers_builds(kind, change):
    config = {"model_type": kind, **SMALL, **CHANGES[change]}
    assert shape_of_config(config).parameters == parameters_on_meta(dict(config))


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("Qwen/Qwen2.5-0.5B", 494_032_768),
        ("Qwen/Qwen2.5-1.5B", 1_543_714_304),
        ("Qwen/Qwen2.5-3B", 3_085_938_688),
        ("Qwen/Qwen2.5-7B", 7_615_616_512),
        ("Qwen/Qwen2.5-14B", 14_770_033_664),
        ("Qwen/Qwen2.5-32B", 32_763_876_352),
        ("mistralai/Mistral-7B-v0.3", 7_248_023_552),
        ("mistralai/Mistral-Nemo-Base-2407", 12_247_782_400),
        ("mistralai/Mistral-Small-24B-Base-2501", 23_572_403_200),
        ("meta-llama/Llama-3.2-3B", 3_212_749_824),
        ("meta-llama/Llama-3.1-8B", 8_030_261_248),
        ("deepseek-ai/deepseek-math-7b-base", 6_910_365_696),
        ("HuggingFaceTB/SmolLM2-135M", 134_515_008),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", 134_515_008),
    ],
)
def test_the_models_of_the_recipes_have_the_published_sizes(name, published):
    # the totals in the index files of their safetensors, halved: two bytes each
    assert KNOWN[name].parameters == published


def test_a_layer_by_hand(tiny):
    # q 8x8, k and v 8x4 each, o 8x8: 192; MLP 3 x 8 x 10 = 240; two norms of 8
    assert tiny.layer_parameters == 192 + 240 + 16
    # embedding and head 160 each, the last norm 8
    assert tiny.parameters == 2 * 160 + 2 * 448 + 8
    assert replace(tiny, tied=True).parameters == tiny.parameters - 160


@pytest.mark.parametrize(
    ("rope", "longest"),
    [
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, 64),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, 64),  # 64 is with the factor
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, 128),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, 128),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}}, 128),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": None}}, 64),
        ({"rope_scaling": {"rope_type": "linear", "factor": "2"}}, None),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 32}}, 128),
        ({"rope_scaling": None, "model_max_length": 100}, 100),  # which vLLM takes as well
        ({"rope_scaling": None}, 64),
    ],
)
def test_rotary_embeddings_may_stretch_the_longest_sequence(rope, longest):
    assert shape_of_config({"model_type": "llama", **SMALL, **rope}).max_positions == longest


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mixtral", "num_local_experts": 8}, "model_type 'mixtral' has experts"),
        ({"model_type": "qwen3_moe", "num_experts": 128}, "model_type 'qwen3_moe' has experts"),
        ({"model_type": "deepseek_v3", "n_routed_experts": 256}, "model_type 'deepseek_v3' has experts"),
        ({"model_type": "gpt2"}, "memory is not estimated for model_type 'gpt2'"),
        ({"model_type": None}, "memory is not estimated for model_type None"),
        ({"hidden_size": None}, "hidden_size: must be a valid integer; got None"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: must be at least 1; got 0"),
        ({"intermediate_size": True}, "intermediate_size: must be a valid integer; got True"),
        ({"head_dim": -1}, "head_dim: must be at least 1; got -1"),
    ],
)
def test_a_config_that_is_not_counted_says_why(changes, message):
    with pytest.raises(ValueError, match=message):
        shape_of_config({"model_type": "llama", **SMALL, **changes})
