"""Scores of a benchmark from 0/1 correctness, and how far they can be trusted (pure).

``correct`` is a boolean (N, K) array: N problems, K samples per problem. Every score here is a mean over problems.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openrlhf_cov.utils.estimates import SEED, Interval, interval_of

# A score of an (N, K) array that is the mean of its values on the N problems alone: ``avg_at_k``, ``pass_at_k``.
Statistic = Callable[[NDArray[np.bool_]], float]

RESAMPLES = 10_000
# Counts drawn at once by the bootstrap: 2 MiB of int64. Has no influence on the result.
CHUNK_CELLS = 2**18
# Scores closer than this are equal: far above the rounding of float64, far below one sample among all.
ROUNDING = 1e-9


@dataclass(frozen=True)
class PairedDifference:
    """Score of run a minus score of run b on the same problems; the p-value is for "there is no difference"."""

    difference: Interval
    p_value: float


def avg_at_k(correct: ArrayLike) -> float:
    """Return the share of correct samples: the paper's avg@32 for K = 32, plain accuracy for K = 1 (greedy).

    Args:
        correct: Correctness (N, K), boolean.
    """
    return float(_checked(correct).mean())


def pass_at_k(correct: ArrayLike, k: int) -> float:
    """Return the probability that at least one of ``k`` of the K samples, drawn without replacement, is correct.

    Mean over the problems of 1 - C(n - c, k) / C(n, k), with n = K samples of which c are correct: the unbiased
    estimator of Chen et al. 2021 (arXiv:2107.03374, eq. 1). Differs from the reference: integers up to one division
    at the end, thus exact to the last bit for every n, where the reference multiplies k rounded factors.

    Args:
        correct: Correctness (N, K), boolean.
        k: Number of samples, from 1 to K.

    Raises:
        ValueError: ``k`` is out of this range.
    """
    correct = _checked(correct)
    samples = correct.shape[1]
    if not 1 <= k <= samples:
        raise ValueError(f"pass@k needs k between 1 and the {samples} samples per problem, got {k}")
    counts, problems = np.unique(correct.sum(axis=1), return_counts=True)
    subsets = math.comb(samples, k)
    passed = [(subsets - math.comb(samples - c, k)) / subsets for c in counts.tolist()]
    return math.fsum(np.multiply(passed, problems)) / len(correct)


def pass_at_powers(correct: ArrayLike) -> dict[int, float]:
    """Return pass@k for k = 1, 2, 4, ... up to K, in this order, of correctness (N, K)."""
    correct = _checked(correct)
    return {k: pass_at_k(correct, k) for k in (2**i for i in range(correct.shape[1].bit_length()))}


def maj_at_k(answers: Sequence[Sequence[str | None]], correct: ArrayLike, equal: Callable[[str, str], bool]) -> float:
    """Return the score of the majority vote of all K samples (self-consistency, Wang et al. 2022, arXiv:2203.11171).

    It is the mean over the problems of what the vote is expected to score in [0, 1]; see ``vote`` for groups, ties and
    missing answers.

    Args:
        answers: N sequences of K extracted answers, None where there is none.
        correct: Correctness (N, K), boolean.
        equal: ``equal(first, answer)`` is True if two different answers are the same.

    Raises:
        ValueError: The shapes differ, or a sample without an answer is correct.
    """
    correct = _checked(correct)
    if [len(row) for row in answers] != [correct.shape[1]] * len(correct):
        raise ValueError(f"maj@k needs the answers of all {correct.shape} samples (problems, samples per problem)")
    return math.fsum(vote(*rows, equal) for rows in zip(answers, correct, strict=True)) / len(correct)


def vote(answers: Sequence[str | None], correct: Sequence[bool], equal: Callable[[str, str], bool]) -> float:
    """Return the expected correctness of the majority answer of one problem, in [0, 1].

    An answer joins the first group whose first member it equals, else it opens a group; ``equal`` need not be
    transitive, so other members may differ from it. Same strings are equal without a question.
    None never votes: a problem without any answer scores 0, and two answers outvote any number of None.
    Groups of the same size tie; the score is the mean over the tied groups of the share of their members that are
    correct, i.e. its expectation if one of them and one member is drawn. Taking the group that was seen first would
    make the score depend on the order of samples that are exchangeable, and taking the best of the tied would flatter.

    Args:
        answers: K extracted answers, None where there is none.
        correct: Correctness of the K samples.
        equal: ``equal(first, answer)`` is True if two different answers are the same.

    Raises:
        ValueError: A sample without an answer is correct.
    """
    groups: dict[str, list[bool]] = {}
    first_of: dict[str, str] = {}
    for answer, right in zip(answers, correct, strict=True):
        if answer is None:
            if right:
                raise ValueError("a sample without an answer is marked correct")
            continue
        if answer not in first_of:
            first_of[answer] = next((first for first in groups if equal(first, answer)), answer)
        groups.setdefault(first_of[answer], []).append(bool(right))
    most = max(map(len, groups.values()), default=0)
    winners = [sum(group) / most for group in groups.values() if len(group) == most]
    return math.fsum(winners) / len(winners) if winners else 0.0


def bootstrap_interval(
    correct: ArrayLike,
    statistic: Statistic,
    *,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Interval:
    """Return the percentile interval of a score under resampling of the problems.

    The interval answers "what if the benchmark had other problems of this kind?"; more samples per problem do not
    narrow it beyond that (Efron & Tibshirani 1993, ch. 13). Where all problems score the same (one problem, all
    correct) its width is 0, which says nothing; below some 30 problems it is too narrow.

    Args:
        correct: Correctness (N, K) of K samples of N problems; the samples of a problem stay together.
        statistic: Score of correctness (N, K).
        resamples: Number of resamples.
        seed: Seed of the resampling.
    """
    scores = problem_scores(correct, statistic)
    means = bootstrap_means(scores, resamples=resamples, seed=seed)
    return interval_of(statistic(_checked(correct)), means)


def paired_difference(
    a: ArrayLike,
    b: ArrayLike,
    statistic: Statistic,
    *,
    resamples: int = RESAMPLES,
) -> PairedDifference:
    """Return the score of one run minus that of another on the same problems, with interval and p-value.

    The N differences d_i are resampled, so what makes a problem hard for both runs cancels. The p-value is two-sided
    and from the translated differences, whose mean is 0 (Efron & Tibshirani 1993, ch. 16):

        p = (1 + #{|d* - d| >= |d|}) / (1 + resamples),    d = mean(d_i), d* = its resampled values

    It is at least 2^(1 - m) for m problems with d_i != 0, the least p of an exact sign-flip test: a bootstrap of a few
    problems that all agree has no spread and would call one problem proof.

    Args:
        a: Correctness (N, K_a) of the samples of one run.
        b: Correctness (N, K_b) of the other run; row i of both is the same problem, and K may differ.
        statistic: Score of correctness (N, K).
        resamples: Number of resamples.

    Raises:
        ValueError: The runs have different numbers of problems.
    """
    scores_a = problem_scores(a, statistic)
    scores_b = problem_scores(b, statistic)
    if len(scores_a) != len(scores_b):
        raise ValueError(f"a paired difference needs the same problems, got {len(scores_a)} and {len(scores_b)}")
    differences = scores_a - scores_b
    difference = statistic(_checked(a)) - statistic(_checked(b))
    means = bootstrap_means(differences, resamples=resamples, seed=SEED)
    extreme = np.abs(means - difference) >= abs(difference) - ROUNDING
    p_value = (1 + int(extreme.sum())) / (1 + resamples)
    differing = int((np.abs(differences) > ROUNDING).sum())
    return PairedDifference(interval_of(difference, means), max(p_value, min(1.0, 2.0 ** (1 - differing))))


def problem_scores(correct: ArrayLike, statistic: Statistic) -> NDArray[np.float64]:
    """Return the score of each problem alone, (N,).

    Args:
        correct: Correctness (N, K), boolean.
        statistic: Score of correctness (N, K).

    Raises:
        ValueError: The score of all problems is not the mean of these.
    """
    correct = _checked(correct)
    scores = np.array([statistic(correct[i : i + 1]) for i in range(len(correct))], dtype=np.float64)
    if not math.isclose(scores.mean(), statistic(correct), rel_tol=0, abs_tol=ROUNDING):
        raise ValueError("the bootstrap takes statistics that are a mean over problems")
    return scores


def bootstrap_means(scores: ArrayLike, *, resamples: int, seed: int) -> NDArray[np.float64]:
    """Return the means (resamples,) of resampled scores; the order of the scores does not matter.

    The mean depends only on how often each distinct score is drawn, which is multinomial: K + 1 numbers per resample
    for avg@k instead of N.

    Args:
        scores: Scores (N,) of the problems, or their differences. Each resample draws N of them with replacement.
        resamples: Number of resamples, at least 1.
        seed: Seed of the resampling.

    Raises:
        ValueError: There is not even one resample.
    """
    if resamples < 1:
        raise ValueError(f"the bootstrap needs at least one resample, got {resamples}")
    values, counts = np.unique(np.asarray(scores, dtype=np.float64), return_counts=True)
    problems = counts.sum()
    rng = np.random.default_rng(seed)
    chunk = max(1, CHUNK_CELLS // len(values))
    sizes = (min(chunk, resamples - start) for start in range(0, resamples, chunk))
    return np.concatenate([rng.multinomial(problems, counts / problems, size) @ values for size in sizes]) / problems


def _checked(correct: ArrayLike) -> NDArray[np.bool_]:
    correct = np.asarray(correct)
    if correct.ndim != 2 or correct.size == 0 or correct.dtype != np.bool_:
        raise ValueError(
            "correctness is a boolean array of (problems, samples per problem) with at least one of each, "
            f"got {correct.dtype} of shape {correct.shape}"
        )
    return correct
