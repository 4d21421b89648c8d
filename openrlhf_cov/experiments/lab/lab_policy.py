"""A small Llama for the lab: samples, log-probs and entropies of the policy at temperature 1.

The forward pass is written out here over the weights of transformers' module, whose own takes a third longer on
models of this size: most of a small tensor's time is what is done around it.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from openrlhf_cov.models.token_head import EXCLUDED

# Of each layer the rotated keys and the values so far, (B, heads, T, size) each; empty before the first call.
Cache = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Samples:
    """Responses (B, A) with padding behind their end; log-probs and entropies (B, A) in nats, without gradient.

    ``proxy`` (B, A): log-probs among the probable tokens, if asked for. ``discriminator_mean`` (B, A): expectations of
    the entropy discriminator, if asked for.
    """

    responses: Tensor
    log_probs: Tensor
    entropy: Tensor
    proxy: Tensor | None = None
    discriminator_mean: Tensor | None = None


@torch.no_grad()
def sample(
    model: LlamaForCausalLM,
    prompts: Tensor,
    tokens: int,
    generator: torch.Generator | None,
    eos: int,
    pad: int,
    each: int = 1,
    min_p: float | None = None,
    with_discriminator_mean: bool = False,
    forced: Tensor | None = None,
) -> Samples:
    """Sample responses from the full vocabulary, or score given ones. A prompt is read once.

    Args:
        model: The policy.
        prompts: Token ids (N, P).
        tokens: Longest response A, in tokens.
        generator: Source of the draws; None takes the most probable token.
        eos: Id of the token that ends a response.
        pad: Id that follows the end of a response.
        each: Responses to every prompt.
        min_p: With it the samples have their ``proxy``, see ``openrlhf_cov.models.token_head.min_p_scores``.
        with_discriminator_mean: True if the samples have their ``discriminator_mean``, see
            ``openrlhf_cov.models.token_head.discriminator_means``.
        forced: Responses (N * each, A) to score instead. The generator then advances as if it had sampled them.

    Returns:
        The samples, N * each rows; the responses to one prompt follow one another.
    """
    cache: Cache = []
    logits = logits_of(model, prompts, 1, cache)[:, -1].repeat_interleave(each, 0)
    # All responses to a prompt start from a copy of its keys and values, so that the prompt is read once.
    cache[:] = [(k.repeat_interleave(each, 0), v.repeat_interleave(each, 0)) for k, v in cache]
    ended = torch.zeros(len(logits), dtype=torch.bool)
    steps: list[dict[str, Tensor]] = []
    while True:
        log_p = logits.log_softmax(-1)
        p = log_p.exp()
        drawn = log_p.argmax(-1) if generator is None else torch.multinomial(p, 1, generator=generator)[:, 0]
        # After the draw, so that the generator is where it would be if these responses had been sampled.
        if forced is not None:
            drawn = forced[:, len(steps)]
        token = drawn.masked_fill(ended, pad)
        entropy = -(p * log_p).sum(-1)
        scores = {"responses": token, "log_probs": log_p.gather(-1, token[:, None])[:, 0], "entropy": entropy}
        if min_p is not None:
            scores["proxy"] = among_probable(log_p, token, min_p)
        if with_discriminator_mean:
            scores["discriminator_mean"] = (p * p * (entropy[:, None] + log_p)).sum(-1)
        steps.append(scores)
        ended |= token == eos
        # Stop when all responses have ended: the longest one is as wide as the result.
        if len(steps) == (tokens if forced is None else forced.shape[1]) or ended.all():
            return Samples(**{name: torch.stack([each[name] for each in steps], 1) for name in scores})
        logits = logits_of(model, token[:, None], 1, cache)[:, -1]


def among_probable(log_p: Tensor, tokens: Tensor, min_p: float) -> Tensor:
    """Return the log-probs (B,) of tokens under the policy that keeps only tokens near the most probable one.

    Args:
        log_p: Log-probs (B, V) of the vocabulary.
        tokens: Token ids (B,).
        min_p: Smallest probability of a kept token, as a share of the largest probability.

    Returns:
        Log-probs (B,); ``EXCLUDED`` for a token that is not kept.
    """
    # The tokens that remain share all probability, so their log-probs lose the log of their mass.
    log_p = log_p.masked_fill(log_p < log_p.amax(-1, keepdim=True) + math.log(min_p), -math.inf)
    chosen = log_p.gather(-1, tokens[:, None])[:, 0] - log_p.logsumexp(-1)
    return chosen.masked_fill(chosen.isinf(), EXCLUDED)


def until_end(responses: Tensor, eos: int) -> Tensor:
    """Return the mask of the tokens of each response up to its end, which is included.

    Args:
        responses: Token ids (B, A). What follows the end is padding; padding that the policy sampled before the end is
            a token like others.
        eos: Token id of the end.

    Returns:
        Booleans (B, A); True for all tokens of a response without an end.
    """
    # The number of ends before each token: 0 up to and including the first end.
    ends = responses.eq(eos).long()
    return ends.cumsum(1) - ends == 0


def log_probs_and_entropy(model: LlamaForCausalLM, prompts: Tensor, responses: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-probs of responses and the entropies at their tokens, with gradient where it is on.

    Padding follows the tokens that count, so that no attention mask is needed.

    Args:
        model: The policy.
        prompts: Token ids (B, P).
        responses: Token ids (B, A), padded on the right.

    Returns:
        Log-probs (B, A) and entropies (B, A) in nats.
    """
    ids = torch.cat([prompts, responses[:, :-1]], 1)
    log_p = logits_of(model, ids, responses.shape[1], []).log_softmax(-1)
    entropy = -(log_p.exp() * log_p).sum(-1)
    return log_p.gather(-1, responses[..., None])[..., 0], entropy


def logits_of(model: LlamaForCausalLM, ids: Tensor, last: int, cache: Cache) -> Tensor:
    """Return logits as transformers' forward pass gives them, to rounding.

    Args:
        model: The policy.
        ids: Token ids (B, T), which follow those in ``cache``.
        last: Number of the last tokens whose logits are needed; the last layer is left out for the others.
        cache: Keys and values of earlier tokens, a pair per layer. It grows by ``ids``.

    Returns:
        Logits (B, last, V).
    """
    batch, length = ids.shape
    # The cached keys of a layer are (B, heads, tokens so far, head size).
    start = cache[0][0].shape[2] if cache else 0
    # Cosines and sines (T, head size) of the places of the tokens.
    places = torch.arange(start, start + length).float()
    angles = torch.outer(places, model.model.rotary_emb.inv_freq).repeat(1, 2)
    cos = angles.cos()
    sin = angles.sin()
    layers: Any = model.model.layers  # their attributes are what nn.Module finds
    x = model.model.embed_tokens(ids)
    for number, layer in enumerate(layers):
        attention = layer.self_attn
        mlp = layer.mlp
        size = layer.self_attn.head_dim

        def heads(h: Tensor, linear: nn.Linear, size: int = size) -> Tensor:
            return F.linear(h, linear.weight).view(batch, h.shape[1], -1, size).transpose(1, 2)

        h = _normed(x, layer.input_layernorm)
        k = _rotated(heads(h, attention.k_proj), cos, sin)
        v = heads(h, attention.v_proj)
        if start:
            k = torch.cat([cache[number][0], k], 2)
            v = torch.cat([cache[number][1], v], 2)
            cache[number] = k, v
        else:
            cache.append((k, v))
        # The keys and values of the last layer are kept for all tokens; its output is needed for the last ones alone.
        if number == len(layers) - 1:
            x = x[:, -last:]
            h = h[:, -last:]
        q = _rotated(heads(h, attention.q_proj), cos[-x.shape[1] :], sin[-x.shape[1] :])
        # Each token attends to those before it. The last token attends to all, so that one alone needs no mask.
        queries = x.shape[1]
        keys = start + length
        mask = None if queries == 1 else torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + F.linear(attended.transpose(1, 2).flatten(2), attention.o_proj.weight)
        h = _normed(x, layer.post_attention_layernorm)
        gated = F.silu(F.linear(h, mlp.gate_proj.weight)) * F.linear(h, mlp.up_proj.weight)
        x = x + F.linear(gated, mlp.down_proj.weight)
    return F.linear(_normed(x, model.model.norm), model.lm_head.weight)


def _normed(x: Tensor, norm: Any) -> Tensor:
    return norm.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon))


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin
