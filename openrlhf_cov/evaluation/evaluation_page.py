"""``report.html`` of an evaluation: one page with scores, charts and every problem, without other files."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import numpy as np

from openrlhf_cov.analysis.pages.chart import Axis, Chart, Look, Mark, Panel, bands, color_of
from openrlhf_cov.analysis.pages.html import Cell, render
from openrlhf_cov.analysis.pages.plot import figure
from openrlhf_cov.evaluation import tables
from openrlhf_cov.evaluation.response_records import Response
from openrlhf_cov.evaluation.samples import BenchmarkSamples
from openrlhf_cov.evaluation.summary import Summary
from openrlhf_cov.evaluation.tables import percent, percent_interval
from openrlhf_cov.utils.estimates import LEVEL, Interval

# Characters of response text in one page; 7,500 responses of 8,192 tokens would be some 200 million.
TEXT_BUDGET = 20_000_000
HIGHLIGHTS = 10
# Bins of the histogram of lengths, and pixels of a chart.
BINS = 24
HEIGHT = 240
SCRIPTS = ("evaluation.js",)
SAMPLE_FIELDS = ("answer", "status", "correct", "truncated", "tokens", "surprisal")


def evaluation_page(summary: Summary, samples: Sequence[BenchmarkSamples], budget: int = TEXT_BUDGET) -> str:
    """Return the page of an evaluation as HTML.

    Args:
        summary: Scores and counts of the run.
        samples: The responses of each benchmark, in the order of ``summary.benchmarks``.
        budget: Most characters of responses in the page. Long responses lose their middle if all together have more.
    """
    kind, highlights = choose_highlights(samples)
    lengths = [len(response.text) for each in samples for response in each.responses]
    limit = text_limit(lengths, budget)
    cards = []
    for place, (scores, each) in enumerate(zip(summary.benchmarks, samples, strict=True)):
        charts = [pass_curve(f"pass{place}", scores.pass_at_k)] if scores.samples > 1 else []
        charts.append(length_histogram(f"lengths{place}", each.responses))
        cards.append({"name": scores.name, "title": scores.title, "charts": charts})
    data = {
        "charts": {chart.name: figure(chart) for card in cards for chart in card["charts"]},
        "benchmarks": [each.settings.name for each in samples],
        "highlights": highlights,
        "problems": [
            asdict(item.problem) | {"samples": [_sample(response, limit) for response in item.responses]}
            for each in samples
            for item in each.items
        ],
    }
    graders = tables.grader_rows(summary)
    return render(
        "evaluation.html",
        data,
        SCRIPTS,
        how=summary.settings,
        settings=tables.setting_rows(summary),
        scores=_table(tables.SCORES, tables.score_rows(summary), "Scores in percent", main="avg@K"),
        graders=_table(tables.GRADERS, graders, "Both graders") if graders else None,
        counts=_table(tables.COUNTS, tables.count_rows(summary), "How grading went, and what it cost"),
        notes=tables.notes(summary),
        footnotes=tables.FOOTNOTES,
        cards=cards,
        highlights_title=kind,
        highlights_hint=_HINTS[kind] if highlights else "There are none.",
        budget_notes=_budget_notes(lengths, limit, budget),
    )


DISAGREEING = "Problems whose samples disagree most"
LONGEST_WRONG = "Longest incorrect responses"
_HINTS = {
    DISAGREEING: "Problems closest to 50 % correct come first; among equals, those with the most varied answers.",
    LONGEST_WRONG: "Each problem has one sample; these are the incorrect responses with the most tokens.",
}


def choose_highlights(samples: Sequence[BenchmarkSamples]) -> tuple[str, list[int]]:
    """Return the problems to look at first: a title and at most ``HIGHLIGHTS`` indices over all benchmarks.

    These are the problems whose correctness varies most, then those with the highest entropy of their answers. If
    every problem has one sample only, these are the incorrect responses with the most tokens.
    """
    rows = list(enumerate(item.responses for each in samples for item in each.items))
    if all(len(row) == 1 for _, row in rows):
        wrong = [(-row[0].tokens, index) for index, row in rows if not row[0].correct]
        return LONGEST_WRONG, [index for _, index in sorted(wrong)[:HIGHLIGHTS]]
    spread = [(-variance(row), -answer_entropy(row), index) for index, row in rows if variance(row) > 0]
    return DISAGREEING, [index for *_, index in sorted(spread)[:HIGHLIGHTS]]


def variance(row: Sequence[Response]) -> float:
    """Return the variance p (1 - p) of the correctness of the samples of one problem."""
    share = sum(response.correct for response in row) / len(row)
    return share * (1 - share)


def answer_entropy(row: Sequence[Response]) -> float:
    """Return the entropy in nats of the answers as they are spelt; a missing answer is one of them."""
    shares = [count / len(row) for count in Counter(response.answer for response in row).values()]
    return -math.fsum(share * math.log(share) for share in shares)


def text_limit(lengths: Sequence[int], budget: int) -> int:
    """Return the length to which texts are cut so that all together fit; that of the longest one if nothing is cut.

    It is the largest L for which the sum of min(length, L) is at most ``budget``.

    Args:
        lengths: Lengths of the texts in characters.
        budget: Most characters of all texts together.
    """
    left = budget
    for number, length in enumerate(sorted(lengths)):
        sharing = len(lengths) - number
        if length * sharing > left:
            return left // sharing
        left -= length
    return max(lengths, default=0)


def shorten(text: str, limit: int) -> str:
    """Return a text whose middle is left out if it is too long, with the number of characters that are missing.

    Args:
        text: The text.
        limit: Most characters of the text that are kept, half of them from each end.
    """
    if len(text) <= limit:
        return text
    tail = limit // 2
    return f"{text[: limit - tail]}\n[... {len(text) - limit:,} characters left out ...]\n{text[len(text) - tail :]}"


def _sample(response: Response, limit: int) -> dict[str, Any]:
    values = {name: getattr(response, name) for name in SAMPLE_FIELDS}
    return values | {"text": shorten(response.text, limit)}


def _budget_notes(lengths: list[int], limit: int, budget: int) -> list[str]:
    cut = sum(length > limit for length in lengths)
    said = (
        f"The page holds at most {budget:,} characters of responses. {cut:,} of {len(lengths):,} responses are longer "
        f"than {limit:,} characters and shown without their middle, which the search does not find. "
        "responses.jsonl has the whole responses."
    )
    return [said] if cut else []


def _table(head: tables.Row, rows: Sequence[tables.Row], caption: str, main: str = "") -> tuple:
    """Return head, rows and caption of a table whose column ``main`` stands out."""
    kinds = ["main" if name == main else "" for name in head]
    cells = [[Cell(text, kind=kind) for text, kind in zip(row, kinds, strict=True)] for row in rows]
    return head, cells, caption


def pass_curve(name: str, scores: dict[int, Interval]) -> Chart:
    """Return a chart of pass@k against k on a logarithmic axis, with its interval as a band.

    Args:
        name: Name of the chart in the page.
        scores: k -> pass@k, a fraction with its interval, in ascending order of k.
    """
    places = list(range(len(scores)))
    low, middle, high = ([getattr(each, bound) for each in scores.values()] for bound in ("low", "estimate", "high"))
    texts = [f"pass@{k}: {percent(each.estimate)} % ({percent_interval(each)})" for k, each in scores.items()]
    look = Look(color_of(0), marker="circle")
    area = bands(places, low, high, Look(color_of(0), opacity=0.2))
    line = Mark("line", look, places, middle, hover="%{customdata}<extra></extra>", texts=texts)
    x = Axis("k", ticks={place: str(k) for place, k in enumerate(scores)})
    panel = Panel((*area, line), x, Axis(share=True, ends=(0.0, 1.0)))
    values = ", ".join(f"pass@{k} {percent(each.estimate)} %" for k, each in scores.items())
    note = f"{values}; the band is the {LEVEL:.0%} interval"
    return Chart(name, "pass@k", (panel,), values, note, height=HEIGHT)


def length_histogram(name: str, responses: Sequence[Response]) -> Chart:
    """Return a histogram of the response lengths in tokens; truncated responses are on top in another color.

    Args:
        name: Name of the chart in the page.
        responses: All responses of a benchmark, at least one.
    """
    tokens = np.array([response.tokens for response in responses])
    truncated = np.array([response.truncated for response in responses])
    edges = np.histogram_bin_edges(tokens, bins=BINS, range=(0, max(1, tokens.max())))
    counts, _ = np.histogram(tokens, bins=edges)
    cut, _ = np.histogram(tokens[truncated], bins=edges)
    spans = [f"{low:,.0f} to {high:,.0f} tokens" for low, high in pairwise(edges)]
    kinds = {"finished": (counts - cut, Look(color_of(0))), "truncated": (cut, Look(color_of(5), hatch="/"))}
    middles = (edges[1:] + edges[:-1]) / 2
    marks = [
        Mark("stack", look, middles, values, name=kind, hover="%{customdata}: %{y}", texts=spans)
        for kind, (values, look) in kinds.items()
        if values.any()
    ]
    note = f"{len(tokens):,} responses, mean {tokens.mean():,.0f} tokens, maximum {tokens.max():,} tokens"
    note += f", {truncated.mean():.1%} truncated" if truncated.any() else ""
    panel = Panel(tuple(marks), Axis("tokens of a response"))
    return Chart(name, "Response lengths", (panel,), f"Lengths of {note}", note, height=HEIGHT)
