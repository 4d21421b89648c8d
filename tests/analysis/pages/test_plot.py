import math

import numpy as np
import pytest

from openrlhf_cov.analysis.pages.chart import INK, Axis, Chart, Look, Mark, Panel, bands
from openrlhf_cov.analysis.pages.plot import figure, numbers, plain

LINE = Mark("line", Look(INK, "dash", "square"), [1, 2], [3.0, 4.0], name="<b>", group="run0", hover="%{y}")


def drawn(*marks, x=None, y=None, **chart):
    panel = Panel(marks, x or Axis("step"), y or Axis())
    (found,) = figure(Chart("name", "title", (panel,), **chart))["panels"]
    return found


def test_numbers_have_five_digits_and_no_nan():
    assert numbers([1.23456789, 0.000123456789, math.nan, math.inf, -2.0]) == [1.2346, 0.00012346, None, None, -2.0]


def test_plotly_shows_the_text_as_it_is():
    assert plain('<b>a</b> &lt; "q"') == '&lt;b&gt;a&lt;/b&gt; &amp;lt; "q"'
    (trace,) = drawn(Mark("dots", Look("red"), [1], [2], name="<i>", texts=["<b>"]))["traces"]
    assert (trace["name"], trace["customdata"]) == ("&lt;i&gt;", ["&lt;b&gt;"])
    assert drawn(LINE, y=Axis("<t>"))["layout"]["yaxis"]["title"]["text"] == "&lt;t&gt;"


def test_a_line_has_its_look_and_is_interrupted_by_nan():
    (trace,) = drawn(Mark("line", LINE.look, [1, 2, 3], [3.0, np.nan, 4.0], name="a"))["traces"]
    assert trace["y"] == [3.0, None, 4.0]
    assert trace["line"] == {"color": INK, "dash": "dash", "width": 2.0}
    assert (trace["mode"], trace["hoverinfo"]) == ("lines+markers", "skip")
    assert "showlegend" not in trace


def test_a_band_goes_along_the_top_and_back():
    (trace,) = drawn(*bands([1, 2], [0, 1], [5, 6], Look("#0072b2", opacity=0.5), name="b"))["traces"]
    assert (trace["x"], trace["y"]) == ([1, 2, 2, 1], [5, 6, 1, 0])
    assert (trace["fillcolor"], trace["opacity"], trace["showlegend"]) == ("#0072b2", 0.5, False)


@pytest.mark.parametrize("along", ["x", "y"])
def test_dots_have_whiskers_and_may_be_hollow(along):
    one = np.array([1.0])
    mark = Mark("dots", Look("red", marker="diamond", hollow=True), one, one, one - 0.5, one + 2.0, whiskers=along)
    (trace,) = drawn(mark)["traces"]
    error = trace[f"error_{along}"]
    assert (error["arrayminus"], error["array"], trace["marker"]["symbol"]) == ([0.5], [2.0], "diamond-open")
    (trace,) = drawn(Mark("dots", Look("red"), one, one, one * np.nan, one * np.nan))["traces"]
    assert f"error_{along}" not in trace  # no interval
