import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_cov.analysis.pages.chart import LONGEST_NAME, Axis, Look, bands, short_names


def test_long_names_lose_their_middle_and_stay_different():
    names = ["a" * 20 + str(n) + "b" * 20 for n in range(3)]
    assert short_names(["short", *names]) == [
        "short",
        "a" * 16 + "…" + "b" * 15,  # 16 + 1 + 15 = 32
        "a" * 14 + "…" + "b" * 13 + " (3)",  # 28 and the place
        "a" * 14 + "…" + "b" * 13 + " (4)",
    ]


@given(st.lists(st.text("ab", max_size=80), min_size=1, max_size=12, unique=True))
def test_short_names_differ(names):
    short = short_names(names)
    assert len(set(short)) == len(names)
    assert max(map(len, short)) <= LONGEST_NAME


@pytest.mark.parametrize(("x", "low"), [([1, 2], [0, -np.inf]), ([1, 2], [0, np.nan]), ([], [])])
def test_a_band_with_an_end_that_is_not_finite_is_none(x, low):
    assert bands(x, low, [5, 6][: len(x)], Look("red")) == []


@pytest.mark.parametrize(
    ("axis", "values", "expected"),
    [
        # The margin is 5 % of the span 0.8, and nothing is below 0 % or above 100 %.
        (Axis(share=True), [0.1, 0.9], (0.06, 0.94)),
        (Axis(share=True), [0.02, 1.0], (0.0, 1.0)),
        (Axis(possible=(0.0, np.inf)), [0.01, 2.01], (0.0, 2.11)),
        # Impossible values are shown all the same.
        (Axis(share=True), [0.5, 1.5], (0.45, 1.5)),
        (Axis(share=True, ends=(0.0, 1.0)), [0.5], (0.0, 1.0)),
        (Axis(), [0.1, 0.9], None),
        (Axis(share=True), [], None),
    ],
)
def test_axes_end_where_values_are_impossible(axis, values, expected):
    assert axis.shown(np.array(values)) == (expected and pytest.approx(expected, abs=1e-12))
