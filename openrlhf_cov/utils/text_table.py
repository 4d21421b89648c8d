"""Tables as lines of text."""

from collections.abc import Collection, Sequence

from openrlhf_cov.utils.terminal import printable

NONE = "-"
"""A cell without a value."""
Row = tuple[str, ...]


def aligned(rows: Sequence[Row], left: Collection[int] = (0,)) -> list[str]:
    """Lines of a table whose columns ``left`` are flush left and whose others are flush right."""
    rows = [tuple(map(printable, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if number in left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
