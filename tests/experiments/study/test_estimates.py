import math

import numpy as np
import pytest

from openrlhf_cov.analysis.regression import student_quantile
from openrlhf_cov.experiments.study.seed_estimates import difference_of_means, mean_over_questions, mean_over_seeds


def test_a_mean_over_seeds_by_hand():
    # mean 0.8; deviations -0.1, 0, 0.1: s = 0.1, s / sqrt(3) = 0.057735; t(2) = 4.302653, half width 0.248414
    found = mean_over_seeds([0.7, 0.8, 0.9])
    assert (found.estimate, found.low, found.high) == pytest.approx((0.8, 0.551586, 1.048414), abs=1e-6)
    alone = mean_over_seeds([0.7])
    assert alone.estimate == 0.7
    assert math.isnan(alone.low)
    assert math.isnan(mean_over_seeds([]).estimate)
    assert mean_over_seeds([1.0, 1.0]).low == 1.0


def test_a_difference_of_groups_by_hand():
    # means 1 and 3; variances 1 and 4, n 3 each: error 1/3 + 4/3 = 5/3; nu = (5/3)^2 / ((1/9 + 16/9) / 2) = 2.941176
    found = difference_of_means([0, 1, 2], [1, 3, 5])
    half = student_quantile(2.941176470588235, 0.95) * math.sqrt(5 / 3)
    assert (found.estimate, found.low, found.high) == pytest.approx((-2, -2 - half, -2 + half), abs=1e-9)
    assert math.isnan(difference_of_means([1.0], [1.0, 2.0]).low)
    assert difference_of_means([1.0, 1.0], [0.0, 0.0]).low == 1.0


def test_intervals_hold_the_truth_as_often_as_they_say():
    rng = np.random.default_rng(0)
    hits = [
        abs(found.estimate - 0) <= found.high - found.estimate
        for found in map(mean_over_seeds, rng.normal(size=(2000, 8)))
    ]
    assert np.mean(hits) == pytest.approx(0.95, abs=0.015)  # three standard errors


def test_questions_are_resampled_and_seeds_are_not():
    # two seeds that agree on ten questions: nine right, one wrong; s of a mean of ten is sqrt(0.09 / 10) = 0.095
    right = np.array([1.0] * 9 + [0.0])
    found = mean_over_questions([right, right])
    assert found.estimate == pytest.approx(0.9)
    assert (found.low, found.high) == (0.7, 1.0)
    opposite = mean_over_questions([np.array([1.0, 0.0]), np.array([0.0, 1.0])])
    assert (opposite.low, opposite.high) == (0.5, 0.5)
    assert math.isnan(mean_over_questions([]).estimate)
