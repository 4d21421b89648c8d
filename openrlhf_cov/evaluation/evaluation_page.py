"""``report.html``: one page with scores, charts and every problem of a run, that needs nothing else to be read."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from openrlhf_cov.analysis.pages.chart import Chart
from openrlhf_cov.analysis.pages.html import Cell, render
from openrlhf_cov.analysis.pages.plot import figure
from openrlhf_cov.evaluation import tables
from openrlhf_cov.evaluation.evaluation_charts import length_histogram, pass_curve
from openrlhf_cov.evaluation.response_records import Response
from openrlhf_cov.evaluation.samples import BenchmarkSamples
from openrlhf_cov.evaluation.summary import BenchmarkSummary, Summary

TEXT_BUDGET = 20_000_000
"""Characters of response text in one page; 7,500 responses of 8,192 tokens would be some 200 million."""
HIGHLIGHTS = 10
SCRIPTS = ("evaluation.js",)
SAMPLE_FIELDS = ("answer", "status", "correct", "truncated", "tokens", "surprisal")


def evaluation_page(summary: Summary, samples: Sequence[BenchmarkSamples], budget: int = TEXT_BUDGET) -> str:
    """The page as HTML. Long responses lose their middle where all together exceed ``budget`` characters."""
    kind, highlights = choose_highlights(samples)
    lengths = [len(response.text) for each in samples for response in each.responses]
    limit = text_limit(lengths, budget)
    cards = [
        {"name": scores.name, "title": scores.title, "charts": _charts(place, scores, each)}
        for place, (scores, each) in enumerate(zip(summary.benchmarks, samples, strict=True))
    ]
    charts = {chart.name: figure(chart) for card in cards for chart in card["charts"]}
    graders = tables.grader_rows(summary)
    return render(
        "evaluation.html",
        {"charts": charts} | _payload(samples, highlights, limit),
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
LONGEST_WRONG = "Longest wrong responses"
_HINTS = {
    DISAGREEING: "Closest to half right, half wrong; among equals the most varied answers first.",
    LONGEST_WRONG: "One sample per problem cannot disagree; these are the wrong responses with the most tokens.",
}


def choose_highlights(samples: Sequence[BenchmarkSamples]) -> tuple[str, list[int]]:
    """What to look at first, a title and at most ``HIGHLIGHTS`` indices of problems, counted over all benchmarks.

    The problems whose correctness varies most, and of these the ones with the highest entropy of their answers. If
    every problem has one sample only: the wrong responses with the most tokens.
    """
    rows = list(enumerate(row for each in samples for row in each.rows))
    if all(len(row) == 1 for _, row in rows):
        wrong = [(-row[0].tokens, index) for index, row in rows if not row[0].correct]
        return LONGEST_WRONG, [index for _, index in sorted(wrong)[:HIGHLIGHTS]]
    spread = [(-variance(row), -answer_entropy(row), index) for index, row in rows if variance(row) > 0]
    return DISAGREEING, [index for *_, index in sorted(spread)[:HIGHLIGHTS]]


def variance(row: Sequence[Response]) -> float:
    """Variance p (1 - p) of the correctness of the samples of one problem."""
    share = sum(response.correct for response in row) / len(row)
    return share * (1 - share)


def answer_entropy(row: Sequence[Response]) -> float:
    """Entropy of the answers as they are spelt, nats; no answer is one of them."""
    shares = [count / len(row) for count in Counter(response.answer for response in row).values()]
    return -math.fsum(share * math.log(share) for share in shares)


def text_limit(lengths: Sequence[int], budget: int) -> int:
    """The largest L for which the sum of min(length, L) is at most ``budget``; the longest length if all fit."""
    left = budget
    for number, length in enumerate(sorted(lengths)):
        sharing = len(lengths) - number
        if length * sharing > left:
            return left // sharing
        left -= length
    return max(lengths, default=0)


def shorten(text: str, limit: int) -> str:
    """The text, or its first and last ``limit`` / 2 characters and how many are missing between."""
    if len(text) <= limit:
        return text
    tail = limit // 2
    return f"{text[: limit - tail]}\n[... {len(text) - limit:,} characters left out ...]\n{text[len(text) - tail :]}"


def _payload(samples: Sequence[BenchmarkSamples], highlights: list[int], limit: int) -> dict[str, Any]:
    problems = [
        asdict(problem) | {"samples": [_sample(response, limit) for response in row]}
        for each in samples
        for problem, row in zip(each.problems, each.rows, strict=True)
    ]
    return {"benchmarks": [each.settings.name for each in samples], "highlights": highlights, "problems": problems}


def _sample(response: Response, limit: int) -> dict[str, Any]:
    values = {name: getattr(response, name) for name in SAMPLE_FIELDS}
    return values | {"text": shorten(response.text, limit)}


def _budget_notes(lengths: list[int], limit: int, budget: int) -> list[str]:
    cut = sum(length > limit for length in lengths)
    said = (
        f"{cut:,} of {len(lengths):,} responses are longer than {limit:,} characters and shown without their middle, "
        f"because the page holds {budget:,} characters of responses at most. The search does not see what is left "
        "out; responses.jsonl has all of it."
    )
    return [said] if cut else []


def _charts(place: int, scores: BenchmarkSummary, samples: BenchmarkSamples) -> list[Chart]:
    curve = [pass_curve(f"pass{place}", scores.pass_at_k)] if scores.samples > 1 else []
    return [*curve, length_histogram(f"lengths{place}", samples.responses)]


def _table(head: tables.Row, rows: Sequence[tables.Row], caption: str, main: str = "") -> tuple:
    """Head, rows and caption of a table whose column ``main`` stands out."""
    kinds = ["main" if name == main else "" for name in head]
    cells = [[Cell(text, kind=kind) for text, kind in zip(row, kinds, strict=True)] for row in rows]
    return head, cells, caption
