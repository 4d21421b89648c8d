import math

import numpy as np

from openrlhf_cov.analysis.law import LawPoints
from openrlhf_cov.analysis.stages import early_shares


def test_shares_by_hand():
    # 13 points, steps 0 to 12, levels of single points: 1/12 is step 1, 1/3 is step 4.
    # H falls from 1.0 to 0.2: at step 1 it is 0.4 (0.6 of 0.8), at step 4 0.3 (0.7 of 0.8);
    # R rises from 0.1 to 0.5: at step 1 it is 0.2 (a quarter), at step 4 0.6, more than in the end
    entropy = np.array([1.0, 0.4, 0.4, 0.4, *[0.3] * 8, 0.2])
    reward = np.array([0.1, 0.2, 0.2, 0.2, *[0.6] * 8, 0.5])
    found = early_shares(LawPoints.of(range(13), entropy, reward))
    np.testing.assert_allclose(found.drop, [0.75, 0.875])
    np.testing.assert_allclose(found.gain, [0.25, 1.25])


def test_places_are_shares_of_the_steps_not_of_the_points():
    # steps 0, 1, 2, 12: up to step 1 there are two points, up to step 4 three
    found = early_shares(LawPoints.of([0, 1, 2, 12], [1.0, 0.8, 0.5, 0.0], [0.0, 0.1, 0.2, 1.0]))
    np.testing.assert_allclose(found.drop, [0.2, 0.5])
    np.testing.assert_allclose(found.gain, [0.1, 0.2])


def test_a_place_without_a_point_near_it_has_no_shares():
    # 2,400 steps, of which the log lacks 21 to 1,999: 1/12 and 1/3 of the run are among these.
    steps = [*range(21), *range(2000, 2401)]
    found = early_shares(LawPoints.of(steps, np.linspace(1.0, 0.0, len(steps)), np.linspace(0.0, 1.0, len(steps))))
    assert all(map(math.isnan, (*found.drop, *found.gain)))


def test_levels_are_means_of_a_fiftieth():
    # 100 points: two of them; up to 1/3 of 99 steps there are 34. Values of the first two 2, of the last two 0,
    # of the 33rd 1.5 and of the 34th 0.5
    entropy = np.ones(100)
    entropy[:2], entropy[-2:], entropy[32], entropy[33] = 2.0, 0.0, 1.5, 0.5
    assert early_shares(LawPoints.of(range(100), entropy, entropy)).drop[1] == 0.5


def test_what_did_not_fall_or_rise_has_no_shares():
    found = early_shares(LawPoints.of(range(13), np.linspace(0.2, 1.0, 13), np.linspace(1.0, 0.0, 13)))
    assert all(map(math.isnan, (*found.drop, *found.gain)))
    assert all(map(math.isnan, early_shares(LawPoints.of([], [], [])).drop))
    # of three points none but the first lies before 1/12
    assert math.isnan(early_shares(LawPoints.of(range(3), [3.0, 2.0, 1.0], [0.0, 1.0, 2.0])).drop[0])


def test_a_change_within_the_noise_has_no_shares():
    # Neighbors differ by 0.2: 0.21 of noise, and 0.3 for the difference of two levels. R rises by 0.1.
    reward = np.array([*[0.4, 0.6] * 6, 0.5])
    assert all(map(math.isnan, early_shares(LawPoints.of(range(13), np.linspace(1.0, 0.2, 13), reward)).gain))


def test_a_place_before_which_the_curve_moved_the_other_way_has_no_share():
    # H rises from 1.0 to 1.2 up to step 4 of 12, and falls to 0.2 afterwards.
    entropy = np.array([1.0, 1.05, 1.1, 1.15, 1.2, 1.1, 1.0, 0.9, 0.8, 0.6, 0.4, 0.3, 0.2])
    found = early_shares(LawPoints.of(range(13), entropy, -entropy))
    assert all(map(math.isnan, found.drop))
