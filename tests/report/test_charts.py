import json
import math
import re

import numpy as np
import plotly.graph_objects as go
import pytest

from openrlhf_cov.analysis.table import Table
from openrlhf_cov.report.charts import (
    curve_charts,
    evaluation_charts,
    law_chart,
    missing_charts,
    size_chart,
    size_ticks,
)


def drawn(chart):
    """The figure as Plotly takes it: an unknown property is an error; the script puts in the page's colors."""
    text = json.dumps(chart.figure(), allow_nan=False)
    figure = json.loads(re.sub(r"var\(--(ink|faint|ground)\)", "#123456", text))
    return go.Figure(figure["traces"], figure["layout"])


@pytest.fixture(scope="module")
def three(make_contents, make_report_run):
    runs = [make_report_run(name, seed=n, method=name) for n, name in enumerate(("none", "clip_cov", "kl_cov"))]
    return make_contents(*runs, sizes={"none": 1e9, "clip_cov": 3e9, "kl_cov": 7e9}, extrapolate_to=32e9)


def by_name(charts):
    return {chart.name: chart for chart in charts}


def test_every_chart_is_a_plotly_figure(three):
    charts = [*curve_charts(three), law_chart(three), *evaluation_charts(three.runs), size_chart(three)]
    names = [chart.name for chart in charts]
    assert names == [
        *("reward_and_entropy", "selection", "sampling", "response_length", "law_of_all", "evaluation0", "size")
    ]
    for chart in charts:
        assert drawn(chart).data


def test_a_line_per_run_and_panel_in_the_order_of_the_runs(three):
    chart = by_name(curve_charts(three))["reward_and_entropy"]
    lines = [trace for trace in chart.traces if trace.get("hoverinfo") != "skip"]
    assert [(trace["name"], trace["yaxis"]) for trace in lines] == [
        (name, axis) for name in ("none", "clip_cov", "kl_cov") for axis in ("y", "y2")
    ]
    assert [trace["legendgroup"] for trace in lines[::2]] == ["run0", "run1", "run2"]
    assert len({trace["line"]["dash"] for trace in lines}) == 3
    assert chart.linked
    values = three.runs[1].series["reward"]
    assert lines[2]["x"] == values.steps.tolist()
    np.testing.assert_allclose(lines[2]["y"], values.mean, rtol=5e-5)


def test_a_label_of_all_runs_at_a_step_for_few_runs(make_contents, make_report_run):
    runs = [make_report_run(f"r{n}", seed=n) for n in range(6)]
    modes = [curve_charts(make_contents(*runs[:count]))[0].layout["hovermode"] for count in (1, 2, 5, 6)]
    assert modes == ["closest", "x unified", "x unified", "closest"]


def test_single_values_are_drawn_for_few_runs(make_contents, make_report_run):
    def faint(count):
        runs = [make_report_run(f"r{n}", steps=90, seed=n) for n in range(count)]
        return [trace for trace in curve_charts(make_contents(*runs))[0].traces if trace.get("hoverinfo") == "skip"]

    assert (len(faint(4)), len(faint(5))) == (8, 0)


def test_a_column_that_no_run_has_is_no_panel(make_contents, make_report_run):
    contents = make_contents(make_report_run("a", only=["reward", "entropy/mean"]))
    assert list(by_name(curve_charts(contents))) == ["reward_and_entropy"]
    assert missing_charts(contents) == [
        "Tokens that the covariance method restrains",
        "Dynamic sampling",
        "Response length",
    ]
    assert evaluation_charts(contents.runs) == []


def test_selection_is_shown_where_something_was_selected(make_contents, make_report_run):
    none, kl_cov = make_report_run("none"), make_report_run("kl_cov", method="kl_cov")
    assert "selection" not in by_name(curve_charts(make_contents(none)))
    both = by_name(curve_charts(make_contents(none, kl_cov)))["selection"]
    # the share of both runs, the KL of one; no run has the log-ratio
    lines = [trace for trace in both.traces if trace.get("hoverinfo") != "skip"]
    assert [(trace["name"], trace["yaxis"]) for trace in lines] == [
        *[("none", "y"), ("kl_cov", "y"), ("kl_cov", "y2")]
    ]


def test_the_law_of_all_has_lines_where_it_applies(three):
    lines = [trace["name"] for trace in law_chart(three).traces if trace["mode"] == "lines"]
    assert [run.law.result.verdict.applies for run in three.runs] == [True, False, False]
    assert lines == ["none"]
    line = next(trace for trace in law_chart(three).traces if trace["mode"] == "lines")
    ceiling = three.runs[0].law.result.fit.ceiling.estimate
    assert (line["x"][0], line["y"][0]) == (1, pytest.approx(ceiling, rel=1e-4))
    dots = law_chart(three).traces[0]
    np.testing.assert_allclose(np.log(dots["x"]), three.runs[0].law.points.entropy, atol=1e-4)


def test_no_points_no_law(make_contents, make_report_run):
    assert law_chart(make_contents(make_report_run("a", only=["reward"]))) is None


def test_scores_come_before_other_numbers_of_evaluations(make_contents, make_report_run):
    columns = {name: np.array([0.1, 0.2]) for name in ("a/length", "z/pass@4", "eval/b/avg@8")}
    run = make_report_run("<i>", evaluations=Table(np.array([1, 2]), columns))
    charts = evaluation_charts(make_contents(run).runs)
    assert [chart.title for chart in charts] == ["eval/b/avg@8", "z/pass@4", "a/length"]
    assert [chart.name for chart in charts] == ["evaluation0", "evaluation1", "evaluation2"]
    assert charts[0].traces[0]["name"] == "&lt;i&gt;"


def test_the_trend_in_size(three):
    chart = size_chart(three)
    named = [trace for trace in chart.traces if "text" in trace and trace["mode"] == "markers"]
    assert [trace["yaxis"] for trace in named] == ["y", "y2", "y3"]
    assert named[0]["text"] == ["none, 1B", "clip_cov, 3B", "kl_cov, 7B"]
    fits = [run.law.result.fit for run in three.runs]
    np.testing.assert_allclose(named[2]["y"], [fit.ceiling.estimate for fit in fits], rtol=1e-4)
    # hollow: the runs to which the law does not apply
    assert [[symbol.endswith("-open") for symbol in trace["marker"]["symbol"]] for trace in named] == [
        [False, True, True]
    ] * 3
    assert "Hollow: the law does not apply" in chart.note
    beyond = [trace for trace in chart.traces if trace.get("marker", {}).get("symbol") == "star"]
    assert [trace["x"] for trace in beyond] == [[32e9]] * 3
    assert sum(trace.get("fill") == "toself" for trace in chart.traces) == 3


def test_two_sizes_have_no_band(make_contents, make_report_run):
    runs = [make_report_run("a"), make_report_run("b", seed=1)]
    chart = size_chart(make_contents(*runs, sizes={"a": 1e9, "b": 2e9}))
    assert not any("fill" in trace for trace in chart.traces)
    assert size_chart(make_contents(*runs, sizes={"a": 1e9})) is None
    assert size_chart(make_contents(*runs)) is None


def test_ticks_of_sizes():
    assert size_ticks(1e9, 12e9) == [1e9, 2e9, 5e9, 1e10]
    assert size_ticks(0.4e9, 0.6e9) == [0.4e9, 0.6e9]  # 0.5e9 alone is too few
    assert all(math.isclose(a, b) for a, b in zip(size_ticks(5e8, 5e9), [5e8, 1e9, 2e9, 5e9], strict=True))
