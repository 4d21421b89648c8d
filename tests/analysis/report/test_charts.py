"""Every chart of a report is drawn twice: in its page by Plotly, in its pictures by matplotlib."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import plotly.graph_objects as go
import pytest
from matplotlib import rc_context

from openrlhf_cov.analysis.pages.chart import Chart
from openrlhf_cov.analysis.pages.picture import SETTINGS, draw, save, write_pictures
from openrlhf_cov.analysis.pages.plot import figure
from openrlhf_cov.analysis.report import charts as module
from openrlhf_cov.analysis.report.charts import (
    curve_chart,
    detail_charts,
    evaluation_charts,
    law_charts,
    page_charts,
    size_ticks,
)
from openrlhf_cov.analysis.report.contents import Options
from openrlhf_cov.analysis.report.curves import GRADIENT, METHODS, OVERVIEW
from openrlhf_cov.analysis.table import Table

OPTIONS = Options()


@pytest.fixture(scope="module")
def three(make_contents, make_report_run):
    """Runs of which the law applies to the first."""
    runs = [make_report_run(name, seed=n, method=name) for n, name in enumerate(("none", "clip_cov", "kl_cov"))]
    return make_contents(*runs, sizes={"none": 1e9, "clip_cov": 3e9, "kl_cov": 7e9}, extrapolate_to=32e9)


@pytest.fixture(scope="module")
def report_of(make_contents, make_report_run):
    """Function (fields of a run) -> its report."""

    def make(**fields):
        return make_contents(make_report_run("run", **fields), forecast_share=0.2).runs[0]

    return make


def run_charts(run, options):
    """Every chart of one run."""
    return [*detail_charts(run), *law_charts(run, options)]


def pictures(contents):
    """The charts of the files by name."""
    return {chart.name: chart for chart in module.pictures(contents)}


def chart_named(name, charts):
    return next(chart for chart in charts if chart.name == name)


def marks_of(chart):
    return [mark for panel in chart.panels for mark in panel.marks]


def named(chart, name):
    return next(mark for mark in marks_of(chart) if mark.name == name)


def test_plotly_takes_every_chart(three):
    page = page_charts(three)
    assert [panel.title for panel in page.overview.panels] == [
        *("reward", "entropy (nats)", "response length (tokens)", "selected, of all trained tokens")
    ]
    assert [chart.name for chart in page.method] == ["selection", "methods", "gradient", "sampling"]
    assert [chart.name for chart in page.law] == ["law_of_all", "model_size"]
    of_a_run = run_charts(three.runs[0], OPTIONS)
    assert [chart.name for chart in of_a_run] == [
        *("bands", "accuracy", "phases", "law", "theorem1", "theorem2", "fall")
    ]
    charts = [page.overview, *page.method, page.scores, *page.numbers, *page.law, *of_a_run]
    for panel in [panel for chart in charts for panel in figure(chart)["panels"]]:
        # As the script of the page does. An unknown property is an error.
        found = json.loads(re.sub(r"var\(--\w+\)", "#123456", json.dumps(panel, allow_nan=False)))
        assert go.Figure(found["traces"], found["layout"]).data


@pytest.mark.slow
def test_matplotlib_draws_every_picture_and_clips_no_text(three, tmp_path):
    assert len(pictures(three)) == 14
    for name, chart in pictures(three).items():
        assert chart.name == name
        check_picture(chart, tmp_path)


def check_picture(chart, folder):
    with rc_context(SETTINGS):
        found = draw(chart)
        (path,) = save(found, folder / chart.name, ["png"])
        assert path.stat().st_size > 5000
        for shown in (*found.axes, *found.legends):
            box = shown.get_tightbbox()
            assert min(box.x0, box.y0) > -1, shown
            assert box.x1 < found.bbox.x1 + 1, shown
            assert box.y1 < found.bbox.y1 + 1, shown


def test_scores_end_at_one_and_lengths_at_zero(make_contents, make_report_run):
    run = make_report_run("run")
    run.training.columns["reward"][:] = np.linspace(0.5, 1.0, 60)
    run.training.columns["response_length"][:] = np.linspace(0.0, 60.0, 60)
    reward, entropy, length, *_ = curve_chart(make_contents(run), OVERVIEW).panels
    assert reward.y.shown(reward.values("y"))[1] == 1.0
    assert length.y.shown(length.values("y")) == (0.0, 63.0)
    assert entropy.y.possible[0] == 0.0
    run.training.columns["reward"][:] *= 2  # no share of correct responses
    reward = curve_chart(make_contents(run), OVERVIEW).panels[0]
    assert reward.y.shown(reward.values("y"))[1] > 2.0


@pytest.mark.slow
def test_any_name_can_be_drawn(make_contents, make_report_run, hostile, tmp_path):
    # a formula that is none, a letter that the font lacks (a warning, here an error), markup
    contents = make_contents(make_report_run(hostile, steps=60), make_report_run("$a_b^{c}$", seed=1, steps=60))
    charts = [pictures(contents)[name] for name in ("law", "coefficients", "reward_and_entropy")]
    assert len(write_pictures(charts, tmp_path, ["svg", "png"])) == 6


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 80])
def test_odd_values_are_drawn(make_contents, make_report_run, tmp_path, steps):
    # a constant reward, covariances that are 0, and a prediction that never changes; a run of one step
    run = make_report_run("run", steps=steps)
    columns = dict(run.training.columns)
    for name in ("reward", "cov/mean", "cov/top_2e-4", "entropy/delta_theorem1"):
        columns[name] = np.zeros(steps)
    contents = make_contents(replace(run, training=replace(run.training, columns=columns)))
    charts = [chart for chart in pictures(contents).values() if isinstance(chart, Chart)]
    names = {path.stem for path in write_pictures(charts, tmp_path, ["png"])}
    assert {"reward_and_entropy", "covariance_bands"} <= names
    assert ("entropy_change" in names) == (steps > 1)


# --- curves


def test_numbers_of_methods_are_drawn_whatever_their_names(make_contents, make_report_run):
    own, unknown = ["control/value", "method/one/share"], ["control/", "control/of_somebody_else"]
    one, other = (
        make_report_run("one", only=["reward", *own, *unknown]),
        make_report_run("other", only=["reward", own[0]]),
    )
    contents = make_contents(one, other)
    panels = curve_chart(contents, METHODS).panels
    assert {panel.title: [mark.name for mark in panel.marks if mark.name] for panel in panels} == {
        "value of what is controlled": ["one", "other"],
        "one/share": ["one"],
    }
    assert curve_chart(contents, GRADIENT) is None
    logged = make_contents(make_report_run("run", only=["reward", "gradient/norm", "gradient/zero_frac"]))
    shown = [(panel.title, panel.y.share) for panel in curve_chart(logged, GRADIENT).panels]
    assert shown == [("norm of the gradient", False), ("tokens with k = 0", True)]


def test_scores_come_before_other_numbers_of_evaluations(make_contents, make_report_run):
    names = ("a/length", "z/pass@4", "eval/b/avg@8", "greedy/c", "greedy")
    run = make_report_run("run", evaluations=Table(np.array([1, 2]), {name: np.array([0.1, 0.2]) for name in names}))
    scores, numbers = evaluation_charts(make_contents(run))
    # The scores of parts, greedy/c of greedy, come after the others.
    assert [panel.title for panel in scores.panels] == ["z/pass@4", "eval/b/avg@8", "greedy"]
    assert [chart.title for chart in numbers] == ["greedy/c", "a/length"]


# --- the law


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


def test_ticks_of_sizes():
    assert size_ticks(1e9, 12e9) == [1e9, 2e9, 5e9, 1e10]
    assert size_ticks(0.4e9, 0.6e9) == [0.4e9, 0.6e9]  # 0.5e9 alone is too few
    assert all(math.isclose(a, b) for a, b in zip(size_ticks(5e8, 5e9), [5e8, 1e9, 2e9, 5e9], strict=True))


# --- one run


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
    (panel,) = pictures(make_contents(run))["timing"].panels
    # 95 % of the steps take 100 s, so that 1.6 times as much is shown
    assert panel.y.ends == (0.0, pytest.approx(160.0, rel=1e-9))
    assert panel.said == "up to 5.03e+03 s, cut"
