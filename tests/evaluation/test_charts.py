from dataclasses import replace

import pytest

from openrlhf_cov.evaluation.evaluation_page import length_histogram, pass_curve
from openrlhf_cov.utils.estimates import Interval

SCORES = {1: Interval(0.25, 0.0, 0.5, 0.95), 2: Interval(0.5, 0.25, 0.75, 0.95), 4: Interval(1.0, 0.5, 1.0, 0.95)}


def test_the_curve_goes_through_the_scores():
    chart = pass_curve("pass0", SCORES)
    band, curve = chart.panels[0].marks
    assert (curve.x, curve.y) == ([0, 1, 2], [0.25, 0.5, 1.0])
    assert (band.low, band.high) == ([0.0, 0.25, 0.5], [0.5, 0.75, 1.0])
    assert chart.panels[0].x.ticks == {0: "1", 1: "2", 2: "4"}
    assert curve.texts[2] == "pass@4: 100.0 % (50.0 to 100.0)"
    assert "pass@1 25.0 %, pass@2 50.0 %, pass@4 100.0 %" in chart.note
    assert chart.panels[0].y.ends == (0.0, 1.0)


@pytest.fixture(scope="module")
def responses_of(make_evaluation):
    """Function ({tokens: truncated}) -> responses."""

    def make(lengths):
        first = make_evaluation({"aime24": ["1"]}).responses[0]
        return [replace(first, tokens=tokens, truncated=cut) for tokens, cut in lengths]

    return make


def test_bars_count_responses_and_mark_the_truncated(responses_of):
    # 24 bins of 10 tokens: 5 and 9 in the first, 240 in the last
    chart = length_histogram("lengths0", responses_of([(5, False), (9, False), (240, True), (240, False)]))
    finished, cut = chart.panels[0].marks
    assert (finished.name, finished.y.tolist()) == ("finished", [2, *[0] * 22, 1])
    assert (cut.name, cut.y.tolist()) == ("truncated", [*[0] * 23, 1])
    assert (finished.texts[0], finished.texts[-1]) == ("0 to 10 tokens", "230 to 240 tokens")
    assert "25.0% truncated" in chart.note
    only = length_histogram("lengths0", responses_of([(5, False)]))
    assert [mark.name for mark in only.panels[0].marks] == ["finished"]
    assert "truncated" not in only.note
