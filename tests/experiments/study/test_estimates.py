import math

import numpy as np
import pytest

from openrlhf_cov.analysis.regression import student_quantile
from openrlhf_cov.experiments.study.seed_estimates import (
    SHARE,
    detectable_size,
    difference_of_means,
    mean_difference,
    mean_over_questions,
    mean_over_seeds,
    paired_p_value,
    share_of_seeds,
    smallest_detectable_effect,
)


def test_a_mean_over_seeds_by_hand():
    # mean 0.8; deviations -0.1, 0, 0.1: s = 0.1, s / sqrt(3) = 0.057735; t(2) = 4.302653, half width 0.248414
    found = mean_over_seeds([0.7, 0.8, 0.9])
    assert (found.estimate, found.low, found.high) == pytest.approx((0.8, 0.551586, 1.048414), abs=1e-6)
    alone = mean_over_seeds([0.7])
    assert alone.estimate == 0.7
    assert math.isnan(alone.low)
    assert math.isnan(mean_over_seeds([]).estimate)
    assert mean_over_seeds([1.0, 1.0]).low == 1.0
    # t with 1 degree of freedom is 12.706, the standard error of 0.9 and 1.0 is 0.05: 0.95 - 0.635 = 0.315 to 1.585.
    cut = mean_over_seeds([0.9, 1.0], SHARE)
    assert cut.low == pytest.approx(0.315, abs=1e-3)
    assert cut.high == 1.0


def test_a_difference_of_groups_by_hand():
    # means 1 and 3; variances 1 and 4, n 3 each: error 1/3 + 4/3 = 5/3; nu = (5/3)^2 / ((1/9 + 16/9) / 2) = 2.941176
    found = difference_of_means([0, 1, 2], [1, 3, 5])
    half = student_quantile(2.941176470588235, 0.95) * math.sqrt(5 / 3)
    assert (found.estimate, found.low, found.high) == pytest.approx((-2, -2 - half, -2 + half), abs=1e-9)
    assert math.isnan(difference_of_means([1.0], [1.0, 2.0]).low)
    assert difference_of_means([1.0, 1.0], [0.0, 0.0]).estimate == 1.0


def test_equal_differences_have_neither_interval_nor_test():
    # The second list is 0.2 in all seeds, apart from rounding.
    for values in ([0.71875] * 3, [0.7 - 0.5, 0.8 - 0.6, 0.9 - 0.7]):
        found = mean_difference(values)
        assert found.estimate == pytest.approx(values[0])
        assert math.isnan(found.low)
        assert math.isnan(found.high)
        assert math.isnan(paired_p_value(values))
        assert math.isnan(smallest_detectable_effect(values))
    assert mean_difference([0.0, 0.1, 0.2]) == mean_over_seeds([0.0, 0.1, 0.2])
    assert math.isnan(difference_of_means([1.0, 1.0], [0.0, 0.0]).low)


def test_values_that_are_not_finite_have_no_difference():
    # pass@32 of a test with 8 samples; the quantile of an undefined freedom would never be found.
    assert math.isnan(difference_of_means([math.nan, math.nan], [0.1, 0.2]).estimate)


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


@pytest.mark.parametrize(
    ("successes", "low", "high"),
    [
        # No or all of 8: the other end has P = 0.025 for 8 alike, 1 - 0.025^(1/8) = 0.369417.
        (0, 0.0, 0.369417),
        (8, 0.630583, 1.0),
        # One of 8: (1 - p)^8 = 0.975 at the lower end; the table of Clopper and Pearson has 0.527 at the upper one.
        (1, 0.003160, 0.526510),
    ],
)
def test_a_share_of_seeds_by_hand(successes, low, high):
    found = share_of_seeds(successes, 8)
    assert (found.estimate, found.low, found.high) == pytest.approx((successes / 8, low, high), abs=1e-6)


def test_a_share_of_no_seed_and_of_too_many():
    assert math.isnan(share_of_seeds(0, 0).estimate)
    with pytest.raises(ValueError, match="successes must be from 0 to 8 seeds; got 9"):
        share_of_seeds(9, 8)


def test_a_paired_p_value_by_hand():
    # Mean 0.1, s = 0.1, error 0.1 / sqrt(3) = 0.057735: t = 1.732051. With two degrees of freedom the two-sided
    # p-value is 1 - t / sqrt(2 + t^2) = 1 - sqrt(3 / 5) = 0.225403.
    assert paired_p_value([0.0, 0.1, 0.2]) == pytest.approx(1 - math.sqrt(3 / 5), abs=1e-9)
    assert math.isnan(paired_p_value([0.5]))


@pytest.mark.parametrize("seeds", [2, 3, 9])
def test_one_test_finds_the_smallest_detectable_effect_in_80_percent(seeds):
    rng = np.random.default_rng(0)
    values = rng.normal(size=(100_000, seeds)) + detectable_size(seeds - 1) / math.sqrt(seeds)
    statistic = values.mean(axis=1) / (values.std(axis=1, ddof=1) / math.sqrt(seeds))
    found = np.mean(abs(statistic) > student_quantile(seeds - 1, 0.95))
    # Four standard errors are 0.005. The sum of two quantiles of Student's t finds 0.73 for two seeds, 0.77 for three.
    assert found == pytest.approx(0.8, abs=0.005)


def test_the_smallest_detectable_effect_by_hand():
    # s = 0.1, n = 3; with two degrees of freedom, a noncentral t of 5.6535 exceeds 4.302653 in 80 % of draws.
    assert smallest_detectable_effect([0.0, 0.1, 0.2]) == pytest.approx(5.6535 * 0.1 / math.sqrt(3), abs=1e-5)
    assert math.isnan(smallest_detectable_effect([0.1]))
