import math

import pytest

from openrlhf_cov.trainer.intervals import is_due


@pytest.mark.parametrize(
    ("interval", "due"),
    [(-1, []), (0, []), (1, [1, 2, 3, 4, 5, 6]), (2, [2, 4, 6]), (3, [3, 6]), (9, []), (math.inf, [])],
)
def test_every_so_many_steps(interval, due):
    assert [steps for steps in range(1, 7) if is_due(steps, interval)] == due
