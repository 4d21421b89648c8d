import math
from statistics import NormalDist

import numpy as np
import pytest

from openrlhf_cov.experiments.study.critical import fit_critical_value, profile_likelihood

# Three of four runs learn at 0.1, one of four at 0.4.
VALUES = [0.1] * 4 + [0.4] * 4
LEARNED = [True, True, True, False, True, False, False, False]
# Its best log-likelihood: the fit goes through both shares.
BEST = 2 * (3 * math.log(0.75) + math.log(0.25))


@pytest.mark.slow
def test_two_symmetric_shares_by_hand():
    fit = fit_critical_value(VALUES, LEARNED)
    # By symmetry the critical value is the geometric middle, sqrt(0.1 * 0.4) = 0.2. From there to 0.1 it is ln 2, and
    # the logit of 3/4 is ln 3: the slope is ln 3 / ln 2 = 1.585.
    assert fit.value.estimate == pytest.approx(0.2, rel=2e-3)
    assert fit.slope == pytest.approx(math.log(3) / math.log(2), rel=1e-2)


def test_the_profile_at_one_of_the_values_by_hand():
    # With the critical value at 0.4 the runs there have the probability 1/2 whatever the slope, and the slope is free
    # to fit the 3/4 at 0.1: ln 3 / ln 4.
    slopes, fits = profile_likelihood(np.log([0.4]), np.log(VALUES), LEARNED)
    assert slopes[0] == pytest.approx(math.log(3) / math.log(4), abs=1e-6)
    assert fits[0] == pytest.approx(3 * math.log(0.75) + math.log(0.25) + 4 * math.log(0.5))


@pytest.mark.slow
def test_the_interval_ends_where_the_profile_says():
    # Twice the log-likelihood ratio at 0.4 is that of the test above. At the level with this chi-squared quantile
    # the interval ends at 0.4, and by symmetry begins at 0.1.
    ratio = 2 * (BEST - (3 * math.log(0.75) + math.log(0.25) + 4 * math.log(0.5)))
    level = 2 * NormalDist().cdf(math.sqrt(ratio)) - 1
    interval = fit_critical_value(VALUES, LEARNED, level).value
    assert interval.low == pytest.approx(0.1, rel=5e-3)
    assert interval.high == pytest.approx(0.4, rel=5e-3)
    # Four times as many runs make the ratio four times as large, so that 0.4 is outside of the 95 % interval.
    assert 4 * ratio > 3.841 > ratio
    assert (
        fit_critical_value(VALUES * 4, LEARNED * 4).value.high < 0.4 < fit_critical_value(VALUES, LEARNED).value.high
    )


@pytest.mark.slow
def test_perfect_separation_has_an_estimate_and_an_interval():
    # All learn up to 0.1, none from 0.2 on: every steep curve between them is equally good.
    fit = fit_critical_value([0.05, 0.1, 0.2, 0.4] * 3, [True, True, False, False] * 3)
    assert fit.value.estimate == pytest.approx(math.sqrt(0.1 * 0.2), rel=5e-3)
    # At a critical value of 0.1 the three runs there have 1/2 each. Twice their log-likelihood is 2 * 3 ln 2 = 4.16,
    # above the quantile 3.84, so the interval begins just above 0.1. With two runs each, 2.77, it begins below.
    assert fit.value.low == pytest.approx(0.1, rel=5e-3)
    assert fit.value.high == pytest.approx(0.2, rel=5e-3)
    fewer = fit_critical_value([0.05, 0.1, 0.2, 0.4] * 2, [True, True, False, False] * 2).value
    assert 0.05 < fewer.low < 0.095
    assert 0.21 < fewer.high < 0.4


@pytest.mark.slow
@pytest.mark.parametrize(("outcome", "estimate"), [(True, math.inf), (False, 0.0)])
def test_runs_that_all_end_alike_bound_one_side(outcome, estimate):
    interval = fit_critical_value([0.1, 0.2, 0.4] * 4, [outcome] * 12).value
    assert interval.estimate == estimate
    if outcome:
        assert 0.1 < interval.low < math.inf
        assert interval.high == math.inf
    else:
        assert interval.low == 0.0
        assert 0.0 < interval.high < 0.4


def test_the_unit_of_the_value_does_not_matter():
    first = fit_critical_value([0.1, 0.2, 0.3, 0.3], [True, False, True, False]).value
    second = fit_critical_value([1, 2, 3, 3], [True, False, True, False]).value
    assert second.estimate == pytest.approx(10 * first.estimate)
    assert second.high == pytest.approx(10 * first.high)


@pytest.mark.parametrize(("values", "learned"), [([], []), ([0.1], []), ([0.0], [True])])
def test_what_cannot_be_fitted_is_refused(values, learned):
    with pytest.raises(ValueError, match=r"a fit needs runs|values must be above 0"):
        fit_critical_value(values, learned)
