"""Panels are drawn by plotext itself; only the colors are left out of what is compared."""

import numpy as np
import pytest
from rich.text import Text
from textual_plotext.plot import Plot

from openrlhf_cov.analysis.pages.chart import INK, Axis, Look, Mark, Panel, bands
from openrlhf_cov.analysis.pages.terminal_plot import draw_panel

STEP = Axis("step", whole=True)
BLUE = Look("#56b4e9")


def line(values, *, x=None, look=BLUE, name=""):
    return Mark("line", look, np.arange(1, len(values) + 1) if x is None else x, values, name=name)


def colored(panel, width=40, height=10):
    """The drawn panel with its colors."""
    plot = Plot()
    assert draw_panel(plot, panel, width, height)
    plot.plotsize(width, height)
    plot._set_size(width, height)
    plot.theme("clear")
    return Text.from_ansi(plot.build())


def drawn(*marks, y=None, x=STEP, width=40, height=10):
    return colored(Panel(marks, x, y or Axis()), width, height).plain.splitlines()


def y_labels(lines):
    return [line.partition("┤")[0].strip() for line in lines if "┤" in line]


def is_braille(character):
    return "⠀" < character <= "⣿"


def test_a_line_goes_from_its_first_to_its_last_value():
    lines = drawn(line([0.0, 10.0]))
    inside = [text[6:] for text in lines[:-2]]
    columns = [min(place for place, each in enumerate(text) if is_braille(each)) for text in inside]
    # It rises, so it begins further to the right in higher rows.
    assert columns == sorted(columns, reverse=True)
    # At most (10 - 2) / 2 = 4 labels between 0 and 10: 4 apart, as five of them would be 2.5 apart.
    assert y_labels(lines) == ["8", "4", "0"]
    assert lines[-1].split()[:3] == ["step", "1", "2"]


def test_the_name_of_a_mark_stands_at_its_end():
    lines = drawn(line([1.0, 2.0], name="7"), line([2.0, 1.0], name="run"))
    ends = [text.rstrip()[-1] for text in lines if text.rstrip()[-1] in "7•"]
    # The first mark ends at the top, the other one at the bottom; a longer name has no room.
    assert ends == ["7", "•"]


def test_a_single_point_is_a_dot():
    assert "•" in "".join(drawn(line([3.0])))
    assert "•" not in "".join(drawn(line([3.0, 4.0])))


def test_a_logarithmic_axis_has_equal_steps_for_equal_ratios():
    lines = drawn(line([0.01, 1.0]), y=Axis(log=True), height=11)
    rows = [row for row, text in enumerate(lines) if "┤" in text]
    assert y_labels(lines) == ["1.00", "0.10", "0.01"]
    assert rows[1] - rows[0] == rows[2] - rows[1]
    # The line goes from the row of its first value to that of its last one.
    assert all(any(map(is_braille, lines[row])) for row in (rows[0], rows[2]))


def test_a_logarithmic_axis_with_a_zero_is_linear():
    assert y_labels(drawn(line([0.0, 10.0]), y=Axis(log=True))) == ["8", "4", "0"]


def test_values_that_are_not_finite_are_left_out():
    assert drawn(line([1.0, np.nan, np.inf, 3.0])) == drawn(line([1.0, 3.0], x=[1, 4]))


def test_dots_are_not_connected():
    found = "".join(drawn(Mark("dots", BLUE, [1, 2, 3], [1.0, 3.0, 2.0])))
    assert found.count("•") == 3
    assert not any(map(is_braille, found))


def test_colors_are_those_of_the_marks_and_of_the_terminal():
    spans = colored(Panel((line([1.0, 2.0]), line([2.0, 1.0], look=Look(INK))), STEP)).spans
    colors = {span.style.color.triplet for span in spans if span.style.color}
    # #56b4e9 is red 86, green 180 and blue 233; the color of the page stands for no color here.
    assert {tuple(color) for color in colors if color} == {(86, 180, 233)}


@pytest.mark.parametrize(
    ("marks", "width", "height"),
    [
        ((), 40, 10),
        ((line([]),), 40, 10),
        ((line([np.nan]),), 40, 10),
        (tuple(bands([1, 2], [0, 1], [2, 3], BLUE)), 40, 10),
        ((line([1.0, 2.0]),), 11, 10),
        ((line([1.0, 2.0]),), 40, 2),
    ],
)
def test_without_values_or_room_nothing_is_drawn(marks, width, height):
    assert not draw_panel(Plot(), Panel(marks, STEP), width, height)
