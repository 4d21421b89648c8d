import math

import numpy as np
import pytest

from openrlhf_cov.analysis.table import Table
from openrlhf_cov.analysis.theory import (
    BANDS,
    _influence,
    _mid_ranks,
    check_group_covariance,
    check_theorem,
    covariance_bands,
    covariance_by_accuracy,
    mean_interval,
    pairs_of,
    rank_correlation,
    share_interval,
)
from openrlhf_cov.models.dynamics import EntropyDynamics, spearman

NAN = math.nan


def table(steps, **columns):
    return Table(np.asarray(steps), {name.replace("__", "/"): np.array(c, dtype=float) for name, c in columns.items()})


# --- pairs


def test_prediction_of_a_step_is_about_the_next():
    found = pairs_of(table([1, 2, 3], a=[10, 20, 30], b=[NAN, 1, 2]), "a", "b")
    assert [each.tolist() for each in found] == [[10, 20], [1, 2]]


def test_pairs_do_not_reach_over_gaps_and_missing_values():
    steps = [1, 2, 5, 6, 7, 8]
    found = pairs_of(table(steps, a=[1, 2, 3, 4, NAN, 6], b=[0, 20, 50, 60, 70, 80]), "a", "b")
    assert [each.tolist() for each in found] == [[1, 3, 4], [20, 60, 70]]  # 2 -> 5 is a gap, 7 -> 8 has no prediction


# --- theorems


def logged_run(steps, noise, seed=0):
    """A run of which the entropy follows theorem 2 but for noise, as EntropyDynamics logs it."""
    rng, dynamics, entropy = np.random.default_rng(seed), EntropyDynamics(), 3.0
    rows = []
    for _ in range(steps):
        cov = 0.01 * rng.exponential()
        rows.append(
            dynamics.step(entropy, cov / 2 + 0.001 * rng.standard_normal(), cov, 0.1)
            | {"cov/mean": cov, "cov/prob_weighted_mean": cov / 2}
        )
        entropy += -cov + noise * rng.standard_normal()
    names = rows[0]
    return Table(np.arange(1, steps + 1), {name: np.array([row[name] for row in rows]) for name in names})


def test_correlation_is_the_one_that_the_run_logs():
    run = logged_run(120, 0.01)
    for theorem in (1, 2):
        found = check_theorem(run, theorem)
        assert found.pairs == 119
        assert found.correlation.estimate == pytest.approx(run.column(f"entropy/corr_theorem{theorem}")[-1])
        assert found.correlation.low < found.correlation.estimate < found.correlation.high


def test_exact_theorem():
    found = check_theorem(logged_run(60, 0.0), 2)
    assert (found.correlation.estimate, found.correlation.low, found.correlation.high) == pytest.approx((1, 1, 1))
    assert found.sign_agreement.estimate == found.chance_agreement == found.positive_cov_frac == 1
    np.testing.assert_allclose(found.changes, 10 * found.predicted, rtol=1e-9)  # eta is 0.1


def test_signs_by_hand():
    # predictions -1, -1, +1, -1 for changes -2, +2, +2, -2: three agree; 3/4 and 2/4 of them negative
    found = check_theorem(
        table(
            range(1, 6),
            entropy__delta_theorem2=[-1, -1, 1, -1, NAN],
            entropy__delta=[NAN, -2, 2, 2, -2],
            cov__mean=[1, 0, -1, 1, NAN],
        ),
        2,
    )
    assert found.sign_agreement.estimate == 0.75
    assert found.chance_agreement == pytest.approx(0.75 * 0.5 + 0.25 * 0.5)
    assert found.positive_cov_frac == 0.5
    assert math.isnan(found.correlation.low)  # four pairs
    assert found.correlation.estimate == pytest.approx(spearman([-1, -1, 1, -1], [-2, 2, 2, -2]))


# --- intervals


def related(noise, points, autocorrelation, correlation, seed):
    """Two AR(1) series whose values have a normal correlation."""
    rng = np.random.default_rng([53, seed])
    first, second = (noise(points, autocorrelation, rng) for _ in range(2))
    return first, correlation * first + math.sqrt(1 - correlation**2) * second


def correlation_coverage(noise, simulations, points, autocorrelation):
    true = 6 / math.pi * math.asin(0.5 / 2)  # Spearman's of a normal correlation of 0.5
    found = [
        rank_correlation(*related(noise, points, autocorrelation, 0.5, s), resamples=500) for s in range(simulations)
    ]
    return np.mean([interval.low <= true <= interval.high for interval in found])


@pytest.mark.slow
@pytest.mark.parametrize("autocorrelation", [0.0, 0.6])
def test_correlation_interval_covers(noise, autocorrelation):
    # 0.95 in 300 simulations: standard error 0.013
    assert correlation_coverage(noise, 300, 60, autocorrelation) >= 0.95 - 3 * 0.013


def test_influence_is_what_a_pair_adds(noise):
    # jackknife: n (r - r without pair i), up to terms of 1 / n
    x, y = related(noise, 400, 0.0, 0.8, 1)
    rest = [spearman(np.delete(x, i), np.delete(y, i)) for i in range(len(x))]
    found = _influence(_mid_ranks(x), _mid_ranks(y))
    np.testing.assert_allclose(found, len(x) * (spearman(x, y) - np.array(rest)), rtol=0, atol=0.03)


def test_correlation_of_tied_and_constant_values():
    tied = np.tile([0.0, 0, 1, 1, 2], 6)
    assert rank_correlation(tied, tied).low == pytest.approx(1)
    assert math.isnan(rank_correlation(np.ones(30), np.arange(30.0)).estimate)
    found = rank_correlation(tied, np.arange(30.0) % 7)
    assert -1 < found.low < found.estimate < found.high < 1


@pytest.mark.slow
def test_mean_interval(noise):
    # 0.95 in 300 simulations: standard error 0.013
    hits = 0
    for seed in range(300):
        found = mean_interval(noise(100, 0.6, np.random.default_rng(seed)), resamples=500)
        hits += found.low <= 0 <= found.high
    assert hits / 300 >= 0.95 - 3 * 0.013


def test_share_interval_by_hand():
    # all of n = 10: the low end of Wilson's interval is 1 / (1 + z^2 / n)
    found = share_interval([True] * 10)
    assert (found.estimate, found.high) == (1, 1)
    assert found.low == pytest.approx(1 / (1 + 1.959964**2 / 10), abs=1e-6)
    assert math.isnan(share_interval([True] * 9).low)
    assert math.isnan(share_interval([]).estimate)


@pytest.mark.slow
@pytest.mark.parametrize("autocorrelation", [0.0, 0.6])
def test_share_interval_covers(noise, autocorrelation):
    # share of N(0, 1) above -1: 0.8413. 0.95 in 400 simulations: standard error 0.011
    hits = 0
    for seed in range(400):
        found = share_interval(noise(80, autocorrelation, np.random.default_rng([59, seed])) > -1)
        hits += found.low <= 0.8413 <= found.high
    assert abs(hits / 400 - 0.95) <= 3 * 0.011


# --- table 1


def test_bands_by_hand():
    # 12 steps: the first; of the stages up to 1/12 (nothing left), 1/3 (steps 2 to 4) and 1 (5 to 12)
    columns = {name: np.arange(12.0) + place for place, name in enumerate(BANDS)}
    found = covariance_bands(Table(np.arange(10, 130, 10), columns))
    assert [(row.first_step, row.last_step) for row in found] == [(10, 10), (20, 40), (50, 120)]
    assert [row.means["cov/top_2e-4"] for row in found] == [0, 2, 7.5]
    assert [row.means["cov/mean"] for row in found] == [5, 7, 12.5]


def test_bands_leave_out_steps_without_covariance():
    logged = table([1, 2, 3, 4], cov__mean=[NAN, NAN, 0.2, 0.4])
    found = covariance_bands(logged, stages=(1.0,))
    assert [(row.first_step, row.means["cov/mean"]) for row in found] == [(3, 0.2), (4, 0.4)]
    assert math.isnan(found[0].means["cov/top_0.5"])
    assert covariance_bands(table([1, 2], reward=[0, 1])) == []


# --- equation 8


def test_covariance_is_about_the_fall_of_the_next_step():
    # covariances 3, 1, 2 and, a step later, falls 0.3, 0.1, 0.2: the same order; the last covariance has no fall
    log = table([1, 2, 3, 4], cov__group_weighted_mean=[3, 1, 2, 9], entropy__delta=[NAN, -0.3, -0.1, -0.2])
    assert check_group_covariance(log).estimate == pytest.approx(1.0)
    assert check_group_covariance(table([1, 2], entropy__delta=[NAN, -0.1])) is None


# --- accuracy groups


def test_covariance_by_accuracy():
    low, high = [0.1, -0.1, NAN, 0.3] * 7, [0.3, 0.3, 0.9, 0.5] * 7
    found = covariance_by_accuracy(table(range(28), cov__acc_low=low, cov__acc_high=high), "cov/acc_")
    assert found.means["low"].estimate == pytest.approx(0.1)
    assert found.positive_frac["low"] == pytest.approx(2 / 3)
    assert found.easy_minus_hard.estimate == pytest.approx((0.2 + 0.4 + 0.2) / 3)
    assert found.easy_minus_hard.low > 0
    assert math.isnan(found.means["mid"].estimate)
    assert math.isnan(found.positive_frac["mid"])
    tokens = covariance_by_accuracy(table(range(20), cov__token_acc_mid=high), "cov/token_acc_")
    assert tokens.means["mid"].estimate == pytest.approx(0.5)
