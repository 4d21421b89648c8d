import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_cov.analysis.pages.ticks import label, log_ticks, ticks


@pytest.mark.parametrize(
    ("low", "high", "most", "expected"),
    [
        (1, 40, 4, [10, 20, 30, 40]),
        (0.117, 0.436, 3, [0.2, 0.3, 0.4]),
        (5, 5, 3, [5]),
        (1, 1_000_000, 4, [250_000, 500_000, 750_000, 1_000_000]),
    ],
)
def test_ticks(low, high, most, expected):
    assert ticks(low, high, most) == expected


@pytest.mark.parametrize(
    ("low", "high", "most", "expected"),
    [(1, 3, 8, [1, 2, 3]), (1, 40, 3, [20, 40]), (7, 7, 3, [7]), (0, 10**6, 3, [0, 400_000, 800_000])],
)
def test_ticks_of_steps_are_whole(low, high, most, expected):
    assert ticks(low, high, most, whole=True) == expected


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9), st.integers(1, 20))
def test_ticks_lie_within(low, span, most):
    span = max(span, 1e-5 * abs(low))
    high = low + span
    found = ticks(low, high, most)
    assert 1 <= len(found) <= most
    assert all(low - 1e-6 * span <= tick <= high + 1e-6 * span for tick in found)


@pytest.mark.parametrize(
    ("low", "high", "most", "expected"),
    [(0.01, 1.0, 4, [0.01, 0.1, 1.0]), (0.2, 0.45, 4, [0.2, 0.3, 0.4]), (1e-6, 1.0, 4, [1e-6, 1e-4, 1e-2, 1.0])],
)
def test_log_ticks(low, high, most, expected):
    assert log_ticks(low, high, most) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.151594, "0.152"),
        (1.2e-5, "1.2e-05"),
        (16400.0, "16.4k"),
        (3e6, "3M"),
        (math.nan, "-"),
        (math.inf, "-"),
    ],
)
def test_label(value, text):
    assert label(value) == text
