"""Pieces of HTML with their texts escaped (pure)."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from openrlhf_cov.report.plotly_figure import Chart

LONG_HEADING = 12
"""Characters of a row's heading beyond which it gets more room, and breaks."""


@dataclass(frozen=True)
class Cell:
    """Text of a table and what it is sorted by: a number, NaN last, or the text."""

    text: str
    value: float | str | None = None
    kind: str = ""

    @property
    def key(self) -> str:
        if isinstance(self.value, float | int):
            return "" if math.isnan(self.value) else repr(float(self.value))
        return self.text if self.value is None else self.value


def table(head: Sequence[str], rows: Iterable[Sequence[Cell]], caption: str, *, sorts: bool = False) -> str:
    """A table that scrolls inside of itself; the first cell of a row is its heading."""
    names = [f'<button type="button">{escape(name)}</button>' if sorts else escape(name) for name in head]
    top = "".join(f'<th scope="col">{name}</th>' for name in names)
    body = "\n".join(f"<tr>{''.join(_cell(cell, place) for place, cell in enumerate(row))}</tr>" for row in rows)
    return (
        f'<p class="note">{escape(caption)}</p><div class="scroll" role="region" aria-label="{escape(caption)}" '
        f'tabindex="0"><table><thead><tr>{top}</tr></thead><tbody>\n{body}</tbody></table></div>'
    )


def _cell(cell: Cell, place: int) -> str:
    tag = 'th scope="row"' if place == 0 else "td"
    kinds = " ".join(filter(None, [cell.kind, "long" if place == 0 and len(cell.text) > LONG_HEADING else ""]))
    kind = f' class="{kinds}"' if kinds else ""
    return f'<{tag}{kind} data-value="{escape(cell.key)}">{escape(cell.text)}</{tag[:2]}>'


def paragraphs(lines: Iterable[str], kind: str = "note") -> str:
    return "\n".join(f'<p class="{kind}">{prose(line)}</p>' for line in lines)


def prose(text: str) -> str:
    """Text to be wrapped, escaped, in which a number stays with its percent sign."""
    return escape(text).replace(" %", "&nbsp;%")


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Names and values."""
    return "".join(f"<dt>{escape(name)}</dt><dd>{prose(value)}</dd>" for name, value in pairs)


def items(lines: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"


def folded(summary: str, body: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


def section(name: str, title: str, body: str) -> str:
    """A section whose HTML id is ``name``."""
    head = f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{escape(title)}</h2>'
    return f"{head}\n{body}\n</section>"


def chart_frame(chart: Chart, *, shared_legend: bool = False, controls: str = "") -> str:
    """Where the script draws a chart; with ``shared_legend`` its lines are those of the page's legend of runs."""
    return figure_frame(
        chart.name,
        chart.title,
        chart.description,
        chart.note,
        chart.wide,
        shared_legend=shared_legend,
        controls=controls,
    )


def figure_frame(
    name: str,
    title: str,
    description: str = "",
    note: str = "",
    wide: bool = False,
    *,
    shared_legend: bool = False,
    controls: str = "",
) -> str:
    shared = ' data-shared="true"' if shared_legend else ""
    return (
        f'<figure id="chart-{name}"{" class=full" if wide else ""}><h3>{escape(title)}</h3>{controls}'
        f'<div class="legend"></div><div class="plot" role="img" aria-label="{escape(description)}"{shared}></div>'
        f"<figcaption>{escape(note)}</figcaption></figure>"
    )
