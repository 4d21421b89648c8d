"""The fit of the law, and what its intervals cover."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_cov.analysis.law import METHODS, LawPoints, fit_law
from openrlhf_cov.analysis.regression import MAX_POINTS

# entropies whose exponentials are 1, 2, 3, 4, 5, 6
LOGS = np.log(np.arange(1.0, 7.0))
EXACT = LawPoints.of(np.arange(6), LOGS[::-1], 0.9 - 0.1 * np.arange(1.0, 7.0)[::-1])


# --- by hand


@pytest.mark.parametrize("method", METHODS)
def test_exact_points(method):
    fit = fit_law(EXACT, method=method)
    for interval, value in ((fit.a, 0.1), (fit.b, 0.9), (fit.ceiling, 0.8)):
        assert (interval.estimate, interval.low, interval.high) == pytest.approx((value,) * 3, abs=1e-12)
    assert (fit.r2, fit.rmse) == pytest.approx((1, 0), abs=1e-12)
    assert (fit.points, fit.method) == (6, method)
    np.testing.assert_allclose(fit.reward_at(np.log([1.0, 10.0])), [0.8, -0.1], rtol=0, atol=1e-12)
    np.testing.assert_allclose(fit.band(np.log([1.0, 10.0])), [[0.8, -0.1]] * 2, rtol=0, atol=1e-12)


def test_fit_by_hand():
    # x = exp(H) = 1 ... 6, R = 6, 5, 3, 4, 2, 1: mean x 3.5, mean R 3.5, sum of squares of x 17.5,
    # of products -2.5*2.5*2 - 1.5*1.5*2 + 0.5*0.5 ... = (-2.5)(2.5) + (-1.5)(1.5) + (-0.5)(-0.5) + 0.5*0.5 + 1.5(-1.5)
    # + 2.5(-2.5) = -16.5, so the slope is -16.5 / 17.5 = -0.942857 = -a, b = 3.5 + 3.5 * 0.942857 = 6.8
    fit = fit_law(LawPoints.of(np.arange(6), LOGS, [6, 5, 3, 4, 2, 1]))
    assert (fit.a.estimate, fit.b.estimate) == pytest.approx((33 / 35, 6.8))
    assert fit.ceiling.estimate == pytest.approx(6.8 - 33 / 35)
    # R^2 = 16.5^2 / 17.5^2; residual sum of squares 17.5 (1 - R^2) over 6 points
    assert fit.r2 == pytest.approx((33 / 35) ** 2)
    assert fit.rmse == pytest.approx(math.sqrt(17.5 * (1 - (33 / 35) ** 2) / 6))


def test_slope_at_an_entropy():
    fit = fit_law(LawPoints.of(np.arange(6), LOGS, [6, 5, 3, 4, 2, 1]))
    slope = fit.slope_at(math.log(2))
    assert slope.estimate == pytest.approx(-2 * fit.a.estimate)
    assert (slope.low, slope.high) == pytest.approx((-2 * fit.a.high, -2 * fit.a.low))
    assert slope.low < slope.estimate < slope.high


def test_points_are_sorted_and_complete():
    points = LawPoints.of([3, 1, 2, 4, 5], [0.3, 0.1, np.nan, 0.4, 999], [1, np.inf, 2, 4, 5])
    assert (points.steps.tolist(), points.entropy.tolist(), points.reward.tolist()) == ([3, 4], [0.3, 0.4], [1, 4])
    assert len(LawPoints.of([], [], [])) == 0


@pytest.mark.parametrize(
    ("points", "why"),
    [(EXACT[:5], "at least 6"), (LawPoints.of(range(9), np.full(9, 0.5), np.arange(9.0)), "does not vary")],
)
def test_points_without_a_line_are_refused(points, why):
    with pytest.raises(ValueError, match=why):
        fit_law(points)


@given(scale=st.floats(0.01, 100), shift=st.floats(-10, 10), method=st.sampled_from(sorted(METHODS)))
def test_units_of_the_reward_do_not_matter(law_curve, scale, shift, method):
    points = law_curve(40, 0.4, 1)
    fit = fit_law(points, method=method, resamples=40)
    scaled = fit_law(replace(points, reward=scale * points.reward + shift), method=method, resamples=40)
    for name in ("estimate", "low", "high"):
        assert getattr(scaled.a, name) == pytest.approx(scale * getattr(fit.a, name), rel=1e-5)
        assert getattr(scaled.ceiling, name) == pytest.approx(
            scale * getattr(fit.ceiling, name) + shift, rel=1e-5, abs=1e-6 * scale
        )
    assert scaled.r2 == pytest.approx(fit.r2, rel=1e-5)


# --- robust


def test_huber_resists_outlying_rewards(law_curve):
    points = law_curve(100, 0.0, 3, sd=0.01)
    reward = points.reward.copy()
    reward[::10] += 0.5  # a tenth of the evaluations broke
    robust, plain = (fit_law(replace(points, reward=reward), method=m) for m in ("huber", "least_squares"))
    # ten outliers of 50 standard deviations act as ten of 1.345: 0.1 * 1.345 * 0.01 on the line at most, about
    assert abs(robust.ceiling.estimate - 0.5) < 0.01
    assert abs(plain.ceiling.estimate - 0.5) > 0.03
    assert robust.ceiling.low < 0.5 < robust.ceiling.high
    assert robust.ceiling.high - robust.ceiling.low < (plain.ceiling.high - plain.ceiling.low) / 3


@pytest.mark.slow
def test_huber_intervals_have_its_efficiency(law_curve):
    # under normal noise its variance is that of least squares / 0.95; not so without the share of residuals cut
    ratios = []
    for seed in range(30):
        robust, plain = (fit_law(law_curve(200, 0.0, seed), method=m, resamples=500) for m in sorted(METHODS))
        ratios.append((robust.a.high - robust.a.low) / (plain.a.high - plain.a.low))
    assert np.mean(ratios) == pytest.approx(1 / math.sqrt(0.95), abs=0.04)


def test_huber_satisfies_its_equations(law_curve):
    points = law_curve(60, 0.0, 5)
    points.reward[7] += 1.0
    fit = fit_law(points, method="huber")
    residuals = points.reward - fit.reward_at(points.entropy)
    limit = 1.345 * np.median(abs(residuals)) / 0.6745
    cut = np.clip(residuals, -limit, limit)
    np.testing.assert_allclose([cut.sum(), cut @ np.exp(points.entropy)], 0, atol=1e-9)


# --- intervals


def coverage(law_curve, simulations, points, autocorrelation, method="least_squares"):
    """Shares of the simulations whose intervals hold a = 0.3, b = 0.8 and the ceiling 0.5."""
    hits = np.zeros(3)
    for seed in range(simulations):
        fit = fit_law(law_curve(points, autocorrelation, [23, seed]), method=method, resamples=1000)
        ends = [(0.3, fit.a), (0.8, fit.b), (0.5, fit.ceiling)]
        hits += [interval.low <= true <= interval.high for true, interval in ends]
    return hits / simulations


@pytest.mark.slow
def test_intervals_cover_in_95_percent_of_500_simulations(law_curve):
    # 0.95 in 500 has a standard error of 0.01; intervals that ignore the autocorrelation cover in 0.75
    found = coverage(law_curve, 500, 60, 0.5)
    assert ((found >= 0.93) & (found <= 0.97)).all(), found


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.parametrize(("autocorrelation", "most"), [(0.0, 0.97), (0.5, 0.97), (0.8, 0.98)])
def test_intervals_of_200_points_cover_in_95_percent_of_2000_simulations(law_curve, autocorrelation, most):
    # standard error 0.005. At 0.8 they cover a little too often, 0.965: means of points correlate a little more than
    # AR(1) takes them to
    found = coverage(law_curve, 2000, 200, autocorrelation)
    assert ((found >= 0.93) & (found <= most)).all(), found


@pytest.mark.e2e
@pytest.mark.long
def test_intervals_cover_a_policy_that_wanders_and_is_measured_with_noise(law_curve, noise):
    hits = np.zeros(3)
    for seed in range(500):
        white = noise(200, 0.0, np.random.default_rng([29, seed]))
        points = law_curve(200, 0.8, [23, seed])
        fit = fit_law(replace(points, reward=points.reward + 0.03 * white))
        hits += [e.low <= true <= e.high for true, e in ((0.3, fit.a), (0.8, fit.b), (0.5, fit.ceiling))]
    assert ((hits / 500 >= 0.91) & (hits / 500 <= 0.97)).all(), hits / 500  # 0.93; 0.83 without means of points


@pytest.mark.e2e
@pytest.mark.long
def test_huber_intervals_cover_in_95_percent_of_500_simulations(law_curve):
    found = coverage(law_curve, 500, 200, 0.5, method="huber")
    assert ((found >= 0.93) & (found <= 0.97)).all(), found


def test_bands(law_curve):
    points = law_curve(200, 0.5, 7)
    fit = fit_law(points)
    low, high = fit.band([0.0])
    assert (low[0], high[0]) == pytest.approx((fit.ceiling.low, fit.ceiling.high))
    low, high = fit.band(points.entropy)  # 200 places: from a grid
    middle = slice(95, 105)
    exact = fit.band(points.entropy[middle])  # 10 places: each by itself
    np.testing.assert_allclose([low[middle], high[middle]], exact, rtol=0, atol=2e-4)
    lowest, highest = fit.band(points.entropy, further_points=True)
    assert ((lowest <= points.reward) & (points.reward <= highest)).mean() > 0.9
    assert ((lowest < low) & (high < highest)).all()
    assert fit.band([])[0].size == 0


def test_many_points_are_thinned_for_the_intervals_alone(law_curve):
    points = law_curve(10 * MAX_POINTS, 0.9, 8)
    fit = fit_law(points)
    slope, intercept = np.polyfit(np.exp(points.entropy), points.reward, 1)
    assert (-fit.a.estimate, fit.b.estimate) == pytest.approx((slope, intercept), rel=1e-9)
    # standard error of the slope with noise of long-run sd 0.02 sqrt(19) over the spread of exp(H), if that moved as
    # slowly as all that; phi^10 = 0.35 between means is uncertain
    error = 0.02 * math.sqrt(19 / len(points)) / np.exp(points.entropy).std()
    assert fit.a.high - fit.a.low == pytest.approx(2 * 1.96 * error, rel=0.5)


def test_intervals_of_many_points_are_around_their_fit():
    # the entropy swings within the means of 8 consecutive points, which alone have another slope
    rng, points = np.random.default_rng(7), 8 * MAX_POINTS
    x = 1.5 + 0.3 * np.tile([1, -1], points // 2) + 0.02 * rng.standard_normal(points)
    reward = 0.8 - 0.3 * x + 0.05 * rng.standard_normal(points)
    fit = fit_law(LawPoints.of(range(points), np.log(x), reward))
    slope, _ = np.polyfit(x.reshape(-1, 8).mean(axis=1), reward.reshape(-1, 8).mean(axis=1), 1)
    assert abs(-slope - 0.3) > 0.05
    assert fit.a.estimate == pytest.approx(0.3, abs=0.02)
    assert np.median(-fit.line_draws[:, 1]) == pytest.approx(fit.a.estimate, abs=0.05 * (fit.a.high - fit.a.low))


@pytest.mark.parametrize("points", [60, 64, 65, 128, 1000])
def test_points_with_independent_noise_are_worth_nearly_all_of_them(law_curve, points):
    worth = [fit_law(law_curve(points, 0.0, seed), resamples=10).independent_points for seed in range(30)]
    assert max(worth) <= points
    # The autocorrelation is estimated from at most 64 means, which cannot be worth more than all points.
    assert np.median(worth) > 0.8 * points


@pytest.mark.parametrize("points", [64, 640])
def test_autocorrelated_points_are_worth_fewer(law_curve, points):
    # n (1 - phi) / (1 + phi) = n / 3 for long series.
    worth = [fit_law(law_curve(points, 0.5, seed), resamples=10).independent_points for seed in range(30)]
    assert np.median(worth) == pytest.approx(points / 3, rel=0.25)


def test_exact_points_are_worth_all_of_them():
    assert fit_law(EXACT).independent_points == 6
