"""A law fitted to the first steps of a run, and what it says about the others."""

import math

import numpy as np
import pytest

from openrlhf_cov.analysis.law import NARROW_BELOW, LawPoints, forecast


def test_forecast_of_exact_points(entropy):
    H = entropy(80)
    found = forecast(LawPoints.of(range(80), H, 0.7 - 0.2 * np.exp(H)), 0.15)
    assert found.fit.points == 12  # 0.15 * 80
    assert len(found.later) == 68
    assert (found.rmse, found.final_error) == pytest.approx((0, 0), abs=1e-9)
    np.testing.assert_allclose(found.predicted, found.later.reward, rtol=0, atol=1e-9)


def test_forecast_errors_by_hand():
    # the law of the first ten is exact; then the reward stays 0.1 and 0.3 above it
    x = np.array([10.0, 9, 8, 7, 6, 5, 4, 3, 2, 1, 1, 1])
    reward = np.array([-0.1, 0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1])
    found = forecast(LawPoints.of(range(12), np.log(x), reward), 10 / 12)
    assert found.rmse == pytest.approx(math.sqrt((0.1**2 + 0.3**2) / 2))
    assert found.final_error == pytest.approx(-0.3)
    assert found.in_band_frac == 0
    assert found.persistence_rmse == pytest.approx(math.sqrt((0.1**2 + 0.3**2) / 2))  # the last point fitted was 0.8


@pytest.mark.parametrize("share", [0.0, 1.0, 15])
def test_share_is_a_fraction(law_curve, share):
    with pytest.raises(ValueError, match="fraction in"):
        forecast(law_curve(6, 0.0, 0), share)


def test_too_small_a_share_is_refused(law_curve):
    # 15 % of 39 are 5 points; of 60, a run of 240 steps evaluated every 4, the 9 of the paper
    with pytest.raises(ValueError, match="a forecast needs at least 6 points with entropy and reward, got 5"):
        forecast(law_curve(39, 0.5, 0), 0.15)
    assert forecast(law_curve(60, 0.5, 0), 0.15).fit.points == 9


@pytest.mark.slow
def test_forecasts_are_calibrated(law_curve):
    # 36 of 240 points, as in the paper. Share of later points in their 95 % bands, over 80 runs: the bands of a run
    # share their error, so runs count, not points; standard deviation between runs 0.12 / sqrt(80) = 0.013
    found = [forecast(law_curve(240, 0.5, [31, seed], sd=0.01), 0.15, resamples=500) for seed in range(80)]
    assert 0.90 < np.mean([f.in_band_frac for f in found]) < 0.98
    # noise alone has an RMSE of 0.01
    assert 0.009 < np.median([f.rmse for f in found]) < 0.014
    assert np.median([f.persistence_rmse for f in found]) > 0.1


@pytest.mark.slow
def test_forecasts_of_short_runs_are_too_narrow_as_their_reader_is_told(law_curve):
    # 15 of 100 points: 0.90 of the later points were inside in 250 simulations, and of the ceilings 0.88 (standard
    # errors over 80 runs 0.025 and 0.036)
    found = [forecast(law_curve(100, 0.5, [41, seed], sd=0.01), 0.15, resamples=500) for seed in range(80)]
    assert {each.fit.points for each in found} == {15}
    assert 15 < NARROW_BELOW <= 0.15 * 240
    assert 0.82 < np.mean([each.in_band_frac for each in found]) < 0.97
    assert 0.77 < np.mean([each.fit.ceiling.low <= 0.5 <= each.fit.ceiling.high for each in found]) < 0.98
