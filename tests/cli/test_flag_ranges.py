import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_cov.trainer.flags.ranges import INTERVALS, ORDERED, POSITIVE, RANGES, lies_in, range_faults

UNSET = dict.fromkeys((*POSITIVE, *INTERVALS, *RANGES))


def faults(name, value):
    return list(range_faults(UNSET | {name: value}))


def test_what_is_not_given_fits():
    assert list(range_faults(UNSET)) == []


@pytest.mark.parametrize("name", [*POSITIVE, *INTERVALS])
def test_counts_are_at_least_one(name):
    assert faults(name, 1) == faults(name, 3) == []
    assert bool(faults(name, -1)) == (name in POSITIVE)
    for value in (0, -2):
        (line,) = faults(name, value)
        assert line.startswith(f"--{name} {value}: must be at least 1")


@pytest.mark.parametrize("name", RANGES)
def test_nan_lies_in_no_range(name):
    (line,) = faults(name, math.nan)
    assert line.startswith(f"--{name} nan: must lie in {RANGES[name]}")


@pytest.mark.parametrize(
    ("name", "fitting", "others"),
    [
        ("actor.adam.lr", (0.0, 1e-6, 1.0), (-1e-9, 1.1, math.inf)),
        ("critic.adam.betas", ([0.0, 0.999],), ([0.9, 1.0], [-0.1, 0.9], [math.nan, 0.9])),
        ("actor.entropy_coef", (-1.0, 0.0, 1.0), (math.inf, -math.inf)),
        ("actor.eps_clip_low_high", ((0.0, math.inf),), ((0.2, -0.2),)),
        ("rollout.temperature", (0.01, 1.0), (0.0, -1.0, 0.009, math.inf)),
        ("rollout.top_p", (0.1, 1.0), (0.0, -0.5, 1.5)),
        ("train.seed", (0, 2**32 - 1), (-1, 2**32)),
        ("ds.zero_stage", (0, 3), (-1, 4)),
    ],
)
def test_a_number_outside_of_its_range_is_one_line(name, fitting, others):
    for value in fitting:
        assert faults(name, value) == []
    for value in others:
        (line,) = faults(name, value)
        assert line.startswith(f"--{name} ")
        assert ": must lie in " in line


@pytest.mark.parametrize("name", ORDERED)
def test_a_lower_bound_comes_first(name):
    assert faults(name, [0.25, 0.75]) == faults(name, [0.75]) == []
    assert len(faults(name, [0.75, 0.25])) == 1


@given(st.floats(allow_nan=True), st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_ends_belong_to_closed_intervals_alone(value, low, high):
    closed = lies_in(f"[{low!r}, {high!r}]", value)
    assert closed == (low <= value <= high)
    assert lies_in(f"({low!r}, {high!r})", value) == (low < value < high)
    assert lies_in(f"({low!r}, {high!r}]", value) == (closed and value != low)
