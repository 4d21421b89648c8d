"""Write the tables of docs/metrics.md, each below its ``<!-- metrics NAME -->``, from ``utils/metric_table.py``."""

import re
from pathlib import Path

from openrlhf_cov.utils.metric_table import TABLE, Definition

PAGE = Path(__file__).resolve().parents[1] / "docs" / "metrics.md"
PLACE = re.compile(r"(?<=<!-- metrics )(\w+) -->\n(?:\|.*\n)*")


def cells(row: Definition) -> dict[str, str]:
    """Return the cells of a row by heading.

    Titles of figures and the reduction over ranks are left out: a reader finds the first in the figures, and needs the
    second only to change the code.
    """
    condition = f"only with {row.only_with}: " if row.only_with else ""
    return {
        "name": ", ".join(f"`{name}`" for name in row.titles),
        "unit": row.unit,
        "what it is": condition + row.text,
        "expected": row.expected,
        "alert above": "" if row.limit is None else f"{row.limit:g}",
    }


def table(rows: tuple[Definition, ...]) -> str:
    """Markdown, without the columns that are empty in all rows."""
    lines = [cells(row) for row in rows]
    heads = [head for head in lines[0] if any(line[head] for line in lines)]
    texts = [heads, ["---"] * len(heads), *([line[head] for head in heads] for line in lines)]
    return "".join("| " + " | ".join(text) + " |\n" for text in texts).replace("|  |", "| |")


def rewritten(page: str) -> str:
    """The page with its tables as they should be."""
    return PLACE.sub(lambda match: f"{match[1]} -->\n{table(TABLE[match[1]])}", page)


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
