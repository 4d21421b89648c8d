import math
import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_cov.report import style
from openrlhf_cov.report.plotly_figure import (
    COLORS,
    INK,
    LONGEST_NAME,
    band,
    curve,
    line_of,
    numbers,
    panels,
    plain,
    rgba,
    running_means,
    short_names,
    step_numbers,
)
from openrlhf_cov.report.series import to_series


def test_numbers_have_five_digits_and_no_nan():
    assert numbers([1.23456789, 0.000123456789, math.nan, math.inf, -2.0]) == [1.2346, 0.00012346, None, None, -2.0]


def test_steps_stay_whole():
    assert step_numbers([1, 1234567, 2.5, math.nan]) == [1, 1234567, 2.5, None]
    assert all(isinstance(step, int) for step in step_numbers(np.array([1.0, 2.0])))


def test_plotly_shows_the_text_as_it_is():
    assert plain('<b>a</b> &lt; "q"') == '&lt;b&gt;a&lt;/b&gt; &amp;lt; "q"'


def test_long_names_lose_their_middle_and_stay_different():
    names = ["a" * 20 + str(n) + "b" * 20 for n in range(3)]
    assert short_names(["short", *names]) == [
        "short",
        "a" * 16 + "…" + "b" * 15,  # 16 + 1 + 15 = 32
        "a" * 14 + "…" + "b" * 13 + " (3)",  # 28 and the place
        "a" * 14 + "…" + "b" * 13 + " (4)",
    ]


@given(st.lists(st.text("ab", max_size=80), min_size=1, max_size=12, unique=True))
def test_short_names_differ(names):
    short = short_names(names)
    assert len(set(short)) == len(names)
    assert max(map(len, short)) <= LONGEST_NAME


def test_thirty_five_lines_can_be_told_apart():
    lines = [(line_of(place)["color"], line_of(place)["dash"]) for place in range(35)]
    assert len(set(lines)) == 35
    assert len({line_of(place)["dash"] for place in range(5)}) == 5  # in grey too


def test_runs_have_the_colors_of_the_pictures():
    pictures = [each.color.lower() for each in style.LINE_STYLES]
    assert [color.replace(INK, "#000000") for color in COLORS] == pictures


def test_a_curve_is_its_mean_with_faint_values_behind():
    series = to_series(range(300), np.arange(300.0))
    raw, mean = curve(series, "<b>", "run0", line_of(0), "y2")
    assert (raw["opacity"], raw["hoverinfo"], raw["showlegend"]) == (0.3, "skip", False)
    assert (raw["y"][:3], mean["y"][:3]) == ([0, 1, 2], [2.5, 3, 3.5])  # mean of 0 to 5, of 0 to 6, of 0 to 7
    assert {mean["yaxis"], raw["yaxis"]} == {"y2"}
    assert mean["name"] == "&lt;b&gt;"
    assert len(curve(series, "a", "run0", line_of(0), raw=False)) == 1


def test_running_means_in_words():
    short, long = to_series([1, 2], [3.0, 4.0]), to_series(range(300), np.arange(300.0))
    assert running_means([short], raw=True) == running_means([], raw=True) == ""
    assert running_means([short, long], raw=False) == "Lines are running means of up to 11 logged steps."
    assert running_means([long], raw=True) == (
        "Lines are running means of up to 11 logged steps, with the values behind."
    )


def test_a_short_curve_has_no_mean_and_a_point_is_a_dot():
    (line,) = curve(to_series([1, 2], [3.0, 4.0]), "a", "run0", line_of(0))
    assert (line["mode"], line["y"]) == ("lines", [3, 4])
    (dot,) = curve(to_series([1], [3.0]), "a", "run0", line_of(0))
    assert dot["mode"] == "markers"


def test_a_band_goes_along_the_top_and_back():
    (found,) = band([1, 2], [0, 1], [5, 6], "#0072b2", {"name": "b"}, 0.5)
    assert (found["x"], found["y"]) == ([1, 2, 2, 1], [5, 6, 1, 0])
    assert found["fillcolor"] == "rgba(0,114,178,0.5)"
    assert band([1, 2], [0, -math.inf], [5, 6], "#0072b2", {}) == band([], [], [], "#0072b2", {}) == []


def test_color_with_opacity():
    assert rgba("#ff0080", 0.25) == "rgba(255,0,128,0.25)"


@pytest.mark.parametrize("count", [1, 2, 3])
def test_panels_stand_one_below_the_other(count):
    layout = panels(["<t>"] * count, [False] * count)
    axes = [layout[name] for name in sorted(layout) if re.fullmatch(r"yaxis\d?", name)]
    domains = [axis["domain"] for axis in axes]
    assert len(domains) == count
    assert (domains[0][1], domains[-1][0]) == (1, pytest.approx(0, abs=1e-4))
    assert all(upper[0] > lower[1] for upper, lower in pairwise(domains))
    assert len({round(high - low, 3) for low, high in domains}) == 1
    assert layout["xaxis"]["anchor"] == ("y" if count == 1 else f"y{count}")
    assert {each["text"] for each in layout["annotations"]} == {"&lt;t&gt;"}


def test_shares_are_in_percent_and_never_negative():
    layout = panels(["a", ""], [True, False])
    assert (layout["yaxis"]["tickformat"], layout["yaxis"]["rangemode"]) == (".3~%", "nonnegative")
    assert "rangemode" not in layout["yaxis2"]
    assert len(layout["annotations"]) == 1
