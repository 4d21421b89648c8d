"""Scores that rank the tokens of a whole optimizer step, wherever each token lies (pure).

A score is one int64 per token. It depends on the token alone: on the value by which tokens are ranked, such as the
covariance, and on a key made of seed, global step, sample id and position. So the k largest scores are the same tokens
for any micro-batch size, number of ranks, packing or order.
"""

import numpy as np
import torch
from torch import Tensor

from openrlhf_cov.models.covariance import TokenMeans
from openrlhf_cov.utils.ordering import ordered_bits

# Score of a token that must not be selected.
NOT_A_CANDIDATE = torch.iinfo(torch.int64).min

# Sums run over integers of this many parts of one, exact in any order; a single term is rounded to 3e-8.
FIXED_POINT = 2.0**24


def token_keys(seed: int, global_step: int, sample_ids: Tensor, num_actions: int, epoch: int = 0) -> Tensor:
    """Return pseudo-random keys of tokens, which order equal values the same way on any number of ranks.

    Args:
        seed: Seed of the run.
        global_step: Global step.
        sample_ids: Numbers (B,) of the samples in the rollout, int64.
        num_actions: Columns A.
        epoch: Number of the pass over the rollout, from 0.

    Returns:
        int64 keys (B, A) in [0, 2^63), a function of seed, step, epoch, sample id and position alone. The mixing is
        that of SplitMix64.
    """
    # The first pass has the keys of a step without epochs, so that earlier runs are repeated exactly.
    origin = (seed, global_step, epoch) if epoch else (seed, global_step)
    start = int(np.random.SeedSequence(origin).generate_state(1, np.uint64).view(np.int64)[0])
    positions = torch.arange(num_actions, device=sample_ids.device)
    state = start + sample_ids[:, None] * _signed(0xD1342543DE82EF95) + positions * _signed(0x9E3779B97F4A7C15)
    state = (state ^ _shifted(state, 30)) * _signed(0xBF58476D1CE4E5B9)
    state = (state ^ _shifted(state, 27)) * _signed(0x94D049BB133111EB)
    return _shifted(state ^ _shifted(state, 31), 1)


def value_scores(values: Tensor, action_mask: Tensor, keys: Tensor) -> Tensor:
    """Return scores that order tokens by value, and tokens of equal value by key.

    Args:
        values: Values (B, A), which are compared as float32.
        action_mask: Mask (B, A) of the action tokens.
        keys: Keys (B, A) of ``token_keys``.

    Returns:
        int64 (B, A); ``NOT_A_CANDIDATE`` for masked tokens and for NaN.
    """
    # The upper 32 bits are the value, the lower 32 bits the upper bits of the key: a key only decides between equal
    # values.
    scores = ordered_bits(values).long() * 2**32 + (keys >> 31)
    return scores.masked_fill(~action_mask.bool() | values.isnan(), NOT_A_CANDIDATE)


def random_scores(candidates: Tensor, keys: Tensor) -> Tensor:
    """Return scores (B, A) that order the candidates at random, by key.

    Args:
        candidates: Booleans (B, A).
        keys: Keys (B, A) of ``token_keys``.
    """
    return keys.masked_fill(~candidates, NOT_A_CANDIDATE)


def fixed_point_sums(log_probs: Tensor, advantages: Tensor, action_mask: Tensor) -> Tensor:
    """Return the sum of log-probs, the sum of advantages and the number of unmasked tokens, int64 (3,).

    The first two are scaled by ``FIXED_POINT``. Integers add up to the same value in any grouping, so the means do not
    depend on placement.

    Args:
        log_probs: Log-probs (B, A).
        advantages: Advantages (B, A).
        action_mask: Mask (B, A) of the action tokens.
    """
    sums = [fixed_point_sum(values, action_mask) for values in (log_probs, advantages)]
    return torch.stack([*sums, action_mask.bool().sum()])


def fixed_point_sum(values: Tensor, action_mask: Tensor, parts: float = FIXED_POINT) -> Tensor:
    """Return the sum of the finite, unmasked values as an integer, 0-d int64.

    Args:
        values: Values (B, A).
        action_mask: Mask (B, A) of the action tokens.
        parts: Units of the result for a value of one; each value is rounded to a whole number of them.
    """
    kept = values.detach().double().masked_fill(~action_mask.bool(), 0.0)
    return (kept.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0) * parts).round().long().sum()


def means_of(sums: Tensor) -> TokenMeans:
    """Return the means from the added ``fixed_point_sums`` (3,) of all parts, 0-d float64; 0 if there is no token."""
    means = sums[:2].double() / FIXED_POINT / sums[2].clamp(min=1)
    return TokenMeans(log_prob=means[0], advantage=means[1])


def _signed(constant: int) -> int:
    return constant - 2**64 if constant >= 2**63 else constant


def _shifted(values: Tensor, bits: int) -> Tensor:
    """Return the logical right shift of int64."""
    # torch shifts the sign bit in from the left; the mask removes it.
    return (values >> bits) & (2 ** (64 - bits) - 1)
