import numpy as np
import pytest

from openrlhf_cov.analysis.dashboard.curve_panels import COLORS, NumberedCurve, View, curve_panel, smoothed
from openrlhf_cov.analysis.dashboard.state import RunCurve


def curve(number: int, *values: float) -> NumberedCurve:
    """The rewards of a run, a step for each."""
    steps = np.arange(1.0, len(values) + 1)
    return NumberedCurve(number, RunCurve("reward", steps, np.array(values)))


def test_a_panel_has_a_line_per_run_and_the_newest_value_of_the_selected_one():
    panel = curve_panel("reward", [curve(1, 0.25, 0.5), curve(0, 0.125)], View(), has_numbers=True)
    assert panel.title == "reward: 0.5"
    assert panel.x.title == "step"
    # The selected run comes last, over the other one.
    assert [mark.name for mark in panel.marks] == ["1", "2"]
    assert [mark.look.color for mark in panel.marks] == list(COLORS[:2])
    assert panel.marks[1].values("x").tolist() == [1, 2]
    assert panel.marks[1].values("y").tolist() == [0.25, 0.5]


@pytest.mark.parametrize(("number", "name"), [(8, "9"), (9, "•")])
def test_a_number_of_two_digits_is_a_dot(number, name):
    [mark] = curve_panel("reward", [curve(number, 0.5)], View(), has_numbers=True).marks
    assert mark.name == name


def test_a_single_run_has_no_number():
    [mark] = curve_panel("reward", [curve(0, 0.5)], View(), has_numbers=False).marks
    assert mark.name == ""


@pytest.mark.parametrize(
    ("least", "view", "note", "is_log"),
    [
        (0.25, View(log=True), " (log)", True),
        (0.0, View(log=True), " (not above 0: no log)", False),
        (0.25, View(log=True, smooth=True), " (log) (smoothed)", True),
        (0.25, View(), "", False),
    ],
)
def test_the_title_says_how_values_are_shown(least, view, note, is_log):
    panel = curve_panel("reward", [curve(0, least, 0.5)], view, has_numbers=False)
    assert panel.title == f"reward: 0.5{note}"
    assert panel.y.log == is_log


def test_smoothed_values_are_drawn_under_the_newest_logged_one():
    panel = curve_panel("reward", [curve(0, 1, 2, 6, 4, 2, 9)], View(smooth=True), has_numbers=False)
    assert panel.title == "reward: 9 (smoothed)"
    # the last is the mean of its window of 3: (4 + 2 + 9) / 3 values and no more
    assert panel.marks[0].values("y")[-1] == pytest.approx(5, rel=1e-12)


def test_without_curves_the_title_is_that_of_the_metric():
    panel = curve_panel("response_length", [], View(), has_numbers=False)
    assert (panel.title, panel.marks) == ("response length (tokens)", ())


def test_smoothing_by_hand():
    # five points: at the ends what there is of the window
    np.testing.assert_allclose(smoothed(np.array([1.0, 2, 6, 4, 2, 9])), [3, 13 / 4, 3, 23 / 5, 21 / 4, 5], rtol=1e-12)
    assert smoothed(np.array([3.0])).tolist() == [3.0]


def test_the_window_grows_with_the_run():
    spike = np.zeros(400)
    spike[200] = 21.0
    found = smoothed(spike)  # 400 / 20 = 20 points, 10 to each side and the middle
    np.testing.assert_allclose(found[189:212], [0, *[1] * 21, 0], atol=1e-12)
