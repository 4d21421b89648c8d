"""Tables as lines of text, and durations as their cells."""

import math
from collections.abc import Collection, Sequence

from openrlhf_cov.utils.terminal import printable

# A cell without a value.
NONE = "-"
Row = tuple[str, ...]


def aligned(rows: Sequence[Row], left: Collection[int] = (0,)) -> list[str]:
    """Return the lines of a table whose columns have equal widths, two spaces apart.

    Args:
        rows: The cells of each row; all rows have equally many.
        left: Numbers, from 0, of the columns that are flush left. The others are flush right.
    """
    rows = [tuple(map(printable, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if number in left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def duration(seconds: float) -> str:
    """Return 3.5 s, 42 s, 12 min 5 s, 3 h 20 min or 2 d 4 h; "unknown" for NaN."""
    if not math.isfinite(seconds):
        return "unknown"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, size, below, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {unit}" + (f" {rest} {below}" if rest else "")
    return f"{whole} s"
