import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_cov.analysis.dashboard.app import CHART_HEIGHT, layout


@pytest.mark.parametrize(
    ("width", "height", "side", "charts", "in_a_row"),
    [
        (80, 24, 0, 4, 2),  # (24 - 2 - 8) / 5 = 2 rows
        (60, 16, 0, 2, 2),  # 16 - 2 - 5 = 9 rows: one of charts
        (200, 24, 0, 4, 4),
        (150, 40, 46, 4, 2),  # 104
        (1, 1, 0, 1, 1),
    ],
)
def test_layout(width, height, side, charts, in_a_row):
    found = layout(width, height)
    assert (found.side_width, found.charts, found.charts_in_a_row) == (side, charts, in_a_row)
    assert found.side == (side > 0)


@given(st.integers(1, 400), st.integers(1, 200), st.integers(2, 20))
def test_charts_fit_where_the_screen_is_not_tiny(width, height, taken):
    found = layout(width, height, taken)
    assert 1 <= found.charts <= 4
    rows = -(-found.charts // found.charts_in_a_row)
    assert rows == 1 or rows * CHART_HEIGHT + found.text_lines + taken <= height
