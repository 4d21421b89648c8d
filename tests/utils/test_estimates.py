import numpy as np
import pytest

from openrlhf_cov.utils.estimates import interval_of


def test_an_interval_is_the_middle_of_the_draws():
    found = interval_of(7.0, np.arange(101.0), level=0.9)
    assert (found.estimate, found.low, found.high, found.level) == pytest.approx((7, 5, 95, 0.9))


@pytest.mark.parametrize("level", [0.0, 1.0, 95])
def test_the_level_is_a_fraction(level):
    with pytest.raises(ValueError, match=f"fraction in \\(0, 1\\), got {level}"):
        interval_of(0.0, np.arange(3.0), level=level)
