"""Selection and loss on the device of the policy: bf16 trains, and on an accelerator the host reads nothing of a
micro-batch, which ``tests/trainer/test_gpu_rules.py`` proves without one.

``gpu`` runs on an accelerator: ``python -m pytest -m gpu``.
"""

import importlib.util
import math
from contextlib import contextmanager

import pytest
import torch
from gpu import Rules
from method_loss import MethodLoss
from openrlhf.models import PolicyLoss, aggregate_loss
from planned import select_step
from transformers import AutoModelForCausalLM, Qwen2Config

from openrlhf_cov.models.method import Plan, TokenBatch
from openrlhf_cov.models.ranking import token_keys

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator here")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, needs_gpu])]
METHODS = ["clip_cov", "kl_cov"]


def batch(device, samples=4, length=16, seed=0):
    """Tokens of a micro-batch whose policy has moved a little; a third of them masked."""
    draw = torch.Generator().manual_seed(seed)
    log_probs = -torch.rand(samples, length, generator=draw) * 4
    old = log_probs + 0.1 * torch.randn(samples, length, generator=draw)
    advantages = torch.randn(samples, 1, generator=draw).expand(samples, length)
    mask = torch.rand(samples, length, generator=draw) > 1 / 3
    return TokenBatch(*(tensor.to(device) for tensor in (log_probs, old, advantages, mask)))


def loss_of(config):
    clip = 0.2 if config.cov_type == "clip_cov" else math.inf
    policy_loss = PolicyLoss(clip_eps_low=clip, clip_eps_high=clip)
    return MethodLoss(config, policy_loss=policy_loss, aggregate=aggregate_loss)


def keys_of(count, device, samples=4, length=16):
    ids = torch.arange(count * samples, device=device).split(samples)
    return [token_keys(42, 1, each, length) for each in ids]


@contextmanager
def no_waiting():
    """What makes the host wait for the accelerator raises."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("scope", ["global", "micro_batch"])
@pytest.mark.parametrize("cov_type", METHODS)
def test_the_loss_reads_nothing(cov_config, cov_type, scope):
    loss = loss_of(cov_config(cov_type, 0.1, cov_scope=scope))
    tokens = batch("cuda")
    log_probs = tokens.log_probs.clone().requires_grad_()
    loss.expect([Plan(torch.zeros_like(tokens.action_mask), drops=loss.config.cov_type == "clip_cov")])
    loss.start_step(loss.config, 42, 1, 0)
    with no_waiting():
        value, *_ = loss(log_probs, tokens.old_log_probs, tokens.advantages, tokens.action_mask)
        value.backward()


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("micro_batches", [1, 2, 16])
@pytest.mark.parametrize("cov_type", METHODS)
def test_a_selection_reads_its_quota_alone(cov_config, cov_type, micro_batches):
    window = [batch("cuda", seed=seed) for seed in range(micro_batches)]
    keys = keys_of(micro_batches, "cuda")
    with no_waiting(), Rules(reads=1) as mode:  # which answers the one read itself
        select_step(window, keys, cov_config(cov_type, 0.1), (0.2, 0.2))
    assert mode.left == 0


# --- a training step in bf16

SIZES = {
    "cpu": dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=128),
    # that of Qwen2.5-0.5B
    "cuda": dict(
        hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14, vocab_size=151936
    ),
}
PROMPT = 8


def make_policy(device):
    """A policy with random weights in bf16, with flash attention where a GPU has it."""
    config = Qwen2Config(num_key_value_heads=2, tie_word_embeddings=True, **SIZES[device])
    flash = device == "cuda" and importlib.util.find_spec("flash_attn") is not None
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(
        config, dtype=torch.bfloat16, attn_implementation="flash_attention_2" if flash else "sdpa"
    ).to(device)


def log_probs_of(policy, sequences):
    """Log-probs (B, A) of the tokens after the prompt, in float32."""
    logits = policy(sequences).logits[:, PROMPT - 1 : -1].float()
    return torch.log_softmax(logits, -1).gather(-1, sequences[:, PROMPT:, None]).squeeze(-1)


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("cov_type", METHODS)
def test_a_training_step_in_bf16(cov_config, cov_type, device):
    policy = make_policy(device)
    config = cov_config(cov_type, 0.02, ppo_kl_coef=1.0)
    loss = loss_of(config)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4)
    draw = torch.Generator().manual_seed(1)
    vocabulary, rows, length = SIZES[device]["vocab_size"], 4, 32
    sequences = torch.randint(vocabulary, (2, rows, PROMPT + length), generator=draw).to(device)
    advantages = torch.randn(2, rows, 1, generator=draw).expand(2, rows, length).to(device)
    mask = torch.ones(2, rows, length, dtype=torch.bool, device=device)
    with torch.no_grad():
        old = [log_probs_of(policy, each) for each in sequences]
    before = policy.lm_head.weight.detach().clone()
    for _ in range(2):  # the second has a policy that has moved
        with torch.no_grad():
            now = [log_probs_of(policy, each) for each in sequences]
        window = [TokenBatch(*each) for each in zip(now, old, advantages, mask, strict=True)]
        keys = keys_of(2, device, rows, length)
        selected = select_step(window, keys, config, loss.ppo_clip)
        here = [
            TokenBatch(*(tensor.cpu() for tensor in vars(tokens).values() if tensor is not None)) for tokens in window
        ]
        expected = select_step(here, [each.cpu() for each in keys], config, loss.ppo_clip)
        assert [each.tolist() for each in selected] == [each.tolist() for each in expected]
        assert sum(int(each.sum()) for each in selected) == 5  # floor(0.02 * 2 * 4 * 32)
        for place, tokens in enumerate(sequences):
            loss.expect([Plan(selected[place], drops=config.cov_type == "clip_cov")])
            value, *_ = loss(log_probs_of(policy, tokens), old[place], advantages[place], mask[place])
            (value / 2).backward()
        norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        assert torch.isfinite(norm)
        assert norm > 0
        optimizer.step()
        optimizer.zero_grad()
    assert not torch.equal(policy.lm_head.weight, before)
    assert torch.isfinite(policy.lm_head.weight).all()
