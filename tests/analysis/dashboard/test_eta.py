import math

import numpy as np
import pytest

from openrlhf_cov.analysis.dashboard.state import Pace, Total, activity, pace, remaining, total_steps
from openrlhf_cov.utils.text_table import duration

NAN = math.nan


# --- how many steps


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--data.max_samples=1280 --rollout.batch_size=32", Total(40, "1,280 prompts / 32 a step")),
        ("--data.max_samples=1281 --rollout.batch_size=32", Total(41, "1,281 prompts / 32 a step")),
        # each episode ends with what is left: 2 + 1 steps, twice
        (
            "--data.max_samples=80 --rollout.batch_size=32 --train.num_episodes=2",
            Total(6, "80 prompts x 2 episodes / 32 a step"),
        ),
        ("--rollout.batch_size=32", None),
        ("--data.max_samples=100 --rollout.batch_size=0", None),
        ("", None),
    ],
)
def test_total_steps(flags, expected):
    assert total_steps(dict(word.split("=") for word in flags.split())) == expected


def test_dynamic_sampling_uses_prompts_up():
    flags = {"--data.max_samples": "1000", "--rollout.batch_size": "10", "--algo.dynamic_filtering_enable": "true"}
    assert total_steps(flags, kept_frac=0.25) == Total(25, "about: 1,000 prompts / 10 a step, 25% kept", exact=False)
    assert total_steps(flags) == Total(100, "1,000 prompts / 10 a step")
    assert total_steps(flags, asked=7) == Total(7, "--steps")
    assert total_steps(flags | {"--rollout_limit": "40"}) == Total(40, "--rollout_limit", exact=False)
    assert total_steps(flags | {"--rollout_limit": "400"}) == Total(100, "1,000 prompts / 10 a step")  # all there is
    assert total_steps({"--rollout_limit": "40"}) == Total(40, "--rollout_limit", exact=False)


# --- how fast


def test_pace_is_wall_clock():
    # intervals 10, 12, 14; lines every second step count half
    assert pace(np.array([1, 2, 3, 4]), np.array([0.0, 10, 22, 36]), np.full(4, 9.0)) == Pace(12.0, 12.0)
    assert pace(np.array([2, 4, 6]), np.array([0.0, 20, 44]), np.full(3, 9.0)) == Pace(11.0, 11.0)


def test_a_pause_is_no_part_of_the_pace():
    times = np.array([0.0, 10, 20, 5000, 5010, 5020])  # resumed after step 3
    assert pace(np.arange(6), times, np.full(6, NAN)) == Pace(10.0, 10.0)


def test_the_pace_is_that_of_the_last_steps():
    times = np.cumsum([0.0] + [50] * 30 + [4] * 20)
    assert pace(np.arange(51), times, np.full(51, NAN)) == Pace(4.0, 4.0)


@pytest.mark.parametrize(
    ("times", "totals", "expected"),
    [([5.0], [8.0], 8.0), ([NAN, NAN], [8.0, NAN], 8.0), ([7.0, 7.0], [3.0, 5.0], 4.0), ([NAN], [NAN], NAN)],
    ids=["one step", "no clock", "clock stands", "nothing"],
)
def test_pace_without_a_clock_is_the_time_of_the_step(times, totals, expected):
    found = pace(np.arange(len(times)), np.array(times), np.array(totals))
    np.testing.assert_equal([found.mean, found.usual], [expected, expected])


# --- how long


@pytest.mark.parametrize(
    ("done", "total", "age", "expected"),
    [(30, 40, 0.0, 100.0), (30, 40, 4.0, 96.0), (30, 40, 500.0, 0.0), (40, 40, 9.0, 0.0), (41, 40, 9.0, 0.0)],
)
def test_remaining(done, total, age, expected):
    assert remaining(done, Total(total, ""), Pace(10.0, 10.0), age) == expected


@pytest.mark.parametrize(
    ("done", "total", "usual", "age", "state", "text"),
    [
        (3, None, 10.0, 50.0, "running", "last step 50 s ago"),
        (3, None, 10.0, 50.1, "silent", "no new step for 50 s (usually 10 s): finished, stopped or stuck"),
        (40, Total(40, ""), 10.0, 1.0, "finished", "finished, last step 1.0 s ago"),
        (40, Total(40, "", exact=False), 10.0, 1.0, "running", "last step 1.0 s ago"),
        (41, Total(40, "", exact=False), 10.0, 60.0, "finished", "finished, last step 1 min ago"),
        (3, None, NAN, 1e6, "running", "last step 11 d 13 h ago"),
        (3, None, 10.0, NAN, "running", "time of the last step unknown"),
    ],
)
def test_activity(done, total, usual, age, state, text):
    found = activity(done, total, Pace(usual, usual), age)
    assert (found.state, found.text) == (state, text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (9.94, "9.9 s"),
        (59.6, "1 min"),
        (61, "1 min 1 s"),
        (187_200, "2 d 4 h"),
        (NAN, "unknown"),
        (math.inf, "unknown"),
    ],
)
def test_duration(seconds, text):
    assert duration(seconds) == text
