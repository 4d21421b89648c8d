import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_cov.models.ranking import (
    NOT_A_CANDIDATE,
    fixed_point_sums,
    means_of,
    random_scores,
    token_keys,
    value_scores,
)

WORD = 2**64 - 1


def mixed(state):
    """The output function of SplitMix64 (Steele, Lea, Flood 2014), in Python integers."""
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & WORD
    return state ^ (state >> 31)


GOLDEN_GAMMA = 0x9E3779B97F4A7C15


def test_the_mixing_we_compare_with_is_splitmix64():
    # published outputs of the generator, seed 1234567 (rosettacode.org, "Pseudo-random numbers/Splitmix64")
    outputs = [mixed((1234567 + i * GOLDEN_GAMMA) & WORD) for i in (1, 2, 3)]
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(
    seed=st.integers(0, 2**40),
    step=st.integers(0, 10**7),
    ids=st.lists(st.integers(0, 2**40), min_size=1, max_size=4),
    num_actions=st.integers(1, 40),
)
def test_keys_are_those_of_plain_python_integers(seed, step, ids, num_actions):
    start = int(np.random.SeedSequence((seed, step)).generate_state(1, np.uint64)[0])
    rows = [start + number * 0xD1342543DE82EF95 for number in ids]
    expected = [[mixed((row + GOLDEN_GAMMA * t) & WORD) >> 1 for t in range(num_actions)] for row in rows]
    keys = token_keys(seed, step, torch.tensor(ids), num_actions)
    assert keys.dtype == torch.int64
    assert keys.tolist() == expected
    assert all(0 <= key < 2**63 for row in expected for key in row)


def test_every_pass_over_a_rollout_has_keys_of_its_own():
    ids = torch.arange(50)
    first, second = (token_keys(3, 7, ids, 20, epoch=epoch) for epoch in (0, 1))
    assert first.equal(token_keys(3, 7, ids, 20))
    # Of 1,000 random keys each, a tenth with the largest: by chance 10 of 100 are in both, with a standard deviation
    # of some 3.
    largest = [set(keys.flatten().topk(100).indices.tolist()) for keys in (first, second)]
    assert len(largest[0] & largest[1]) < 25


IDS = torch.arange(100)


def chi_square(counts):
    expected = counts.sum() / counts.numel()
    return ((counts - expected).square() / expected).sum().item()


# Chi-square with n - 1 degrees of freedom has mean n - 1 and standard deviation sqrt(2 (n - 1)); bounds are five
# deviations above: 64 cells 63 + 5 * 11.2 = 119, 10 cells 9 + 5 * 4.24 = 30.2
@pytest.mark.parametrize("shift", [57, 31, 0])
def test_keys_are_uniform(shift):
    cells = (token_keys(42, 1, IDS, 1000) >> shift) & 63  # 1,562.5 of 100,000 in each
    assert chi_square(cells.flatten().bincount(minlength=64).float()) < 119


def test_every_position_has_the_largest_key_of_its_sample_equally_often():
    winners = token_keys(42, 2, torch.arange(10_000), 10).argmax(dim=1)  # 1,000 of 10,000 for each position
    assert chi_square(winners.bincount(minlength=10).float()) < 30.2


def test_every_sample_has_the_largest_key_of_its_position_equally_often():
    winners = token_keys(42, 2, torch.arange(10), 10_000).argmax(dim=0)
    assert chi_square(winners.bincount(minlength=10).float()) < 30.2


FLOATS = st.one_of(
    st.floats(width=32, allow_nan=False, allow_subnormal=True),
    st.sampled_from([0.0, -0.0, math.inf, -math.inf, 2**-149, -(2**-149), 1.0, -1.0]),  # 2^-149: smallest subnormal
)


@given(tokens=st.lists(st.tuples(FLOATS, st.integers(0, 2**32 - 1)), min_size=1, max_size=12))
def test_value_scores_are_in_the_order_of_covariance_then_key(tokens):
    cov = torch.tensor([[value for value, _ in tokens]])
    keys = torch.tensor([[key << 31 for _, key in tokens]])  # the upper 32 of 63 bits break ties
    scores = value_scores(cov, torch.ones_like(cov), keys)[0].tolist()
    assert min(scores) > NOT_A_CANDIDATE
    for left, left_score in zip(tokens, scores, strict=True):
        for right, right_score in zip(tokens, scores, strict=True):
            assert (left < right) == (left_score < right_score)  # Python compares -0.0 and 0.0 as equal, too


def test_value_scores_by_hand():
    # 1.0 is 0x3F800000 in float32 and -1.0 has the same bits below the sign; the key's upper half is added
    cov = torch.tensor([[1.0, -1.0, 0.0, -0.0]])
    keys = torch.tensor([[5 << 31, 6 << 31, 7 << 31, (8 << 31) + 99]])
    expected = [0x3F800000 * 2**32 + 5, (-0x3F800000 - 1) * 2**32 + 6, 7, 8]
    assert value_scores(cov, torch.ones(1, 4), keys).tolist() == [expected]


@pytest.mark.parametrize("mask_dtype", [torch.bool, torch.int64, torch.float32])
def test_masked_and_nan_tokens_are_no_candidates_of_kl_cov(mask_dtype):
    cov = torch.tensor([[math.nan, math.inf, -math.inf, -math.nan, 3.0]])
    mask = torch.tensor([[1, 1, 1, 1, 0]]).to(mask_dtype)
    scores = value_scores(cov, mask, torch.zeros(1, 5, dtype=torch.long))
    assert (scores == NOT_A_CANDIDATE).tolist() == [[True, False, False, True, True]]


def test_random_scores_are_the_keys_of_the_candidates():
    keys = torch.tensor([[0, 7, 2**63 - 1, 9]])
    candidates = torch.tensor([[True, False, True, True]])
    assert random_scores(candidates, keys).tolist() == [[0, NOT_A_CANDIDATE, 2**63 - 1, 9]]
    assert NOT_A_CANDIDATE == -(2**63)


def test_fixed_point_sums_by_hand():
    log_probs = torch.tensor([[-1.0, -2.5], [9.0, -0.25]], requires_grad=True)
    advantages = torch.tensor([[0.5, -1.0], [9.0, 2.0]])
    sums = fixed_point_sums(log_probs, advantages, torch.tensor([[1, 1], [0, 1]]))
    assert sums.dtype == torch.int64
    assert sums.tolist() == [int(-3.75 * 2**24), int(1.5 * 2**24), 3]
    means = means_of(sums + sums)  # two equal parts
    assert (means.log_prob.item(), means.advantage.item()) == (-1.25, 0.5)
    for mean in (means.log_prob, means.advantage):
        assert (mean.shape, mean.dtype) == (torch.Size([]), torch.float64)


VALUES = st.floats(-1e4, 1e4, width=32)


@given(
    tokens=st.lists(st.tuples(VALUES, VALUES, st.booleans()), min_size=1, max_size=30),
    cuts=st.lists(st.integers(0, 30), max_size=4),
    seed=st.integers(0, 2**16),
)
def test_sums_are_exact_in_any_grouping(tokens, cuts, seed):
    log_probs, advantages, mask = (torch.tensor([column]) for column in zip(*tokens, strict=True))
    expected = [sum(round(Fraction(token[i]) * 2**24) for token in tokens if token[2]) for i in (0, 1)]
    expected.append(sum(token[2] for token in tokens))
    assert fixed_point_sums(log_probs, advantages, mask).tolist() == expected
    order = torch.randperm(len(tokens), generator=torch.Generator().manual_seed(seed))
    edges = sorted({0, len(tokens), *(cut for cut in cuts if cut < len(tokens))})
    parts = [order[start:end] for start, end in pairwise(edges)]
    sums = [fixed_point_sums(log_probs[:, p], advantages[:, p], mask[:, p]) for p in parts]
    assert sum(reversed(sums)).tolist() == expected


@given(tokens=st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=50))
def test_means_are_near_the_float64_means(tokens):
    # every term is rounded to the next multiple of 2^-24, i.e. by 2^-25 = 3e-8 at most, and so is their mean;
    # float64 itself is good to 1e4 * 2^-52 = 2e-12
    log_probs, advantages = (torch.tensor([column]) for column in zip(*tokens, strict=True))
    means = means_of(fixed_point_sums(log_probs, advantages, torch.ones(1, len(tokens))))
    for mean, column in ((means.log_prob, log_probs), (means.advantage, advantages)):
        assert mean.item() == pytest.approx(math.fsum(column[0].tolist()) / len(tokens), rel=0, abs=6e-8)


def test_means_of_no_token_are_zero():
    nothing = fixed_point_sums(torch.full((2, 3), math.nan), torch.full((2, 3), math.inf), torch.zeros(2, 3))
    assert nothing.tolist() == [0, 0, 0]
    means = means_of(nothing)
    assert (means.log_prob.item(), means.advantage.item()) == (0.0, 0.0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_value_that_is_not_finite_counts_as_zero(value):
    # (-2 - 4 + 0) / 3 = -2 and (1 + 2 + 0) / 3 = 1
    sums = fixed_point_sums(torch.tensor([[-2.0, -4.0, value]]), torch.tensor([[1.0, 2.0, -value]]), torch.ones(1, 3))
    means = means_of(sums)
    assert (means.log_prob.item(), means.advantage.item()) == (-2.0, 1.0)
