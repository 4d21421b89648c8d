import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from texts import missing

from openrlhf_cov.analysis.dashboard.alerts import find_alerts
from openrlhf_cov.analysis.table import Table

CLIP = {"--cov_type": "clip_cov"}


def table(**columns):
    found = {name.replace("__", "/"): np.array(values, dtype=float) for name, values in columns.items()}
    return Table(np.arange(1, 1 + len(next(iter(found.values())))), found)


def one(found):
    (alert,) = found
    return alert


# --- no alert


@pytest.mark.parametrize("steps", [1, 2, 5, 8, 20, 40])
def test_none_on_a_real_run(real_run, steps):
    part = Table(real_run.steps[:steps], {name: values[:steps] for name, values in real_run.columns.items()})
    assert find_alerts(part, {"--cov_type": "kl_cov"}) == []


def test_the_method_none_has_an_empty_band():
    never = table(cov__empty_update_frac=[1.0] * 20, cov__selected_count=[0.0] * 20)
    assert find_alerts(never, {"--cov_type": "none"}) == []
    assert find_alerts(never, {}) == []


# --- entropy


def test_low_entropy():
    # start: median of 1, 1, 0.9, 1.1, 1 = 1. Medians of three: of 0.05, 0.2, 0.08 0.08 and from then on below 0.1;
    # one dip to 0.05 at step 7 is no level
    entropy = [1, 1, 0.9, 1.1, 1, 0.5, 0.05, 0.4, 0.2, 0.05, 0.08, 0.06]
    alert = one(find_alerts(table(entropy__mean=entropy), {}))
    assert (alert.code, alert.since) == ("entropy_low", 11)
    assert alert.value == "0.06 of 1 nats, 6.0%"
    assert "--method kl_cov" in alert.line
    assert find_alerts(table(entropy__mean=entropy[:10]), {}) == []


def test_steps_without_entropy_do_not_count():
    entropy = [np.nan] * 10 + [1.0] * 5 + [0.05] * 3  # frozen policy at the start
    assert one(find_alerts(table(entropy__mean=entropy), {})).since == 17  # median of 1, 0.05, 0.05


# --- reward


def falling(n, rate):
    return np.exp(-rate * np.arange(n))


def test_flat_reward_while_entropy_falls():
    # 20 steps shrink the entropy by 1 - exp(-0.4) = 33 %; the reward goes up and down by 0.1 around 0.5: two means of
    # 20 are equal, and the noise of neighbors, sqrt(0.2^2 / 2) = 0.14, gives an error of 0.14 sqrt(2 / 20) = 0.045
    reward = np.resize([0.4, 0.6], 50)
    alert = one(find_alerts(table(entropy__mean=falling(50, 0.02), reward=reward), {}))
    assert (alert.code, alert.since) == ("reward_flat", 40)
    assert alert.value == "reward +0 (± 0.045) for 33% of the entropy"
    assert "means of 20 steps" in alert.line


@pytest.mark.parametrize(
    ("entropy", "reward"),
    [
        (falling(39, 0.02), np.resize([0.4, 0.6], 39)),  # too short
        (falling(50, 0.02), np.resize([0.4, 0.6], 50) + np.arange(50) * 0.005),  # + 0.1 is two errors
        (falling(50, 0.005), np.resize([0.4, 0.6], 50)),  # 9.5 % of the entropy
        (falling(50, -0.02), np.resize([0.4, 0.6], 50)),  # rises
        # 18 % of 0.6, but the noise of neighbors, sqrt(0.4^2 / 2) = 0.3, makes an error of 0.09
        (np.resize([1.0, 0.5], 50) * falling(50, 0.01), np.resize([0.4, 0.6], 50)),
    ],
    ids=["short", "rising reward", "slow", "rising entropy", "noisy entropy"],
)
def test_no_flat_reward(entropy, reward):
    assert find_alerts(table(entropy__mean=entropy, reward=reward), {}) == []


def test_the_windows_of_a_long_run_are_longer():
    # 400 steps: means of 40; 0.3 % a step are 1 - exp(-0.12) = 11 % over 40 and 5.8 % over 20
    found = find_alerts(table(entropy__mean=falling(400, 0.003), reward=np.resize([0.4, 0.6], 400)), {})
    assert [(alert.code, alert.since) for alert in found] == [("reward_flat", 80)]


# --- updates and grader


def test_skipped_updates():
    skipped = [0.0] * 10 + [2.0] + [0.0] * 5 + [1.0] + [0.0] * 19
    alert = one(find_alerts(table(ppo__skipped_updates=skipped), {}))
    assert (alert.code, alert.value, alert.since) == ("updates_skipped", "1 in the last 20 steps", 11)
    assert find_alerts(table(ppo__skipped_updates=[*skipped, 0.0]), {}) == []  # 20 steps later


def test_large_ratio():
    ratio = [1.1, 3.0, 1.1, 1.1, 1.1, 1.1]
    alert = one(find_alerts(table(ppo__ratio_p99=ratio), {}))
    assert (alert.code, alert.value, alert.since) == ("ratio_large", "ppo/ratio_p99 3", 2)
    assert find_alerts(table(ppo__ratio_p99=[*ratio, 2.0]), {}) == []


def test_every_failed_reward_is_an_alert():
    alert = one(find_alerts(table(reward__error_frac=[0.0] * 15 + [0.0004]), {}))
    assert (alert.code, alert.since) == ("reward/error_frac", 16)
    assert missing(alert.value, "under 0.1 %", "10 steps") == []
    assert find_alerts(table(reward__error_frac=[0.5] + [0.0] * 10), {}) == []


@pytest.mark.parametrize(("name", "limit"), [("timeout", 0.01), ("unparsable", 0.3)])
def test_grading_statuses(name, limit):
    # the mean of the last 10 passes the limit with the sixth of steps of twice the limit: 6/10 x 2 = 1.2
    share = [0.0] * 10 + [2 * limit] * 6
    alert = one(find_alerts(table(**{f"reward__{name}_frac": share}), {}))
    assert (alert.code, alert.since) == (f"reward/{name}_frac", 16)
    assert find_alerts(table(**{f"reward__{name}_frac": share[:15]}), {}) == []


# --- Clip-Cov's band


def test_empty_band():
    empty = [0.0] * 10 + [1.0] * 6  # mean of ten 0.6
    alert = one(find_alerts(table(cov__empty_update_frac=empty), CLIP))
    assert (alert.code, alert.value, alert.since) == ("band_empty", "none in 60% of the updates", 16)
    assert "--clip_cov_lb" in alert.advice
    assert find_alerts(table(cov__empty_update_frac=empty[:15]), CLIP) == []
    assert find_alerts(table(cov__empty_update_frac=empty), {"--cov_type": "kl_cov"}) == []


@pytest.mark.parametrize("names", ["clip_cov", "cispo, clip_cov", " clip_cov ,cispo"])
def test_a_method_is_named_as_on_the_command_line(names):
    empty = table(cov__empty_update_frac=[1.0] * 10)
    assert one(find_alerts(empty, {"--cov_type": "none", "--method": names})).code == "band_empty"
    assert find_alerts(empty, {"--method": names.replace("clip_cov", "kl_cov")}) == []


# --- all of them


def test_what_stops_a_run_first_comes_first():
    n = 50
    bad = table(
        entropy__mean=np.r_[np.ones(5), np.full(45, 0.01)],
        ppo__ratio_p99=[3.0] * n,
        ppo__skipped_updates=[1.0] * n,
        reward__error_frac=[0.1] * n,
        cov__empty_update_frac=[1.0] * n,
    )
    found = find_alerts(bad, CLIP)
    assert [alert.code for alert in found] == [
        *("reward/error_frac", "updates_skipped", "ratio_large", "entropy_low", "band_empty")
    ]
    for alert in found:
        assert alert.line == f"{alert.what}: {alert.value}, since step {alert.since}; {alert.advice}"
        assert "\n" not in alert.line


NAMES = ("entropy__mean", "reward", "ppo__ratio_p99", "ppo__skipped_updates", "reward__error_frac")


@given(st.data())
def test_any_numbers_are_examined(data):
    n = data.draw(st.integers(0, 60))
    number = st.one_of(st.just(np.nan), st.floats(-1e6, 1e6))
    columns = {name: data.draw(arrays(float, n, elements=number)) for name in NAMES}
    found = find_alerts(Table(np.arange(1, n + 1), {k.replace("__", "/"): v for k, v in columns.items()}), CLIP)
    assert all(1 <= alert.since <= n for alert in found)
