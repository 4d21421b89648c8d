"""Log-probs and entropies of tokens from hidden states, without the matrix of tokens x vocabulary.

The output projection is carried out one block of the vocabulary at a time, and again in the backward pass. Blocks of
the vocabulary rather than of tokens: each row of the weight then gets its whole gradient from one product, in the
weight's own type, so that no second buffer of its size is needed, and the weight is read once instead of once a block.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

# Logits that are there at once: 128 MiB in fp32, and a second tensor like it. A GPU wants large products; on the CPU
# 2**21 to 2**26 take the same time.
BLOCK = 2**25
# Log-prob of a token that a distribution of the probable ones leaves out.
EXCLUDED = -1e4
# Logit of a token of probability 0.
IMPOSSIBLE = -1e30
# The columns of a block are a multiple of this: narrower products are slow, and every row of a block of bf16 logits
# then starts at a multiple of 16 bytes, which the fast kernels of GPUs require.
COLUMN_STEP = 256


def token_scores(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    temperature: float = 1.0,
    with_entropy: bool = False,
    block: int = BLOCK,
) -> tuple[Tensor, Tensor | None]:
    """Return log-probs and entropies of softmax(logits / temperature) without holding all logits.

    Gradients flow to ``hidden``, ``weight`` and ``bias`` from both results, each at its own cost: entropies that
    nothing is derived from cost nothing in the backward pass.

    Args:
        hidden: Hidden states (N, D). Logits have the type of the model; all that follows is in fp32.
        weight: Output head (V, D).
        bias: Bias (V,) of the head, or None.
        targets: Token ids (N,).
        temperature: Temperature of the softmax.
        with_entropy: True to return entropies.
        block: Logits that exist at a time, at most.

    Returns:
        Log-probs (N,) of the targets, and entropies (N,) in nats, None without ``with_entropy``.
    """
    log_probs, entropy = _TokenScores.apply(hidden, weight, bias, targets, temperature, with_entropy, block)
    return log_probs, entropy if with_entropy else None


@torch.no_grad()
def min_p_scores(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    temperature: float,
    min_p: float,
    block: int = BLOCK,
) -> Tensor:
    """Return log-probs under the policy that keeps only tokens near the most probable one.

    The tokens at least ``min_p`` times as probable as the most probable one share all probability. The projection is
    carried out twice, because which tokens remain is known after the last block.

    Args:
        hidden: Hidden states (N, D).
        weight: Output head (V, D).
        bias: Bias (V,) of the head, or None.
        targets: Token ids (N,).
        temperature: Temperature of the softmax.
        min_p: Smallest probability of a kept token, as a share of the largest probability.
        block: Logits that exist at a time, at most.

    Returns:
        Log-probs (N,) in fp32; ``EXCLUDED`` for a target that is not kept.
    """
    top = hidden.new_full((len(hidden),), torch.finfo(torch.float32).min, dtype=torch.float32)
    chosen = torch.zeros_like(top)
    mass = torch.zeros_like(top)

    def logits() -> Iterator[tuple[Tensor, int, int]]:
        for start, end in _blocks(len(weight), len(hidden), block):
            rows = weight[start:end], None if bias is None else bias[start:end]
            yield _scaled(hidden, *rows, temperature), start, end

    # First pass: the largest logit of each row, and the logit of the target.
    for z, start, end in logits():
        place, here = _places(targets, start, end)
        chosen = torch.where(here, z.gather(1, place).squeeze(1), chosen)
        top = torch.maximum(top, z.amax(1))
    least = top + math.log(min_p)
    # Second pass: the mass of the tokens that stay, of which the first pass has found the bound.
    for z, _, _ in logits():
        mass += (z - top[:, None]).exp().masked_fill(z < least[:, None], 0.0).sum(1)
    return (chosen - top - mass.log()).masked_fill(chosen < least, EXCLUDED)


@torch.no_grad()
def discriminator_means(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float, block: int = BLOCK
) -> Tensor:
    """Return the expectation of the entropy discriminator S_v = p_v (H + ln p_v) over the vocabulary.

    E = sum_v p_v S_v = H sum_v p_v^2 + sum_v p_v^2 ln p_v, with p = softmax(logits / temperature). The projection is
    carried out once, in blocks.

    Args:
        hidden: Hidden states (N, D).
        weight: Output head (V, D).
        bias: Bias (V,) of the head, or None.
        temperature: Temperature of the softmax.
        block: Logits that exist at a time, at most.

    Returns:
        Expectations (N,) in fp32.
    """
    top = hidden.new_full((len(hidden),), torch.finfo(torch.float32).min, dtype=torch.float32)
    # Sums over the columns so far, with x = z - top: of e^x, x e^x, e^2x and x e^2x.
    mass, slope, mass_of_squares, slope_of_squares = (torch.zeros_like(top) for _ in range(4))
    for start, end in _blocks(len(weight), len(hidden), block):
        z = _scaled(hidden, weight[start:end], None if bias is None else bias[start:end], temperature)
        higher = torch.maximum(top, z.amax(1))
        shift = top - higher
        shrink = shift.exp()
        slope = shrink * (slope + shift * mass)
        mass = shrink * mass
        slope_of_squares = shrink.square() * (slope_of_squares + shift * mass_of_squares)
        mass_of_squares = shrink.square() * mass_of_squares
        z.sub_(higher[:, None])
        power = z.exp()
        mass += power.sum(1)
        mass_of_squares += power.square().sum(1)
        power.mul_(z)
        slope += power.sum(1)
        slope_of_squares += (power * z.exp()).sum(1)
        top = higher
    # H = ln(mass) - slope / mass, sum p^2 = mass_of_squares / mass^2, and
    # sum p^2 ln p = slope_of_squares / mass^2 - ln(mass) sum p^2. In the sum E the two ln(mass) cancel.
    return (slope_of_squares - mass_of_squares * slope / mass) / mass.square()


@torch.no_grad()
def discriminator_means_of_logits(logits: Tensor, temperature: float) -> Tensor:
    """Return what ``discriminator_means`` returns, from whole rows of logits.

    Args:
        logits: (N, V), before the temperature.
        temperature: Divides the logits.
    """
    log_p = (logits.float() / temperature).log_softmax(-1)
    p = log_p.exp()
    # A row that only fills the vocabulary up has p = 0 and log_p = -inf.
    log_p = log_p.masked_fill(p == 0, 0.0)
    entropy = -(p * log_p).sum(-1, keepdim=True)
    return (p * p * (entropy + log_p)).sum(-1)


@torch.no_grad()
def min_p_scores_of_logits(logits: Tensor, targets: Tensor, temperature: float, min_p: float) -> Tensor:
    """Return what ``min_p_scores`` returns, from whole rows of logits.

    Args:
        logits: (N, V), before the temperature.
        targets: (N,).
        temperature: Divides the logits.
        min_p: Share of the largest probability below which a token is left out.
    """
    z = logits.float() / temperature
    least = z.amax(1) + math.log(min_p)
    mass = z.masked_fill(z < least[:, None], -math.inf).logsumexp(1)
    chosen = z.gather(1, targets[:, None])[:, 0]
    return (chosen - mass).masked_fill(chosen < least, EXCLUDED)


class _TokenScores(torch.autograd.Function):
    """Compute log-probs and entropies with a backward pass that holds one block of logits at a time.

    With z = logits / temperature, p = softmax(z), H the entropy and y the target of a token:

    d log p_y / dz_v = [v = y] - p_v,  dH / dz_v = -p_v (log p_v + H).
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        with_entropy: bool,
        block: int,
    ) -> tuple[Tensor, Tensor]:
        lowest = torch.finfo(torch.float32).min
        top = hidden.new_full((len(hidden),), lowest, dtype=torch.float32)  # the largest z so far
        mass = torch.zeros_like(top)
        slope = torch.zeros_like(top)
        chosen = torch.zeros_like(top)
        for start, end in _blocks(len(weight), len(hidden), block):
            z = _scaled(hidden, weight[start:end], None if bias is None else bias[start:end], temperature)
            place, here = _places(targets, start, end)
            chosen = torch.where(here, z.gather(1, place).squeeze(1), chosen)
            higher = torch.maximum(top, z.amax(1))
            # mass = sum of e^(z - top), slope = sum of e^(z - top) (z - top), over the columns so far
            shrink = (top - higher).exp()
            if with_entropy:
                slope = shrink * (slope + (top - higher) * mass)
            z.sub_(higher[:, None])
            power = z.exp()
            mass = shrink * mass + power.sum(1)
            if with_entropy:
                slope += power.mul_(z).sum(1)
            top = higher
        log_mass = mass.log()
        entropy = log_mass - slope / mass
        ctx.save_for_backward(hidden, weight, bias, targets, top, log_mass, entropy)
        ctx.temperature = temperature
        ctx.block = block
        ctx.set_materialize_grads(False)
        if not with_entropy:
            ctx.mark_non_differentiable(entropy)
        return (chosen - top) - log_mass, entropy

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] - torch declares *grad_outputs
        ctx: Any, of_log_prob: Tensor | None, of_entropy: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, top, log_mass, entropy = ctx.saved_tensors
        for_hidden, for_weight, for_bias = ctx.needs_input_grad[:3]
        push = torch.zeros_like(top) if of_log_prob is None else of_log_prob / ctx.temperature
        push = push[:, None]
        to_hidden = torch.zeros_like(hidden, dtype=torch.float32) if for_hidden else None
        to_weight = torch.empty_like(weight) if for_weight else None
        to_bias = torch.empty_like(bias) if for_bias else None
        for start, end in _blocks(len(weight), len(hidden), ctx.block):
            rows = weight[start:end]
            z = _scaled(hidden, rows, None if bias is None else bias[start:end], ctx.temperature)
            # In place, as the logits of a block are the largest tensors here.
            log_p = z.sub_(top[:, None]).sub_(log_mass[:, None])
            slope = log_p.exp()  # becomes the gradient of the logits
            if of_entropy is None:
                slope.mul_(-push)
            else:
                pull = (of_entropy / ctx.temperature)[:, None]
                slope.mul_(log_p.add_(entropy[:, None]).mul_(-pull).sub_(push))
            place, here = _places(targets, start, end)
            slope.scatter_add_(1, place, push * here[:, None])
            slope = slope.to(weight.dtype)
            if to_hidden is not None:
                to_hidden += functional.linear(slope, rows.T)  # not @: a CPU host may have a faster linear
            if to_weight is not None:
                torch.mm(slope.T, hidden, out=to_weight[start:end])
            if to_bias is not None:
                to_bias[start:end] = slope.sum(0)
        return None if to_hidden is None else to_hidden.to(hidden.dtype), to_weight, to_bias, None, None, None, None


def _blocks(vocabulary: int, tokens: int, block: int) -> Iterator[tuple[int, int]]:
    """Yield the columns [start, end) of every block: ``block`` logits, rounded down to ``COLUMN_STEP`` columns.

    A block has at least ``COLUMN_STEP`` columns however many tokens there are, and ends where the vocabulary does.
    """
    columns = max(1, block // max(1, tokens) // COLUMN_STEP) * COLUMN_STEP
    for start in range(0, vocabulary, columns):
        yield start, min(start + columns, vocabulary)


def _scaled(hidden: Tensor, rows: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    """Return logits / temperature (N, columns) in fp32, a tensor of its own."""
    logits = functional.linear(hidden, rows, bias)
    z = logits.float()
    if temperature != 1.0:
        z.div_(temperature)
    # a bias, or fp16 that overflows, can make them -inf: the token cannot be, but p log p would not be a number
    return z.clamp_(min=IMPOSSIBLE) if bias is not None or logits.dtype == torch.float16 else z


def _places(targets: Tensor, start: int, end: int) -> tuple[Tensor, Tensor]:
    """Return the column (N, 1) of each target within the block, and a mask (N,) of the targets that are inside of it.

    The column of a target outside of the block may be any of its columns.
    """
    return (targets - start).clamp(0, end - start - 1)[:, None], (targets >= start) & (targets < end)
