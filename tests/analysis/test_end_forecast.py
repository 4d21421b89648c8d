"""Forecasts of the end of a run: curves whose answer is known."""

import math

import numpy as np
import pytest

from openrlhf_cov.analysis.end_forecast import Sigmoid, fit_sigmoid, forecast_end
from openrlhf_cov.analysis.law import LawPoints

STEPS = np.arange(1.0, 101.0)


def test_a_sigmoid_by_hand():
    curve = Sigmoid(start=0.2, end=0.8, middle=10.0, exponent=2.0)
    # 0.2 + 0.6 / (1 + (10 / C)^2): at the middle half of the way, at 20 four fifths of it, at 5 one fifth.
    assert curve.at(np.array([10.0, 20.0, 5.0])) == pytest.approx([0.5, 0.68, 0.32])


def test_a_sigmoid_without_noise_is_found_from_its_first_half():
    curve = Sigmoid(start=0.1, end=0.7, middle=30.0, exponent=3.0)
    fitted = fit_sigmoid(STEPS[:50], curve.at(STEPS[:50]), last_step=100.0)
    # The grid has steps of a fifth in the exponent and of a tenth in the middle.
    assert fitted.at(STEPS) == pytest.approx(curve.at(STEPS), abs=0.03)


def test_a_level_above_the_possible_is_set_to_the_end_of_the_range():
    # A straight line to 1.5 would be the best curve; no reward is above 1.
    fitted = fit_sigmoid(STEPS[:50], STEPS[:50] / 66.0, last_step=100.0)
    assert fitted.end <= 1.0
    assert fitted.at(STEPS).max() <= 1.0


def test_a_run_on_the_law_is_forecast_by_the_law():
    # exp(H) falls in a straight line from 3 to 1 + 2 / 100, so R = 1 - 0.3 exp(H) rises to 0.694.
    x = 3.0 - 2.0 * (STEPS - 1) / 100.0
    found = forecast_end(LawPoints.of(STEPS, np.log(x), 1.0 - 0.3 * x), 0.15)
    # The last ten steps have exp(H) from 1.2 to 1.02, mean 1.11.
    assert found.observed == pytest.approx(1.0 - 0.3 * 1.11)
    assert found.law == pytest.approx(found.observed)
    assert found.ceiling == pytest.approx(0.7)
    # 15 points are known; a tenth of them is the last one: 1 - 0.3 * (3 - 2 * 14 / 100) = 0.184.
    assert found.last == pytest.approx(0.184)
    assert found.error("last") == pytest.approx(0.667 - 0.184)


def test_a_forecast_is_a_possible_reward():
    # The reward rises as the entropy does not fall: the line at the entropy of the end is far above 1.
    entropy = np.where(STEPS < 50, 1.0 - STEPS / 1000.0, 0.0)
    found = forecast_end(LawPoints.of(STEPS, entropy, STEPS / 100.0), 0.3)
    assert found.law == found.ceiling == 1.0


def test_the_end_is_not_among_the_known_points():
    points = LawPoints.of(STEPS, 1.0 - STEPS / 200.0, STEPS / 100.0)
    for share in (0.0, 0.95, 1.0):
        with pytest.raises(ValueError, match="share of known points"):
            forecast_end(points, share)
    with pytest.raises(ValueError, match="at least 6"):
        forecast_end(points, 0.05)
    flat = LawPoints.of(STEPS, np.ones(100), STEPS / 100.0)
    with pytest.raises(ValueError, match="does not vary"):
        forecast_end(flat, 0.3)
    assert not math.isnan(forecast_end(points, 0.9).sigmoid)
