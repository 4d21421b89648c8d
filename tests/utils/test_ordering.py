import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_cov.utils.ordering import ordered_bits, quota


@pytest.mark.parametrize(
    ("count", "fraction", "expected"),
    [
        (1000, 2e-3, 2),
        (499, 2e-3, 1),  # floor(0.998) = 0, at least one
        (1499, 2e-3, 2),  # floor(2.998)
        (100, 0.29, 28),  # 100 * 0.29 = 28.999999999999996 in float64, as in the published int(N * ratio)
        (7, 1.0, 7),
        (1, 0.5, 1),
        (0, 0.5, 1),  # nothing to pick from: whoever picks finds fewer than that
    ],
)
def test_the_quota_is_the_floor_and_at_least_one(count, fraction, expected):
    result = quota(torch.tensor(count), fraction)
    assert (result.item(), result.dtype, result.shape) == (expected, torch.int64, torch.Size([]))


@given(count=st.integers(0, 10**6), fraction=st.floats(1e-6, 1.0))
def test_the_quota_is_the_published_integer(count, fraction):
    assert quota(torch.tensor(count), fraction).item() == max(1, int(count * fraction))


FLOATS = st.one_of(st.floats(width=32, allow_nan=False), st.sampled_from([0.0, -0.0, math.inf, -math.inf, 2**-149]))


@given(left=FLOATS, right=FLOATS)
def test_bits_are_in_the_order_of_the_floats(left, right):
    first, second = ordered_bits(torch.tensor([left, right])).tolist()
    assert (left < right) == (first < second)  # -0.0 and 0.0 are equal in both
