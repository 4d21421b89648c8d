import torch
from hypothesis import example, given
from hypothesis import strategies as st

from openrlhf_cov.utils.ordering import quota


@given(count=st.integers(0, 10**6), fraction=st.floats(1e-6, 1.0))
@example(499, 2e-3)  # floor(0.998) = 0, at least one
@example(100, 0.29)  # 28.999999999999996 in float64: 28
@example(0, 0.5)  # nothing to pick from: whoever picks finds fewer than one
def test_the_quota_is_the_published_integer(count, fraction):
    result = quota(torch.tensor(count), fraction)
    assert (result.item(), result.dtype, result.shape) == (max(1, int(count * fraction)), torch.int64, ())
