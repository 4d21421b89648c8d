import math

import numpy as np
import pytest

from openrlhf_cov.analysis.across import LogLine, against_size, same_coefficients
from openrlhf_cov.analysis.law import LawPoints, fit_law


def fits(law_curve, seeds, points=100, autocorrelation=0.5, **how):
    return [fit_law(law_curve(points, autocorrelation, seed, **how), resamples=500) for seed in seeds]


# --- same coefficients


def test_runs_of_one_law(law_curve):
    found = same_coefficients(fits(law_curve, [1, 2, 3]))
    assert found.p_value > 0.05
    assert (found.a, found.b) == pytest.approx((0.3, 0.8), abs=0.03)
    assert [(d.first, d.second) for d in found.differences] == [(0, 1), (0, 2), (1, 2)]
    assert all(d.a.low < 0 < d.a.high for d in found.differences)


def test_runs_of_two_laws(law_curve):
    found = same_coefficients(fits(law_curve, [1]) + fits(law_curve, [2], a=0.4, b=0.95))
    assert found.p_value < 0.01
    [difference] = found.differences
    assert difference.a.low < -0.1 < difference.a.high < 0
    assert difference.b.low < -0.15 < difference.b.high < 0
    assert difference.ceiling.low < 0.5 - 0.55 < difference.ceiling.high


def test_common_line_is_weighted_by_precision(law_curve):
    sure, vague = fits(law_curve, [5], sd=0.001), fits(law_curve, [6], a=0.5, sd=0.1)
    found = same_coefficients(sure + vague)
    assert found.a == pytest.approx(sure[0].a.estimate, abs=1e-3)


@pytest.mark.slow
def test_false_alarms_between_runs_of_one_law(law_curve):
    # level 0.05 in 100 pairs: 0.05 has a standard error of 0.022; more than 13 have a probability of 0.0004
    alarms = [same_coefficients(fits(law_curve, [[s, 1], [s, 2]], points=60)).p_value < 0.05 for s in range(100)]
    assert sum(alarms) <= 13


def test_comparisons_that_cannot_be_made(law_curve):
    with pytest.raises(ValueError, match="at least two runs"):
        same_coefficients(fits(law_curve, [1]))
    exact = fit_law(LawPoints.of(range(6), np.log(np.arange(1.0, 7)), np.zeros(6)), resamples=50)
    with pytest.raises(ValueError, match="without noise"):
        same_coefficients([*fits(law_curve, [1]), exact])


# --- model size


def test_line_in_log_size_by_hand():
    # ln sizes 0, 1, 2; values 1, 4, 4: slope 3/2, intercept 3/2, residuals -1/2, 1, -1/2, sd sqrt(1.5 / 1)
    line = LogLine.through(np.exp([0.0, 1, 2]), [1.0, 4, 4])
    assert (line.intercept, line.slope, line.sd) == pytest.approx((1.5, 1.5, math.sqrt(1.5)))
    found = line.at(math.exp(3))
    # t(0.975, 1) = 12.7062; sqrt(1 + 1/3 + (3 - 1)^2 / 2) = sqrt(10/3)
    assert found.estimate == pytest.approx(6)
    assert found.high - 6 == pytest.approx(12.7062 * math.sqrt(1.5 * 10 / 3), rel=1e-5)
    assert found.low + found.high == pytest.approx(12)


def test_ceiling_has_the_difference_of_the_lines(law_curve):
    sizes = [0.5e9, 1.5e9, 3e9, 7e9]
    found = against_size(sizes, [f for i in range(4) for f in fits(law_curve, [i], a=0.1 + 0.05 * i, b=0.5 + 0.1 * i)])
    big = 32e9
    assert found.ceiling.at(big).estimate == pytest.approx(found.b.at(big).estimate - found.a.at(big).estimate)
    assert found.a.slope > 0


@pytest.mark.slow
def test_prediction_interval_covers_a_further_model():
    # five models around a line: exact t interval, 95 % in 2000 simulations, standard error 0.005
    rng, sizes = np.random.default_rng(0), np.array([0.5, 1.5, 3, 7, 14])
    hits = 0
    for values in 0.3 + 0.1 * np.log(sizes) + 0.02 * rng.standard_normal((2000, 5)):
        found = LogLine.through(sizes, values).at(32)
        hits += found.low <= 0.3 + 0.1 * math.log(32) + 0.02 * rng.standard_normal() <= found.high
    assert 0.93 < hits / 2000 < 0.97


@pytest.mark.parametrize("sizes", [[7, 7], [7], [0, 7], [-1, 7]])
def test_sizes_that_make_no_line(sizes):
    with pytest.raises(ValueError, match="two different positive sizes"):
        LogLine.through(sizes, np.zeros(len(sizes)))


def test_one_size_per_run(law_curve):
    with pytest.raises(ValueError, match="one size per run"):
        against_size([1e9, 7e9], fits(law_curve, [1]))
