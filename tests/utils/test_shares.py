import math
from fractions import Fraction

from hypothesis import example, given
from hypothesis import strategies as st

from openrlhf_cov.utils.shares import ceil_share, floor_share


@example(count=100, digits=7, places=2)  # 7; the float64 product is 7.000000000000001
@example(count=10, digits=11, places=1)  # 11; 11.000000000000002
@given(count=st.integers(0, 10**9), digits=st.integers(1, 10**6), places=st.integers(1, 9))
def test_the_ceiling_is_exact_for_every_decimal_fraction(count, digits, places):
    text = f"{digits}e-{places}"
    assert ceil_share(count, float(text)) == math.ceil(count * Fraction(text))


@given(count=st.integers(0, 10**6), fraction=st.floats(1e-6, 1.0))
def test_the_published_floor_is_that_of_the_float_product(count, fraction):
    assert floor_share(count, fraction) == int(count * fraction)
