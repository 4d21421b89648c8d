import numpy as np
import pytest

from openrlhf_cov.analysis.law import LawPoints, fit_law
from openrlhf_cov.analysis.verdict import examine_law, residual_misfit, usable_bound

STEPS = np.arange(200)


def judged(points, **how):
    return examine_law(points, resamples=500, **how).verdict


@pytest.fixture
def wander(noise):
    """Noise of 0.02 with autocorrelation 0.5."""
    return 0.02 * noise(200, 0.5, np.random.default_rng(0))


# --- the law holds


def test_a_run_that_follows_the_law(law_curve):
    result = examine_law(law_curve(200, 0.5, 0), highest_reward=1.0)
    assert result.verdict.applies
    assert result.verdict.codes == set()
    assert result.fit.ceiling.low < 0.5 < result.fit.ceiling.high


@pytest.mark.slow
def test_runs_that_follow_the_law_are_hardly_ever_refused(law_curve):
    # the residual test is wrong in 1 % of the cases: more than 4 of 60 have a probability of 0.0003. The noise is so
    # large that curves of a tenth of the gain are found by chance in most runs
    refused = [not judged(law_curve(60, 0.5, [41, seed], sd=0.05)).applies for seed in range(60)]
    assert sum(refused) <= 4


# --- three shapes that are not the law, and more


def test_rising_entropy(wander):
    rising = LawPoints.of(STEPS, 0.3 + 0.5 * STEPS / 200, 0.5 + 0.2 * STEPS / 200 + wander)
    assert {"entropy_not_falling", "reward_falls"} <= judged(rising).codes
    assert "rises, from 0.3" in str(judged(rising).reasons)


def test_reward_that_rises_at_constant_entropy(wander):
    entropy = 0.3 + 0.02 * np.random.default_rng(1).standard_normal(200)
    constant = LawPoints.of(STEPS, entropy, 0.3 + 0.4 * STEPS / 200 + wander)
    assert {"entropy_not_falling", "slope_unknown", "residual_trend"} <= judged(constant).codes


def test_reward_that_goes_on_where_the_entropy_stays(entropy, wander):
    points = LawPoints.of(STEPS, np.maximum(entropy(200), 0.3), 0.6 - 0.3 * np.exp(-STEPS / 100) + wander)
    assert "residual_trend" in judged(points).codes


def test_kink(entropy, wander):
    # an eighth of the slope above exp(H) = 1.5
    x = np.exp(entropy(200))
    kinked = LawPoints.of(STEPS, np.log(x), 0.5 - np.where(x > 1.5, 0.1, 0.8) * (x - 1.5) + wander)
    result = examine_law(kinked, resamples=500)
    assert "residual_trend" in result.verdict.codes
    # slopes 0.1 and 0.8 meet at 1.5: the curve through both departs by a good part of the gain
    assert 0.2 < result.misfit.share < 1


def test_two_regimes(entropy, wander):
    jump = LawPoints.of(STEPS, entropy(200), 0.8 - 0.3 * np.exp(entropy(200)) + 0.1 * (STEPS > 100) + wander)
    assert "residuals_wander" in judged(jump).codes


def test_flat_reward(entropy, wander):
    (reason,) = judged(LawPoints.of(STEPS, entropy(200), 0.5 + wander)).reasons
    assert reason.code == "slope_unknown"
    assert reason.text.startswith("the points do not show whether the reward depends on the entropy: a = ")
    constant = judged(LawPoints.of(STEPS, entropy(200), np.full(200, 0.4)))
    assert "the reward is 0.4 in all steps" in [reason.text for reason in constant.reasons]


@pytest.mark.slow
def test_two_random_walks_are_rarely_taken_for_the_law():
    # R^2 of two independent random walks is often high; here the entropy also falls by half
    accepted = 0
    for seed in range(40):
        rng = np.random.default_rng([43, seed])
        walks = np.cumsum(rng.standard_normal((2, 200)), axis=1)
        entropy = np.exp(-STEPS / 200) + 0.01 * (walks[0] - walks[0].min())
        accepted += judged(LawPoints.of(STEPS, entropy, 0.5 + 0.01 * walks[1])).applies
    assert accepted <= 6


# --- what the caller says, and too little to say


def test_interventions_are_reasons(law_curve):
    verdict = judged(law_curve(200, 0.5, 0), interventions=["--cov_type kl_cov", "--algo.kl.init_coef 0.01"])
    assert [reason.code for reason in verdict.reasons] == ["intervention"] * 2
    assert verdict.reasons[0].text.startswith("--cov_type kl_cov acts on the entropy")


def test_ceiling_above_the_highest_reward(entropy, wander):
    points = LawPoints.of(STEPS, 0.5 + entropy(200), 1.5 - 0.3 * np.exp(0.5 + entropy(200)) + 0.1 * wander)
    assert judged(points).applies
    assert judged(points, highest_reward=1.0).codes == {"ceiling_too_high"}  # it is 1.2


@pytest.mark.parametrize("count", [0, 1, 3, 5, 6, 9])
def test_few_points(law_curve, count):
    result = examine_law(law_curve(10, 0.0, 0)[:count])
    assert "too_few_points" in result.verdict.codes
    assert (result.fit is None) == (count < 6)


@pytest.mark.parametrize("values", [np.full(20, 0.3), np.full(20, 0.3) + 1e-13 * np.arange(20)])
def test_an_entropy_that_does_not_move(values):
    result = examine_law(LawPoints.of(range(20), values, np.arange(20.0)))
    assert result.fit is None
    assert "entropy_not_falling" in result.verdict.codes


def test_residuals_that_wander(entropy, wander):
    waves = 0.05 * np.sin(2 * np.pi * STEPS / 80) + 0.02 * wander  # 2.5 waves, neither a curve nor a drift
    points = LawPoints.of(STEPS, entropy(200), 0.8 - 0.3 * np.exp(entropy(200)) + waves)
    result = examine_law(points)
    assert result.verdict.codes == {"residuals_wander"}
    assert result.fit.effective_points < 4


@pytest.mark.parametrize(("end", "falls"), [(0.95, False), (0.85, True)])
def test_an_entropy_that_falls_by_too_little(end, falls):
    entropy = np.linspace(1, end, 200)
    codes = judged(LawPoints.of(STEPS, entropy, -np.exp(entropy))).codes
    assert ("entropy_not_falling" not in codes) == falls


def test_a_slight_curve_is_let_pass(entropy, wander):
    x = np.exp(entropy(200))
    points = LawPoints.of(STEPS, entropy(200), 0.8 - 0.3 * x + 0.01 * (x - 2) ** 2 + 0.005 * wander)
    result = examine_law(points, resamples=500)
    assert result.misfit.p_value < 0.01
    assert result.verdict.applies


# --- the residual test


def test_misfit_by_hand():
    # R = -x + x^2 / 4 at x = 1 ... 21, in an order that is no cosine: what a line leaves of x^2 / 4 is that of
    # (x - 11)^2 / 4, which ranges over 100 / 4; the line rises by -1 + 22 / 4 = 4.5 per unit of x, 90 in all
    x = np.random.default_rng(0).permutation(np.arange(1.0, 22))
    points = LawPoints.of(range(21), np.log(x), -x + x**2 / 4)
    fit = fit_law(points, resamples=10)
    assert fit.a.estimate == pytest.approx(-4.5)
    found = residual_misfit(points, fit)
    assert found.share == pytest.approx(25 / 90)


@pytest.mark.e2e
@pytest.mark.long
def test_false_alarms_of_the_residual_test(law_curve):
    # level 0.01 in 500 simulations: standard error 0.0045
    alarms = 0
    for seed in range(500):
        points = law_curve(200, 0.5, [47, seed])
        alarms += residual_misfit(points, fit_law(points, resamples=10), resamples=500).p_value < 0.01
    assert alarms / 500 <= 0.025


def test_misfit_needs_points_and_two_different_regressors(law_curve):
    short = law_curve(9, 0.0, 0)
    assert residual_misfit(short, fit_law(short, resamples=10)) is None
    two = LawPoints.of(range(20), np.arange(20) % 2, np.arange(20.0))
    assert residual_misfit(two, fit_law(two, resamples=10)) is None


def test_the_bound_is_used_where_no_reward_is_above_it():
    points = LawPoints.of([1, 2], [0.5, 0.4], [0.2, 1.0])
    assert usable_bound(points, 1.0) == 1.0
    assert usable_bound(points, 0.9) is None
    assert usable_bound(points, None) is None
    assert usable_bound(LawPoints.of([], [], []), 1.0) == 1.0
