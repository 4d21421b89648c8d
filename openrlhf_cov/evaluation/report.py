"""``report.html``: one page with scores, charts and every problem of a run, that needs nothing else to be read."""

import base64
import hashlib
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

from openrlhf_cov.evaluation import tables
from openrlhf_cov.evaluation.charts import length_histogram, pass_curve
from openrlhf_cov.evaluation.records import Response
from openrlhf_cov.evaluation.samples import BenchmarkSamples
from openrlhf_cov.evaluation.summary import BenchmarkSummary, Summary
from openrlhf_cov.utils.estimates import LEVEL
from openrlhf_cov.utils.json_lines import embedded

TEXT_BUDGET = 20_000_000
"""Characters of response text in one page; 7,500 responses of 8,192 tokens would be some 200 million."""
HIGHLIGHTS = 10

PIECES = Path(__file__).parent / "page"
SAMPLE_FIELDS = ("answer", "status", "correct", "truncated", "tokens", "surprisal")


def report_page(summary: Summary, samples: Sequence[BenchmarkSamples], budget: int = TEXT_BUDGET) -> str:
    """The page as HTML. Long responses lose their middle where all together exceed ``budget`` characters.

    Text of models and data sets is escaped or stands in JSON that the page's script turns into plain text nodes; a
    content policy allows no other script and no network.
    """
    how, script = summary.settings, _piece("report.js")
    kind, highlights = choose_highlights(samples)
    lengths = [len(response.text) for each in samples for response in each.responses]
    limit = text_limit(lengths, budget)
    parts = {
        "script_hash": "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "model": escape(how.model),
        "asked": escape(f"protocol {how.protocol}, prompt template {how.template}, seed {how.seed}"),
        "style": _piece("report.css"),
        "settings": "\n".join(f"<dt>{escape(a)}</dt><dd>{escape(b)}</dd>" for a, b in tables.setting_rows(summary)),
        "prompt": escape(how.template_text),
        "scores": _table(tables.SCORES, tables.score_rows(summary), bold=tables.SCORES.index("avg@K")),
        "graders": _table(tables.GRADERS, rows) if (rows := tables.grader_rows(summary)) else "",
        "notes": _paragraphs(tables.notes(summary)),
        "footnotes": _paragraphs(tables.FOOTNOTES),
        "counts": _table(tables.COUNTS, tables.count_rows(summary)),
        "cards": "\n".join(_card(scores, each) for scores, each in zip(summary.benchmarks, samples, strict=True)),
        "highlights_title": kind,
        "highlights_hint": _HINTS[kind] if highlights else "There are none.",
        "budget_note": _budget_note(lengths, limit, budget),
        "data": embedded(_payload(samples, highlights, limit)),
        "script": script,
    }
    page = re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _piece("report.html"))
    return page.encode("utf-8", "replace").decode("utf-8")  # half a surrogate pair cannot be written


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


def _budget_note(lengths: list[int], limit: int, budget: int) -> str:
    cut = sum(length > limit for length in lengths)
    if not cut:
        return ""
    return _paragraphs(
        [
            f"{cut:,} of {len(lengths):,} responses are longer than {limit:,} characters and shown without their "
            f"middle, because the page holds {budget:,} characters of responses at most. The search does not see what "
            "is left out; responses.jsonl has all of it."
        ]
    )


def _card(scores: BenchmarkSummary, samples: BenchmarkSamples) -> str:
    parts = [f'<div class="card"><h3>{escape(scores.name)}</h3><p>{escape(scores.title)}</p>']
    if scores.samples > 1:
        caption = f"pass@k of {scores.problems:,} problems with its {LEVEL:.0%} interval"
        parts.append(f"<figure>{pass_curve(scores.pass_at_k)}<figcaption>{caption}</figcaption></figure>")
    caption = f'<span class="key">responses by tokens</span>, mean {scores.mean_tokens:,.0f}'
    if scores.truncated_frac:
        caption += f', <span class="key cut">{scores.truncated_frac:.1%} truncated</span>'
    histogram = length_histogram(samples.responses)
    return "".join([*parts, f"<figure>{histogram}<figcaption>{caption}</figcaption></figure></div>"])


def _table(head: tables.Row, rows: Sequence[tables.Row], bold: int | None = None) -> str:
    top = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "\n".join(
        "<tr>" + "".join(f"<td{' class=main' if n == bold else ''}>{escape(cell)}</td>" for n, cell in enumerate(row))
        for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{top}</tr></thead><tbody>\n{body}</tbody></table></div>'
    )


def _paragraphs(lines: Sequence[str]) -> str:
    return "\n".join(f'<p class="note">{escape(line)}</p>' for line in lines)


def _piece(name: str) -> str:
    return (PIECES / name).read_text(encoding="utf-8")
