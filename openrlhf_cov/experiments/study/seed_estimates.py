"""Means over seeds and over questions, with intervals (pure)."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openrlhf_cov.analysis.regression import student_quantile
from openrlhf_cov.evaluation.scores import RESAMPLES, bootstrap_means
from openrlhf_cov.utils.estimates import LEVEL, SEED, Interval, interval_of

FEWEST = 2
"""Seeds below which there is no interval."""


def mean_over_seeds(values: ArrayLike) -> Interval:
    """Mean of one number for each seed, with Student's interval; its ends are NaN for fewer than two.

    It is about other seeds of the same task and base policy. Numbers that are all alike, 1.00 of 1.00 say, give an
    interval without width, which is too narrow.
    """
    values = np.asarray(values, dtype=np.float64)
    if not len(values):
        return Interval(math.nan, math.nan, math.nan, LEVEL)
    mean = float(values.mean())
    if len(values) < FEWEST:
        return Interval(mean, math.nan, math.nan, LEVEL)
    half = student_quantile(len(values) - 1, LEVEL) * float(values.std(ddof=1)) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half, LEVEL)


def mean_over_questions(scores: Sequence[NDArray[np.float64]]) -> Interval:
    """Mean of scores (N,) of each seed over questions, with the percentile interval of resampled questions.

    It is about other questions for the same runs; the seeds of a question stay together.
    """
    if not len(scores):
        return Interval(math.nan, math.nan, math.nan, LEVEL)
    by_question = np.mean(scores, axis=0)
    means = bootstrap_means(by_question, resamples=RESAMPLES, seed=SEED)
    return interval_of(by_question.mean(), means)


def difference_of_means(first: ArrayLike, second: ArrayLike) -> Interval:
    """Mean of ``first`` minus mean of ``second``, of runs that are no pairs: Welch's interval (1947)."""
    groups = [np.asarray(each, dtype=np.float64) for each in (first, second)]
    if min(map(len, groups)) < FEWEST:
        return Interval(math.nan, math.nan, math.nan, LEVEL)
    errors = [group.var(ddof=1) / len(group) for group in groups]
    difference = float(groups[0].mean() - groups[1].mean())
    if not sum(errors):
        return Interval(difference, difference, difference, LEVEL)
    freedom = sum(errors) ** 2 / sum(e**2 / (len(g) - 1) for e, g in zip(errors, groups, strict=True))
    half = student_quantile(freedom, LEVEL) * math.sqrt(sum(errors))
    return Interval(difference, difference - half, difference + half, LEVEL)
