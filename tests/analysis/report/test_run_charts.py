"""The charts of one run: what they show of its law, the theorems, and its time."""

import numpy as np
import pytest

from openrlhf_cov.analysis.report.contents import Options
from openrlhf_cov.analysis.report.run_charts import detail_charts, law_charts

OPTIONS = Options()


@pytest.fixture(scope="module")
def report_of(make_contents, make_report_run):
    """Function (fields of a run) -> its report."""

    def make(**fields):
        return make_contents(make_report_run("run", **fields), forecast_share=0.2).runs[0]

    return make


def run_charts(run, options):
    """Every chart of one run."""
    return [*detail_charts(run), *law_charts(run, options)]


def chart_named(name, charts):
    return next(chart for chart in charts if chart.name == name)


def marks_of(chart):
    return [mark for panel in chart.panels for mark in panel.marks]


def named(chart, name):
    return next(mark for mark in marks_of(chart) if mark.name == name)


def test_the_law_with_line_bands_ceiling_and_forecast(report_of):
    run = report_of()
    chart, fit = chart_named("law", run_charts(run, OPTIONS)), run.law.result.fit
    assert [mark.name for mark in marks_of(chart)] == [
        *("95 % interval of a further point", "95 % interval of the line", "steps, late ones strong"),
        *("fitted line", "ceiling, R at H = 0", "", "forecast of the first 12 points"),  # 20 % of 60
    ]
    ceiling = named(chart, "ceiling, R at H = 0")
    assert (ceiling.x[0], ceiling.y[0]) == (1, fit.ceiling.estimate)
    assert (ceiling.low[0], ceiling.high[0]) == (fit.ceiling.low, fit.ceiling.high)
    outer, inner = marks_of(chart)[:2]
    assert (outer.high > inner.high).all()
    line = named(chart, "forecast of the first 12 points")
    assert line.x.tolist() == sorted(line.x)
    np.testing.assert_allclose(line.y, run.law.forecast.fit.reward_at(np.log(line.x)), rtol=1e-9)
    assert line.x[-1] == pytest.approx(np.exp(run.law.forecast.later.entropy.max()), rel=1e-9)
    assert chart.panels[0].said.startswith(f"a {fit.a.estimate:.3f}, b {fit.b.estimate:.3f}, ceiling ")


def test_where_the_law_does_not_apply_nothing_promises_a_ceiling(report_of):
    run = report_of(method="kl_cov")
    assert run.law.result.fit is not None
    chart = chart_named("law", run_charts(run, OPTIONS))
    assert [mark.name for mark in marks_of(chart)] == ["steps, late ones strong", "fit, not to be relied on"]
    assert min(marks_of(chart)[1].x) >= np.exp(run.law.points.entropy.min())
    assert "does not apply" in chart.note
    assert chart.panels[0].said == "the law does not apply: intervention"


def test_theory_has_a_dot_per_pair_and_the_trend(report_of):
    run = report_of()
    charts = run_charts(run, OPTIONS)
    first, second = chart_named("theorem1", charts), chart_named("theorem2", charts)
    assert len(named(first, "steps").x) == 59 == run.theory[0].check.pairs
    # the prediction of the fixture is the change itself, of theorem 2 its negative
    means = named(first, "means of tenths of the steps").y
    assert means.tolist() == sorted(means)
    assert first.panels[0].said == "rank correlation 1.000 [1.000, 1.000]"
    assert second.panels[0].said.startswith("rank correlation -1.000")
    assert first.note == "59 pairs of steps."


def test_the_fall_of_entropy_lies_over_its_covariance(report_of):
    # the covariance of the fixture is a hundredth of the fall that the next step measures
    [panel] = chart_named("fall", run_charts(report_of(), OPTIONS)).panels
    fall, covariance = panel.marks
    assert (fall.name, covariance.name) == ("−ΔH", "Cov(log π, π A), paper eq. 8")
    np.testing.assert_allclose(fall.y, covariance.y, atol=1e-12)
    np.testing.assert_array_equal(fall.x, covariance.x)
    assert np.abs(fall.y).max() == 1.0
    assert panel.said.startswith("rank correlation 1.000")


def test_phases_are_stacked_and_told_apart_without_color(report_of):
    chart = chart_named("phases", run_charts(report_of(), OPTIONS))
    marks = marks_of(chart)
    assert [mark.name for mark in marks] == ["generation", "updates", "other"]
    assert len({mark.look.hatch for mark in marks}) == 3
    # 50, 30 and 100 - 80 seconds of 100
    assert "generation 50 %, updates 30 %, other 20 %" in chart.note
    assert chart.panels[0].y.ends == (0.0, pytest.approx(105.0, rel=1e-9))


def test_a_step_that_dwarfs_the_others_is_cut(make_contents, make_report_run):
    run = make_report_run("run")
    run.training.columns["timing/generation"][0] = 5000.0
    [panel] = chart_named("phases", detail_charts(make_contents(run).runs[0])).panels
    # 95 % of the steps take 100 s, so that 1.6 times as much is shown
    assert panel.y.ends == (0.0, pytest.approx(160.0, rel=1e-9))
    assert panel.said == "up to 5.03e+03 s, cut"
