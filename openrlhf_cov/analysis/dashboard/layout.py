"""Which parts of the dashboard go where on a screen of a given size (pure)."""

from dataclasses import dataclass

WIDE, TALL = 110, 32
"""Columns and rows from which the panels stand beside the curves, in full, instead of a few lines below them."""
SIDE_WIDTH, SIDE_WIDTH_LARGE, LARGE = 46, 64, 170
CHART_WIDTHS = {4: 40, 2: 28, 1: 0}
"""Charts in a row -> columns that each of them needs."""
BESIDE_PANELS = 50
"""Columns that a chart needs for two in a row beside the panels; there, wide charts below each other read better."""
CHART_HEIGHT = 5
TEXT_LINES, TEXT_SHARE = 8, 3
"""Lines below the curves, at most, and at most a third of the screen."""
CHARTS = 4


@dataclass(frozen=True)
class Layout:
    """Whether the panels stand at the side and how wide, the lines below otherwise, and how many charts there are."""

    side: bool
    side_width: int
    text_lines: int
    charts: int
    charts_in_a_row: int


def layout(width: int, height: int, taken: int = 2) -> Layout:
    """For a terminal of ``width`` x ``height``, ``taken`` of its rows by headline, table, alerts and keys."""
    side = width >= WIDE and height >= TALL
    side_width = 0 if not side else SIDE_WIDTH_LARGE if width >= LARGE else SIDE_WIDTH
    text_lines = 0 if side else min(TEXT_LINES, height // TEXT_SHARE)
    if side:
        in_a_row = 2 if width - side_width >= 2 * BESIDE_PANELS else 1
    else:
        fitting = [count for count, needed in CHART_WIDTHS.items() if width >= count * needed]
        in_a_row = fitting[1] if fitting[0] == CHARTS and height >= TALL else fitting[0]
    rows = max(1, (height - taken - text_lines) // CHART_HEIGHT)
    return Layout(side, side_width, text_lines, min(CHARTS, in_a_row * rows), in_a_row)
