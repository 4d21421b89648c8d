import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_cov.utils.shares import ceil_share, floor_share


@pytest.mark.parametrize(
    ("count", "fraction", "expected"),
    [
        (100, 0.07, 7),  # the float64 product is 7.000000000000001
        (10, 1.1, 11),  # 11.000000000000002
        (100, 0.071, 8),
        (3, 1e-6, 1),
        (0, 0.5, 0),
        (7, 1.0, 7),
    ],
)
def test_the_ceiling_is_of_the_decimal_number(count, fraction, expected):
    assert ceil_share(count, fraction) == expected


@given(count=st.integers(0, 10**9), digits=st.integers(1, 10**6), places=st.integers(1, 9))
def test_the_ceiling_is_exact_for_every_decimal_fraction(count, digits, places):
    text = f"{digits}e-{places}"
    assert ceil_share(count, float(text)) == math.ceil(count * Fraction(text))


@given(count=st.integers(0, 10**6), fraction=st.floats(1e-6, 1.0))
def test_the_published_floor_is_that_of_the_float_product(count, fraction):
    assert floor_share(count, fraction) == int(count * fraction)
