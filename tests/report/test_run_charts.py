import json
import re
from dataclasses import replace

import numpy as np
import plotly.graph_objects as go
import pytest

from openrlhf_cov.report.contents import Options
from openrlhf_cov.report.run_charts import RUN_CHARTS, bands_chart, law_chart, run_charts, theory_chart

OPTIONS = Options()


@pytest.fixture(scope="module")
def report_of(make_contents, make_report_run):
    """Function (fields of a run) -> its report."""

    def make(**fields):
        return make_contents(make_report_run("run", **fields), forecast_share=0.2).runs[0]

    return make


def named(chart, name):
    return next(trace for trace in chart.traces if trace["name"] == name)


def test_every_chart_is_a_plotly_figure(report_of):
    charts = run_charts(report_of(), OPTIONS)
    assert [chart.name for chart in charts] == list(RUN_CHARTS)
    for chart in charts:  # the script puts in the page's colors
        text = json.dumps(chart.figure(), allow_nan=False)
        figure = json.loads(re.sub(r"var\(--(ink|faint|ground)\)", "#123456", text))
        assert go.Figure(figure["traces"], figure["layout"]).data


def test_a_run_with_reward_and_entropy_alone_has_the_law_alone(report_of):
    assert [chart.name for chart in run_charts(report_of(only=["reward", "entropy/mean"]), OPTIONS)] == ["law"]
    assert run_charts(report_of(only=["reward"]), OPTIONS) == []


def test_the_law_with_line_bands_ceiling_and_forecast(report_of):
    run = report_of()
    chart, fit = law_chart(run, OPTIONS), run.law.result.fit
    assert [trace["name"] for trace in chart.traces] == [
        *("interval", "interval", "steps", "interval of the forecast"),
        *("forecast of the first 12 points", "fitted line", "ceiling"),  # 20 % of 60
    ]
    ceiling = named(chart, "ceiling")
    assert (ceiling["x"], ceiling["y"]) == ([1], [pytest.approx(fit.ceiling.estimate, rel=1e-4)])
    reach = ceiling["y"][0] + ceiling["error_y"]["array"][0], ceiling["y"][0] - ceiling["error_y"]["arrayminus"][0]
    assert reach == pytest.approx((fit.ceiling.high, fit.ceiling.low), rel=1e-4)
    outer, inner = chart.traces[:2]
    assert max(outer["y"]) > max(inner["y"])
    line = named(chart, "forecast of the first 12 points")
    assert line["x"] == sorted(line["x"])
    predicted = run.law.forecast.fit.reward_at(np.log(line["x"]))
    np.testing.assert_allclose(line["y"], predicted, atol=1e-4)
    assert np.exp(run.law.forecast.later.entropy.max()) == pytest.approx(line["x"][-1], rel=1e-4)


def test_where_the_law_does_not_apply_nothing_promises_a_ceiling(report_of):
    run = report_of(method="kl_cov")
    assert run.law.result.fit is not None
    chart = law_chart(run, OPTIONS)
    assert [trace["name"] for trace in chart.traces] == ["steps", "fit, not to be relied on"]
    assert min(chart.traces[1]["x"]) >= np.exp(run.law.points.entropy.min())
    assert "does not apply" in chart.note
    assert "does not apply" in chart.description


def test_bands_are_logarithmic_unless_one_is_not_positive(report_of):
    run = report_of()
    chart = bands_chart(run)
    assert chart.layout["yaxis"]["type"] == "log"
    assert [trace["name"] for trace in chart.traces] == [
        *("top 0.02 %", "top 0.2 %", "top 2 %", "top 20 %", "top 50 %", "covariance, all tokens")
    ]
    falling = replace(run.series["cov/mean"], mean=-run.series["cov/mean"].mean)
    chart = bands_chart(replace(run, series={**run.series, "cov/mean": falling}))
    assert "type" not in chart.layout["yaxis"]
    assert "Logarithmic" not in chart.note


def test_theory_has_a_dot_per_pair_and_the_trend(report_of):
    run = report_of()
    first, second = (theory_chart(theory) for theory in run.theory)
    assert (first.name, second.name) == ("theorem1", "theorem2")
    assert len(named(first, "steps")["x"]) == 59 == run.theory[0].check.pairs
    # the prediction of the fixture is the change itself, of theorem 2 its negative
    assert named(first, "means of tenths")["y"] == sorted(named(first, "means of tenths")["y"])
    assert "Rank correlation 1.000 (1.000 to 1.000), 59 pairs" in first.note
    assert "Rank correlation -1.000" in second.note
    assert theory_chart(replace(run.theory[0], check=None)) is None


def test_accuracy_has_a_panel_for_responses_and_no_empty_one(report_of):
    chart = next(chart for chart in run_charts(report_of(), OPTIONS) if chart.name == "accuracy")
    assert [trace["name"] for trace in chart.traces] == ["hard (about 1 of 8 correct)", "easy (about 7 of 8)"]
    assert "yaxis2" not in chart.layout
    assert "Easy minus hard here, of responses: 0.0" in chart.note  # 0.08 - 0.02


def test_phases_are_stacked_and_told_apart_without_color(report_of):
    chart = next(chart for chart in run_charts(report_of(), OPTIONS) if chart.name == "phases")
    assert [trace["name"] for trace in chart.traces] == ["generation", "updates", "other"]
    assert chart.layout["barmode"] == "stack"
    assert len({trace["marker"]["pattern"]["shape"] for trace in chart.traces}) == 3
    assert {trace["marker"]["pattern"]["fillmode"] for trace in chart.traces} == {"overlay"}
    # 50, 30 and 100 - 80 seconds of 100
    assert chart.note == "Of all time: generation 50 %, updates 30 %, other 20 %."
