"""Intervals of a score and of the difference of two runs, from resampled problems."""

import math
import tracemalloc
from collections import Counter
from functools import partial
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_cov.evaluation.scores import (
    avg_at_k,
    bootstrap_interval,
    bootstrap_means,
    paired_difference,
    pass_at_k,
    problem_scores,
)
from openrlhf_cov.utils.estimates import interval_of

# 2 problems, 4 samples each: 1 and 3 of 4 correct
CORRECT = np.array([[True, False, False, False], [True, True, False, True]])


# --- the bootstrap


@pytest.mark.parametrize(
    ("counts", "statistic"),
    [((0, 1, 4), avg_at_k), ((0, 4, 4), avg_at_k), ((0, 1, 4), partial(pass_at_k, k=2)), ((2, 2, 2), avg_at_k)],
)
def test_the_bootstrap_follows_the_enumeration_of_all_resamples(solved, counts, statistic):
    correct = solved(*counts, samples=4)
    exact = Counter(round(statistic(correct[list(drawn)]), 9) for drawn in product(range(3), repeat=3))
    resamples = 100_000
    means = bootstrap_means(problem_scores(correct, statistic), resamples=resamples, seed=0)
    observed = Counter(np.round(means, 9).tolist())
    assert observed.keys() == exact.keys()
    for value, ways in exact.items():
        p = ways / 27
        # five standard deviations of a binomial share
        assert abs(observed[value] / resamples - p) <= 5 * math.sqrt(p * (1 - p) / resamples), value


def test_the_interval_is_that_of_the_enumeration(solved):
    # Greedy, 0 of 1, 1 of 1, 1 of 1. Number of right ones in 3 draws is Binomial(3, 2/3): P(0..3) = 1, 6, 12, 8 of 27.
    # Level 0.8: 10 % lies in (1/27, 7/27] -> 1/3, 90 % above 19/27 -> 1; level 0.5: 25 % in (1/27, 7/27], 75 % -> 1;
    # level 0.2: 40 % and 60 % in (7/27, 19/27] -> 2/3; level 0.95: 2.5 % < 1/27 -> 0.
    correct = solved(0, 1, 1, samples=1)
    means = bootstrap_means(problem_scores(correct, avg_at_k), resamples=20_000, seed=0)
    for level, low, high in [(0.8, 1 / 3, 1), (0.5, 1 / 3, 1), (0.2, 2 / 3, 2 / 3), (0.95, 0, 1)]:
        interval = interval_of(avg_at_k(correct), means, level)
        assert (interval.low, interval.high) == (pytest.approx(low), pytest.approx(high))
        assert (interval.estimate, interval.level) == (2 / 3, level)


@pytest.mark.slow
def test_the_interval_covers_the_truth():
    # 60 problems with 8 samples, solved with probability p uniform in [0, 1], so the truth is 1/2. Of 300 benchmarks
    # 95 % are covered, give or take sqrt(0.95 * 0.05 / 300) = 1.3 %; percentiles of 60 problems lose another 1 %.
    # Variance of the score: (Var[p] + E[p (1 - p)] / 8) / 60 = (1/12 + 1/48) / 60 = 1/576. A bootstrap of the 480
    # samples would take it for 1/4 / 480 = 1/1920, be sqrt(0.3) = 0.55 times as wide and cover 72 %.
    rng = np.random.default_rng(1)
    covered = 0
    for seed in range(300):
        correct = rng.random((60, 8)) < rng.random((60, 1))
        interval = bootstrap_interval(correct, avg_at_k, resamples=500, seed=seed)
        covered += interval.low <= 0.5 <= interval.high
    assert 0.90 <= covered / 300 <= 0.98


@pytest.mark.slow
def test_chunks_keep_memory_small_and_results_the_same(monkeypatch):
    scores = np.random.default_rng(4).random(500)  # all distinct: 10,000 x 500 counts are 40 MB in one piece
    tracemalloc.start()
    means = bootstrap_means(scores, resamples=10_000, seed=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * 2**20
    monkeypatch.setattr("openrlhf_cov.evaluation.scores.CHUNK_CELLS", 1)
    one_by_one = bootstrap_means(scores, resamples=10_000, seed=0)
    np.testing.assert_allclose(one_by_one, means, rtol=1e-13)  # matrix products of other sizes round differently


def test_only_means_over_problems_are_resampled():
    with pytest.raises(ValueError, match="mean over problems"):
        bootstrap_interval(CORRECT, lambda correct: float(correct.sum()))


# --- the paired difference


def test_the_p_value_is_that_of_the_enumeration(solved):
    # d_i = (1, 1, 0, 0), d = 1/2; the ones in 4 draws are Binomial(4, 1/2), and |d* - 1/2| >= 1/2 for 0 or 4 of them:
    # p = 2/16. Two problems differ, so p is at least 2^(1-2) = 1/2.
    a, b = solved(1, 1, 0, 1, samples=1), solved(0, 0, 0, 1, samples=1)
    assert paired_difference(a, b, avg_at_k).p_value == 0.5
    # d_i = (1/4 six times, -1/4 twice), d = 1/8; with X ups of 8 draws d* = (2X - 8)/32, X ~ Binomial(8, 3/4), and
    # |d* - d| >= d for X <= 4 or X = 8: (1 + 24 + 252 + 1512 + 5670 + 6561) / 4^8 = 14020 / 65536 = 0.21393
    a, b = solved(*[3] * 6, *[2] * 2, samples=4), solved(*[2] * 6, *[3] * 2, samples=4)
    result = paired_difference(a, b, avg_at_k, resamples=100_000)
    assert result.difference.estimate == 0.125
    assert result.p_value == pytest.approx(0.21393, abs=0.0065)  # five standard deviations: 5 sqrt(p (1 - p) / 1e5)


def test_ties_count_although_thirds_round(solved):
    # d_i = (1/3 six times, -1/3 twice), d = 1/6: 0.21393 as for the quarters above, of which the ties X = 4 and X = 8
    # are (5670 + 6561) / 65536 = 0.18663
    a, b = solved(*[2] * 6, *[1] * 2, samples=3), solved(*[1] * 6, *[2] * 2, samples=3)
    assert paired_difference(a, b, avg_at_k, resamples=100_000).p_value == pytest.approx(0.21393, abs=0.0065)


def test_the_p_value_is_never_zero():
    # 100 problems, all of them better: no resample of the translated differences, which are all 0, reaches 1
    result = paired_difference(np.ones((100, 2), bool), np.zeros((100, 2), bool), avg_at_k, resamples=999)
    assert (result.difference.low, result.difference.high, result.p_value) == (1.0, 1.0, 1 / 1000)


@pytest.mark.parametrize(("problems", "p_value"), [(1, 1.0), (2, 0.5), (3, 0.25), (6, 1 / 32)])
def test_a_few_problems_prove_little(problems, p_value):
    result = paired_difference(np.ones((problems, 4), bool), np.zeros((problems, 4), bool), avg_at_k)
    assert (result.difference.estimate, result.p_value) == (1.0, p_value)


def test_pairing_cancels_how_hard_the_problems_are(solved):
    # Half of the 40 problems are out of reach; b has 1 of 8 less in each of the others: every d_i is 0 or 1/8, so the
    # interval of the difference is 1.96 * (1/16) / sqrt(40) = 0.019 to either side, that of run a eight times as wide
    a, b = solved(*[8, 0] * 20, samples=8), solved(*[7, 0] * 20, samples=8)
    result = paired_difference(a, b, avg_at_k)
    assert result.difference.estimate == 1 / 16
    assert result.difference.low == pytest.approx(1 / 16 - 0.019, abs=0.003)  # steps of 1/320
    assert result.difference.high == pytest.approx(1 / 16 + 0.019, abs=0.003)
    assert result.p_value < 1e-3
    assert bootstrap_interval(a, avg_at_k).low < avg_at_k(b) - 0.05


@given(data=st.data())
def test_swapping_the_runs_mirrors_the_difference(solved, solved_tables, data):
    a = data.draw(solved_tables)
    counts = st.lists(st.integers(0, 5), min_size=len(a), max_size=len(a))
    b = solved(*data.draw(counts), samples=5)  # another number of samples
    ab, ba = (paired_difference(x, y, avg_at_k, resamples=2000) for x, y in ((a, b), (b, a)))
    assert ab.difference.estimate == -ba.difference.estimate
    assert ab.difference.estimate == avg_at_k(a) - avg_at_k(b)
    assert 1 / 2001 <= ab.p_value <= 1.0
    # the same distribution, other draws: five standard deviations of the difference of two shares at most
    assert ab.p_value == pytest.approx(ba.p_value, abs=5 * math.sqrt(2 * 0.25 / 2000))
