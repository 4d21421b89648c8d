"""Means over seeds and over questions, with intervals (pure)."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openrlhf_cov.analysis.regression import student_quantile
from openrlhf_cov.evaluation.scores import RESAMPLES, bootstrap_means
from openrlhf_cov.utils.estimates import LEVEL, SEED, Interval

FEWEST = 2
"""Seeds below which there is no interval."""


def mean_over_seeds(values: ArrayLike, level: float = LEVEL) -> Interval:
    """Mean of one number for each seed, with Student's interval; its ends are NaN for fewer than two.

    It is about other seeds of the same task and base policy. Numbers that are all alike, 1.00 of 1.00 say, give an
    interval without width, which is too narrow.
    """
    values = np.asarray(values, dtype=np.float64)
    if not len(values):
        return Interval(math.nan, math.nan, math.nan, level)
    mean = float(values.mean())
    if len(values) < FEWEST:
        return Interval(mean, math.nan, math.nan, level)
    half = student_quantile(len(values) - 1, level) * float(values.std(ddof=1)) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half, level)


def mean_over_questions(scores: Sequence[NDArray[np.float64]], level: float = LEVEL, seed: int = SEED) -> Interval:
    """Mean of scores (N,) of each seed over questions, with the percentile interval of resampled questions.

    It is about other questions for the same runs; the seeds of a question stay together.
    """
    if not len(scores):
        return Interval(math.nan, math.nan, math.nan, level)
    by_question = np.mean(scores, axis=0)
    means = bootstrap_means(by_question, resamples=RESAMPLES, seed=seed)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(by_question.mean()), float(low), float(high), level)


def difference_of_means(first: ArrayLike, second: ArrayLike, level: float = LEVEL) -> Interval:
    """Mean of ``first`` minus mean of ``second``, of runs that are no pairs: Welch's interval (1947)."""
    groups = [np.asarray(each, dtype=np.float64) for each in (first, second)]
    if min(map(len, groups)) < FEWEST:
        return Interval(math.nan, math.nan, math.nan, level)
    errors = [group.var(ddof=1) / len(group) for group in groups]
    difference = float(groups[0].mean() - groups[1].mean())
    if not sum(errors):
        return Interval(difference, difference, difference, level)
    freedom = sum(errors) ** 2 / sum(e**2 / (len(g) - 1) for e, g in zip(errors, groups, strict=True))
    half = student_quantile(freedom, level) * math.sqrt(sum(errors))
    return Interval(difference, difference - half, difference + half, level)
