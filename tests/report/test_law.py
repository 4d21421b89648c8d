import math
from pathlib import Path

import numpy as np
import pytest

from openrlhf_cov.analysis.law import fit_law, forecast
from openrlhf_cov.analysis.runs import Run, evaluation_points, training_points
from openrlhf_cov.analysis.table import Table
from openrlhf_cov.report.contents import Options
from openrlhf_cov.report.law import law_line, law_section


def test_the_law_of_a_run_is_that_of_all_its_points(make_report_run):
    run = make_report_run("run", steps=3000)
    section = law_section(run, Options())
    points = training_points(run)
    assert section.point_count == 3000
    assert len(section.points) == 1000
    assert section.points.steps[[0, -1]].tolist() == [1, 3000]
    whole = fit_law(points)
    assert (section.result.fit.a, section.result.fit.ceiling) == (whole.a, whole.ceiling)
    # R = -0.3 exp(H) + 0.9 up to noise of 0.01, a standard error of a of about 0.01 / sqrt(3000) / sd(exp(H)) = 0.0004
    assert section.result.fit.a.estimate == pytest.approx(0.3, abs=0.003)
    assert section.result.fit.ceiling.estimate == pytest.approx(0.6, abs=0.003)
    assert section.result.verdict.applies


def test_the_forecast_has_the_numbers_of_all_points(make_report_run):
    run = make_report_run("run", steps=3000)
    found = law_section(run, Options(forecast_share=0.2)).forecast
    whole = forecast(training_points(run), 0.2)
    assert (found.rmse, found.final_error, found.in_band_frac) == (whole.rmse, whole.final_error, whole.in_band_frac)
    assert found.fit.points == 600
    assert len(found.later) == len(found.predicted) == len(found.low) == len(found.high) == 1000
    np.testing.assert_array_equal(found.predicted, found.fit.reward_at(found.later.entropy))


def test_robust_is_hubers_fit(make_report_run):
    assert law_section(make_report_run("run"), Options(robust=True)).result.fit.method == "huber"
    assert law_section(make_report_run("run"), Options()).result.fit.method == "least_squares"


def test_too_few_points_for_a_forecast_say_so(make_report_run):
    section = law_section(make_report_run("run", steps=30), Options())
    assert section.forecast is None
    # 15 % of 30 are 4 points
    assert section.no_forecast == (
        "the first 15% of 30 points: a forecast needs at least 10 points with entropy and reward, got 4"
    )
    # of 5,000 points 0.0019 are 9, and no "0%"
    small = law_section(make_report_run("run", steps=5000), Options(forecast_share=0.0019))
    assert small.no_forecast.startswith("the first 0.19% of 5000 points: a forecast needs at least 10 points")


def test_interventions_are_reasons(make_report_run):
    verdict = law_section(make_report_run("run", method="kl_cov"), Options()).result.verdict
    assert verdict.codes == {"intervention"}
    assert "--cov_type kl_cov" in verdict.reasons[0].text


def test_an_evaluation_as_reward(make_report_run):
    run = make_report_run("run", steps=300)
    section = law_section(run, Options(metric="eval/aime24/avg@32"))
    whole = evaluation_points(run, "eval/aime24/avg@32")
    assert section.point_count == 30
    np.testing.assert_array_equal(section.points.reward, whole.reward)
    np.testing.assert_array_equal(section.points.entropy, whole.entropy)


@pytest.mark.parametrize(
    ("only", "metric", "missing"),
    [
        (["reward"], "reward", "the log has no entropy"),
        (["entropy/mean"], "reward", "the log has no reward"),
        (["response_length"], "eval/x", "the log has no entropy and no eval/x"),
    ],
)
def test_what_the_log_lacks(make_report_run, only, metric, missing):
    section = law_section(make_report_run("run", only=only), Options(metric=metric))
    (reason,) = section.result.verdict.reasons
    assert (reason.code, reason.text) == ("not_logged", missing)
    assert section.result.fit is section.line is section.forecast is None
    assert len(section.points) == 0


def test_the_line_goes_from_the_ceiling_to_the_highest_entropy(make_report_run):
    points = training_points(make_report_run("run"))
    fit = fit_law(points)
    line = law_line(fit, points)
    assert line.exp_entropy[0] == 1.0
    assert line.exp_entropy[-1] == pytest.approx(math.exp(points.entropy.max()), rel=1e-12)
    # at H = 0 the line and its interval are the ceiling's
    assert (line.reward[0], line.low[0], line.high[0]) == pytest.approx(
        (fit.ceiling.estimate, fit.ceiling.low, fit.ceiling.high), abs=1e-12
    )
    assert (line.point_low < line.low).all()
    assert (line.point_high > line.high).all()


def test_the_bound_reaches_the_verdict():
    # R = -2 exp(H) + 2.9 has its ceiling at 0.9; the run ends at exp(0.6): its rewards are below -0.7
    entropy = 0.6 + 0.5 * np.exp(-6 * np.arange(60) / 60)
    reward = 2.9 - 2.0 * np.exp(entropy) + 0.01 * np.random.default_rng(0).standard_normal(60)
    run = Run("run", Path("nowhere"), Table(np.arange(60) + 1, {"entropy/mean": entropy, "reward": reward}))
    assert law_section(run, Options(highest_reward=0.5)).result.verdict.codes == {"ceiling_too_high"}
    assert law_section(run, Options(highest_reward=1.0)).result.verdict.applies
