"""Packed samples on a CPU host: upstream's models give what they give for padded samples, to rounding."""

from dataclasses import fields

import pytest
import torch
from openrlhf.models import Actor
from openrlhf.models.model import get_llm_for_sequence_regression
from rank_models import Strategy, flags
from run_flags import run_flags
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, MistralConfig, OPTConfig, Qwen2Config

from openrlhf_cov.cluster import cpu_host
from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.trainer.model.policy import Policy

pytestmark = [
    pytest.mark.skipif(not cpu_host.is_cpu_host(), reason="a GPU host packs with flash attention"),
    pytest.mark.usefixtures("uncompiled"),
]

# Tokens of prompt and response of each sample.
LENGTHS = [(2, 7), (1, 3), (9, 8), (5, 1), (1, 1)]
ROUNDING = 1e-5
SIZE = dict(
    hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    vocab_size=50, initializer_range=0.2,
)  # fmt: skip
GPT = dict(vocab_size=50, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
CONFIGS = {
    "llama": LlamaConfig(**SIZE),
    "qwen2": Qwen2Config(**SIZE),
    "sliding window": MistralConfig(**SIZE, sliding_window=4),
    "learned positions": GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=32, initializer_range=0.2, **GPT),
    "opt": OPTConfig(
        hidden_size=32, ffn_dim=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=50, dropout=0.0,
        word_embed_proj_dim=32, max_position_embeddings=32, init_std=0.2,
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=CONFIGS)
def model_folder(request, tmp_path_factory):
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("model")
    AutoModelForCausalLM.from_config(CONFIGS[request.param], dtype=torch.float32).save_pretrained(folder)
    return folder


def options(packing):
    """Arguments of upstream's models, as the flags of a run would give them."""
    # upstream's command line packs with flash attention
    attention = "flash_attention_2" if packing else "sdpa"
    args = run_flags({
        "ds.packing_samples": packing, "ds.attn_implementation": attention, "rollout_seeded": True
    })  # fmt: skip
    cpu_host.adapt(args)
    return dict(attn_implementation=args.ds.attn_implementation, packing_samples=packing, param_dtype="fp32")


def batch():
    """(sequences, attention mask (B, T), action mask (B, T - 1)): prompts and responses, then padding."""
    width = max(map(sum, LENGTHS)) + 1  # a column that no sample reaches
    sequences = torch.randint(2, 50, (len(LENGTHS), width), generator=torch.Generator().manual_seed(1))
    position = torch.arange(width)
    prompt, length = (torch.tensor(each)[:, None] for each in zip(*((p, p + r) for p, r in LENGTHS), strict=True))
    attention = (position < length).long()
    return sequences * attention, attention, ((position[1:] >= prompt) & (position[1:] < length)).long()


def assert_same(packed, padded):
    scale = padded.abs().max()
    assert scale > 1e-2
    torch.testing.assert_close(packed, padded, rtol=0, atol=ROUNDING * float(scale))


def policy_of(actor):
    """Return a policy that can score, and nothing else."""
    parts = dict.fromkeys(field.name for field in fields(Policy))
    return Policy(
        **parts | {"actor": actor, "strategy": Strategy(flags("out"), accumulation=1), "config": CovConfig()}
    )


def gradients(model):
    return torch.cat([param.grad.flatten() for param in model.parameters() if param.grad is not None])


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [False, True])
def test_log_probs_entropy_and_gradient_of_the_policy(model_folder, checkpointing):
    sequences, attention, action = batch()
    weights = torch.randn(action.shape, generator=torch.Generator().manual_seed(2))
    found = {}
    for packing in (False, True):
        actor = Actor(str(model_folder), temperature=0.9, **options(packing))
        if checkpointing:
            actor.gradient_checkpointing_enable()
        actor.train()
        log_probs, output = actor(sequences, action, attention_mask=attention, return_output=True, return_entropy=True)
        entropy = output.entropy * action
        (log_probs * weights + 0.1 * entropy).sum().backward()
        scores = policy_of(actor).score(sequences, action, attention, None, with_entropy=True)
        scored = scores.log_probs, scores.entropy * action
        found[packing] = log_probs.detach(), entropy.detach(), gradients(actor), *scored
    for packed, padded in zip(found[True], found[False], strict=True):
        assert_same(packed, padded)


def test_values_and_gradient_of_the_critic(model_folder):
    sequences, attention, action = batch()
    found = {}
    for packing in (False, True):
        torch.manual_seed(3)
        critic = get_llm_for_sequence_regression(
            str(model_folder), "critic", init_value_head=True, **options(packing)
        ).train()
        values, _ = critic(sequences, action, attention_mask=attention, return_output=True)
        values.square().sum().backward()
        found[packing] = values.detach(), gradients(critic)
    for packed, padded in zip(found[True], found[False], strict=True):
        assert_same(packed, padded)


def test_attention_by_hand():
    # samples of 2 and 1 tokens, one head of size 1, scores q k: token 2 weighs 10 and 20 by (1, e) / (1 + e)
    query, key = torch.tensor([5.0, 1.0, 1.0]), torch.tensor([0.0, 1.0, 9.0])
    query, key, value = (x.view(1, 1, 3, 1) for x in (query, key, torch.tensor([10.0, 20.0, 40.0])))
    positions = torch.tensor([[0, 1, 0]])
    result, weights = cpu_host._packed_attention(torch.nn.Module(), query, key, value, None, positions, scaling=1.0)
    assert weights is None
    assert result.shape == (1, 3, 1, 1)
    e = torch.e
    assert result.flatten().tolist() == pytest.approx([10.0, (10 + 20 * e) / (1 + e), 40.0])
