import math

import pytest

from openrlhf_cov.trainer.records import Group
from openrlhf_cov.trainer.rollout.dynamic_sampling import (
    GroupBuffer,
    PassRate,
    SamplingCounts,
    first_rate,
    groups_to_add,
    groups_to_dispatch,
    keep_group,
    sampling_metrics,
    staleness,
)


@pytest.mark.parametrize(
    ("scores", "low", "high", "keep"),
    [
        ([1, 0, 0, 0], 0, 1, True),
        ([1, 1, 1, 1], 0, 1, False),  # all right: no advantage
        ([0, 0, 0, 0], 0, 1, False),
        ([1, 0, 0, 0, 0], 0.2, 0.8, False),  # the bounds are open: 0.2 is not inside
        ([1, 1, 0, 0, 0], 0.2, 0.8, True),
        ([1, 1, 1, 1, 0], 0.2, 0.8, False),
        ([0.5], 0, 1, True),
    ],
)
def test_keep_group(scores, low, high, keep):
    assert keep_group(scores, low, high) is keep


def test_a_group_whose_rewards_all_abstained_is_not_kept():
    assert keep_group([], 0, 1) is False
    counts = SamplingCounts()
    counts.add(Group([], scores=[], tokens=7, version=0), kept=False)
    assert (counts.tried, counts.all_right, counts.all_wrong, counts.wasted_tokens) == (1, 0, 0, 7)
    assert str(counts).endswith("1 without a reward, as the reward function abstained")


@pytest.mark.parametrize(
    ("missing", "pass_rate", "ceiling", "count"),
    [
        (32, None, 2.0, 32),  # nothing known yet
        (32, 1.0, 2.0, 32),
        (32, 0.5, 3.0, 80),  # (32 + 2 sqrt(32 * 0.5)) / 0.5 = (32 + 8) / 0.5
        (32, 0.5, 2.0, 64),  # the ceiling
        (16, 0.75, 2.0, 27),  # (16 + 2 sqrt(16 * 0.25)) / 0.75 = 20 / 0.75 = 26.7
        (3, 0.0, 2.0, 6),  # none passed: as many as allowed
        (1, 0.9, 1.0, 1),
        (5, 0.5, 1.1, 6),  # 5.5, rounded up
        (10, 0.5, 1.1, 11),  # 11.000000000000002 in float64
    ],
)
def test_groups_to_dispatch(missing, pass_rate, ceiling, count):
    assert groups_to_dispatch(missing, pass_rate, ceiling) == count


@pytest.mark.parametrize(
    ("missing", "under_way", "pass_rate", "ceiling", "count"),
    [
        (0, 0, 0.5, 2.0, 0),  # the batch is full
        (-3, 5, 0.5, 2.0, 0),
        (4, 0, None, 2.0, 4),  # the first round of a run: one for each
        (4, 1, None, 2.0, 0),  # and nothing more before its pass rate is known
        (4, 8, 0.5, 2.0, 0),  # 8 * 1/2 are enough
        (4, 7, 0.5, 2.0, 1),  # 3.5 are not: (4 + 2 * 2^0.5) / 0.5 = 13.7, the ceiling says 8, 7 are under way
        (4, 7, 0.5, 4.0, 7),  # 14 - 7
        (4, 9, 0.0, 2.0, 0),  # never beyond the ceiling
        (1, 1, 0.9, 2.0, 1),  # (1 + 2 * 0.1^0.5) / 0.9 = 1.8, two
        (3, 0, 1.0, 2.0, 3),
    ],
)
def test_groups_to_add(missing, under_way, pass_rate, ceiling, count):
    assert groups_to_add(missing, under_way, pass_rate, ceiling) == count


def test_pass_rate_is_that_of_the_last_four_rounds():
    rate = PassRate()
    assert rate.value is None
    rate.add(0, 100)
    for kept in (5, 6, 7, 2):
        rate.add(kept, 10)
    assert rate.value == 20 / 40  # the first round is out of the window


def group(scores, version=0, tokens=10) -> Group:
    return Group(samples=list(scores), scores=scores, tokens=tokens, version=version)


def test_the_oldest_groups_are_taken_first_and_stale_ones_dropped():
    groups = [group([0, 1], version=version) for version in (0, 1, 1, 2)]
    buffer = GroupBuffer(list(groups))
    assert buffer.drop_stale(step=2, max_staleness=1) == groups[:1]
    assert buffer.take(2) == groups[1:3]
    assert buffer.groups == groups[3:]


def test_metrics_by_hand():
    counts = SamplingCounts(missing=1, rounds=2)
    counts.add(group([1.0, 0.0], tokens=30), kept=True)
    counts.add(group([1.0, 1.0], tokens=20), kept=False)
    counts.add(group([0.0, 0.0], tokens=40), kept=False)
    counts.add(group([1.0, 0.0], tokens=10), kept=True)
    batch = [group([1, 0], version=4), group([1, 0], version=5)]
    assert staleness(batch, step=5) == {"sampling/staleness_mean": 0.5}  # one is one version old, one is new
    assert sampling_metrics(counts, batch, waiting=3) == {
        "sampling/kept_frac": 2 / 4,
        "sampling/all_right_frac": 1 / 4,
        "sampling/all_wrong_frac": 1 / 4,
        "sampling/rounds": 2.0,
        "sampling/oversample": 4.0,  # four tried, one was missing
        "sampling/wasted_token_frac": 60 / 100,
        "sampling/groups": 2.0,
        "sampling/buffer_groups": 3.0,
    }
    assert str(counts) == "4 prompts tried in 2 rounds, 2 groups kept, 1 all correct, 1 all incorrect"


def test_shares_of_nothing_are_not_numbers():
    # All groups of the batch had waited.
    found = sampling_metrics(SamplingCounts(), [], waiting=3)
    assert {name for name, value in found.items() if math.isnan(value)} == {
        *("sampling/kept_frac", "sampling/all_right_frac", "sampling/all_wrong_frac"),
        *("sampling/oversample", "sampling/wasted_token_frac"),
    }
    assert (found["sampling/rounds"], found["sampling/buffer_groups"]) == (0, 3)


@pytest.mark.parametrize(
    ("kept", "missing", "rate"),
    [
        ([], 1, None),
        ([True], 3, None),
        ([True, False], 4, 1 / 2),  # half of them
        ([False, False, True], 4, 1 / 3),
        ([False], 1, 0.0),
    ],
)
def test_the_first_rate_is_that_of_half_of_the_first_round(kept, missing, rate):
    assert first_rate(kept, missing) == rate


def test_stale_groups_count_as_generated_and_wasted():
    counts = SamplingCounts()
    counts.add(group([1.0, 0.0], tokens=30), kept=True)
    counts.add_stale(group([1.0, 0.0], tokens=10))
    assert sampling_metrics(counts, [], waiting=0)["sampling/wasted_token_frac"] == 10 / 40
