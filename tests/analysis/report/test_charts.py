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
from openrlhf_cov.analysis.report.charts import curve_chart, evaluation_charts, page_charts, size_ticks
from openrlhf_cov.analysis.report.contents import Options
from openrlhf_cov.analysis.report.curves import GRADIENT, METHODS, OVERVIEW
from openrlhf_cov.analysis.report.run_charts import detail_charts, law_charts
from openrlhf_cov.analysis.table import Table


@pytest.fixture(scope="module")
def three(make_contents, make_report_run):
    """Runs of which the law applies to the first."""
    runs = [make_report_run(name, seed=n, method=name) for n, name in enumerate(("none", "clip_cov", "kl_cov"))]
    return make_contents(*runs, sizes={"none": 1e9, "clip_cov": 3e9, "kl_cov": 7e9}, extrapolate_to=32e9)


def pictures(contents):
    """The charts of the files by name."""
    return {chart.name: chart for chart in module.pictures(contents)}


@pytest.mark.slow
def test_plotly_takes_every_chart(three):
    page = page_charts(three)
    assert [panel.title for panel in page.overview.panels] == [
        *("reward", "entropy (nats)", "response length (tokens)", "selected, of all trained tokens")
    ]
    assert [chart.name for chart in page.method] == ["selection", "methods", "gradient", "sampling"]
    assert [chart.name for chart in page.law] == ["law_of_all", "model_size"]
    of_a_run = [*detail_charts(three.runs[0]), *law_charts(three.runs[0], Options())]
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


@pytest.mark.slow
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


def test_ticks_of_sizes():
    assert size_ticks(1e9, 12e9) == [1e9, 2e9, 5e9, 1e10]
    assert size_ticks(0.4e9, 0.6e9) == [0.4e9, 0.6e9]  # 0.5e9 alone is too few
    assert all(math.isclose(a, b) for a, b in zip(size_ticks(5e8, 5e9), [5e8, 1e9, 2e9, 5e9], strict=True))
