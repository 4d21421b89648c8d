import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_cov.analysis.report.curves import MAX_DRAWN, extremes, running_mean, stacked, to_series

NAN = float("nan")


def test_a_long_gap_is_a_gap():
    # usual distance 1: a gap is longer than 10, and than 1/200 of the 129 steps; its NaN is in its middle
    steps = [*range(100), *range(111, 130)]
    curve = to_series(steps, np.arange(119.0))
    assert np.isnan(curve.values).nonzero()[0].tolist() == [100]
    assert curve.steps[100] == (99 + 111) / 2
    assert np.isnan(curve.mean[100])
    assert not np.isnan(to_series([*range(100), *range(109, 130)], np.arange(121.0)).values).any()


def test_the_running_mean_by_hand():
    # window 3 at the ends: of two values
    values = np.array([1.0, 2.0, 6.0, 4.0])
    assert running_mean(values, 3, np.arange(4)).tolist() == [1.5, 3.0, 4.0, 5.0]
    assert running_mean(values, 3, np.array([3, 1])).tolist() == [5.0, 3.0]
    assert running_mean(values, 1, np.array([3, 1])).tolist() == [4.0, 2.0]


def test_the_window_is_a_thirtieth_and_odd():
    # 300 / 30 = 10, the next odd number is 11
    curve = to_series(range(300), np.arange(300.0))
    assert curve.window == 11
    np.testing.assert_allclose(curve.mean[5:-5], np.arange(5.0, 295.0), rtol=1e-12)
    assert to_series(range(300), np.arange(300.0), smoothed=0.0).window == 1


@given(values=st.lists(st.floats(-1e6, 1e6) | st.just(NAN), min_size=1, max_size=400), most=st.integers(10, 60))
def test_a_drawn_series_has_the_extremes_and_is_short(values, most):
    series = np.array(values)
    curve = to_series(np.arange(len(values)), series, most=most)
    if curve is None:
        assert np.isnan(series).all()
        return
    there = ~np.isnan(curve.values)
    assert len(curve) <= max(most, 3 * np.isnan(curve.values).sum())
    assert np.nanmin(series) == curve.values[there].min()
    assert np.nanmax(series) == curve.values[there].max()
    assert (np.diff(curve.steps) > 0).all()
    assert curve.values[there].tolist() == series[curve.steps[there].astype(int)].tolist()
    assert there[[0, -1]].all()


def test_a_spike_in_a_million_steps_is_drawn():
    values = np.zeros(1_000_000)
    values[314_159], values[900_001] = 1.0, -2.0
    curve = to_series(np.arange(1_000_000), values)
    assert len(curve) <= MAX_DRAWN
    assert curve.steps[curve.values == 1.0].tolist() == [314_159]
    assert curve.steps[curve.values == -2.0].tolist() == [900_001]


def test_extremes_of_equal_parts():
    # two parts of four: lowest and highest of each, and both ends
    assert extremes(np.array([5.0, 9.0, 1.0, 5.0, 5.0, 0.0, 7.0, 5.0]), 6).tolist() == [0, 1, 2, 5, 6, 7]


def test_a_stack_has_the_means_of_equal_parts():
    steps, means = stacked([1, 2, 3, 4, 5], {"x": np.array([1.0, 3.0, NAN, 5.0, NAN]), "y": np.arange(5.0)}, most=3)
    assert steps.tolist() == [1.5, 3.5, 5.0]
    np.testing.assert_array_equal(means["x"], [2.0, 5.0, NAN])
    assert means["y"].tolist() == [0.5, 2.5, 4.0]
