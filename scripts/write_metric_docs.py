"""Write the tables of docs/metrics.md, each below its ``<!-- metrics NAME -->``.

The rows come from ``openrlhf_cov.utils.metric_table``.
"""

import re
from pathlib import Path

from openrlhf_cov.utils.metric_table import TABLE, Definition

PAGE = Path(__file__).resolve().parents[1] / "docs" / "metrics.md"
# A table and the sentence above it, which a table without a common condition lacks.
PLACE = re.compile(r"(?<=<!-- metrics )(\w+) -->\n(?:These exist only with .*\n\n)?(?:\|.*\n)*")
NUMBERED = re.compile(r"\w+/\w+_\d+")


def name_cell(names: list[str]) -> str:
    """Return the names of a row; of a numbered series only the first and the last."""
    quoted = [f"`{name}`" for name in names]
    if len(names) > 1 and all(map(NUMBERED.fullmatch, names)):
        return f"{quoted[0]} … {quoted[-1]}"
    return ", ".join(quoted)


def common_condition(rows: tuple[Definition, ...]) -> str:
    """Return the condition under which all rows of a table are logged; "" if they do not share one."""
    conditions = {row.only_with for row in rows}
    return conditions.pop() if len(conditions) == 1 else ""


def cells(row: Definition, *, with_condition: bool) -> dict[str, str]:
    """Return the cells of a row by heading.

    Titles of figures and the reduction over ranks are left out: a reader finds the first in the figures, and needs the
    second only to change the code.
    """
    condition = f"only with {row.only_with}: " if with_condition and row.only_with else ""
    alert = "" if row.limit is None else f"alert above {row.limit:g}"
    return {
        "name": name_cell(list(row.titles)),
        "unit": row.unit,
        "what it is": condition + row.text,
        "expected": "; ".join(filter(None, (row.expected, alert))),
    }


def table(rows: tuple[Definition, ...]) -> str:
    """Return a table in Markdown, without the columns that are empty in all rows, below what all rows need."""
    condition = common_condition(rows)
    lines = [cells(row, with_condition=not condition) for row in rows]
    heads = [head for head in lines[0] if any(line[head] for line in lines)]
    texts = [heads, *([line[head] for head in heads] for line in lines)]
    head, *body = ("| " + " | ".join(text) + " |\n" for text in texts)
    markdown = "".join([head, "|---" * len(heads) + "|\n", *body]).replace("|  |", "| |")
    return f"These exist only with {condition}.\n\n{markdown}" if condition else markdown


def rewritten(page: str) -> str:
    """The page with its tables as they should be."""
    return PLACE.sub(lambda match: f"{match[1]} -->\n{table(TABLE[match[1]])}", page)


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
