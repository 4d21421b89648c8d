import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_cov.evaluation.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, length_histogram, pass_curve
from openrlhf_cov.utils.estimates import Interval

SCORES = {1: Interval(0.25, 0.0, 0.5, 0.95), 2: Interval(0.5, 0.25, 0.75, 0.95), 4: Interval(1.0, 0.5, 1.0, 0.95)}


def find(svg, tag, kind):
    return [node for node in ElementTree.fromstring(svg).iter(tag) if node.get("class") == kind]


def points(node):
    return [tuple(map(float, pair.split(","))) for pair in node.get("points").split()]


def test_the_curve_goes_through_the_scores():
    # k = 1, 2, 4 at the left, in the middle and at the right; 0 % at the bottom, 100 % at the top
    middle, height = (LEFT + RIGHT) / 2, BOTTOM - TOP
    svg = pass_curve(SCORES)
    (curve,), (band,) = find(svg, "polyline", "curve"), find(svg, "polygon", "band")
    assert points(curve) == [(LEFT, BOTTOM - height / 4), (middle, BOTTOM - height / 2), (RIGHT, TOP)]
    high = [(LEFT, BOTTOM - height / 2), (middle, BOTTOM - 3 * height / 4), (RIGHT, TOP)]
    low = [(LEFT, BOTTOM), (middle, BOTTOM - height / 4), (RIGHT, BOTTOM - height / 2)]
    assert points(band) == [*high, *low[::-1]]
    assert [node.text for node in find(svg, "text", "value")] == ["25.0", "100.0"]
    assert "pass@4: 100.0 % (50.0 to 100.0)" in svg


def test_one_point_is_a_curve_too():
    (curve,) = find(pass_curve({1: SCORES[1]}), "polyline", "curve")
    assert len(points(curve)) == 1


@pytest.fixture(scope="module")
def responses_of(make_evaluation):
    """Function ({tokens: truncated}) -> responses."""

    def make(lengths):
        first = make_evaluation({"aime24": ["1"]}).responses[0]
        return [replace(first, tokens=tokens, truncated=cut) for tokens, cut in lengths]

    return make


def test_bars_count_responses_and_mark_the_truncated(responses_of):
    # 240 rounds up to 250: 24 bins of 10.42 tokens, 5 and 9 in the first, 240 in the last, which starts at 239.6
    svg = length_histogram(responses_of([(5, False), (9, False), (240, True), (240, False)]))
    titles = [node.text for node in ElementTree.fromstring(svg).iter("title")]
    assert titles == [
        "0 to 10 tokens: 2 responses, 0 truncated",
        "240 to 250 tokens: 2 responses, 1 truncated",
    ]
    full, half = find(svg, "rect", "finished")
    (cut,) = find(svg, "rect", "truncated")
    assert float(full.get("height")) == BOTTOM - TOP
    assert float(half.get("height")) == float(cut.get("height")) == (BOTTOM - TOP) / 2
    assert float(cut.get("y")) == TOP  # on top of the others


@given(
    lengths=st.lists(st.tuples(st.integers(0, 10**6), st.booleans()), min_size=1, max_size=20),
    scores=st.lists(st.tuples(*[st.floats(0, 1)] * 3).map(sorted), min_size=1, max_size=7),
)
def test_everything_stays_inside_of_the_picture(responses_of, lengths, scores):
    curve = pass_curve({2**n: Interval(middle, low, high, 0.95) for n, (low, middle, high) in enumerate(scores)})
    for svg in (curve, length_histogram(responses_of(lengths))):
        root = ElementTree.fromstring(svg)
        assert root.get("viewBox") == f"0 0 {WIDTH} {HEIGHT}"
        for node in root.iter():
            for name, limit in (("x", WIDTH), ("y", HEIGHT), ("cx", WIDTH), ("cy", HEIGHT)):
                assert 0 <= float(node.get(name, 0)) <= limit
    bars = [node for node in ElementTree.fromstring(svg).iter("rect")]
    assert sum(float(bar.get("height")) for bar in bars) > 0
