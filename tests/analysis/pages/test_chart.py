import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_cov.analysis.pages.chart import DASHES, HATCHES, LONGEST_NAME, MARKERS, Look, bands, look_of, short_names


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


def test_thirty_five_lines_can_be_told_apart():
    assert len({(look_of(place).color, look_of(place).dash) for place in range(35)}) == 35
    # in grey too
    assert len({look_of(place).dash for place in range(5)}) == len({look_of(place).marker for place in range(5)}) == 5
    assert len(set(DASHES)) == len(set(MARKERS)) == len(set(HATCHES)) == 5


@pytest.mark.parametrize(("x", "low"), [([1, 2], [0, -np.inf]), ([1, 2], [0, np.nan]), ([], [])])
def test_a_band_with_an_end_that_is_not_finite_is_none(x, low):
    assert bands(x, low, [5, 6][: len(x)], Look("red")) == []
