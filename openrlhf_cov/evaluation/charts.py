"""Charts of the page as SVG: pass@k with its interval, and a histogram of response lengths (pure)."""

import math
from collections.abc import Sequence
from html import escape

import numpy as np

from openrlhf_cov.evaluation.records import Response
from openrlhf_cov.evaluation.tables import percent, percent_interval
from openrlhf_cov.utils.estimates import Interval

WIDTH, HEIGHT = 320, 180
LEFT, RIGHT, TOP, BOTTOM = 40, 306, 14, 152
"""The plot inside the picture, in its pixels."""
BINS = 24


def pass_curve(scores: dict[int, Interval]) -> str:
    """SVG of pass@k against k (logarithmic), 0 to 100 %, with its interval as a band."""
    step = (RIGHT - LEFT) / max(1, len(scores) - 1)
    xs = [LEFT + step * number for number in range(len(scores))]
    low, middle, high = (
        [(x, _y(getattr(interval, bound), 1.0)) for x, interval in zip(xs, scores.values(), strict=True)]
        for bound in ("low", "estimate", "high")
    )
    parts = [_line(LEFT, y, RIGHT, y) + _text(LEFT - 6, y + 4, label, "end") for y, label in _percent_ticks()]
    parts += [_text(x, BOTTOM + 16, str(k), "middle") for x, k in zip(xs, scores, strict=True)]
    parts.append(f'<polygon class="band" points="{_points([*high, *reversed(low)])}"/>')
    parts.append(f'<polyline class="curve" points="{_points(middle)}"/>')
    for (x, y), (k, interval) in zip(middle, scores.items(), strict=True):
        shown = f"pass@{k}: {percent(interval.estimate)} % ({percent_interval(interval)})"
        parts.append(f'<circle class="point" cx="{x:.1f}" cy="{y:.1f}" r="3.5"><title>{shown}</title></circle>')
    (x, y), (end_x, end_y) = middle[0], middle[-1]  # the values stand below the start of a rising curve, above its end
    parts.append(_text(x, y + 16 if y < BOTTOM - 20 else y - 8, percent(scores[1].estimate), "start", "value"))
    last = percent(scores[max(scores)].estimate)
    parts.append(_text(end_x, end_y - 8 if end_y > TOP + 12 else end_y + 16, last, "end", "value"))
    values = ", ".join(f"pass@{k} {percent(interval.estimate)} %" for k, interval in scores.items())
    return _svg(parts, values)


def length_histogram(responses: Sequence[Response]) -> str:
    """SVG of how many responses have how many tokens; those cut at the token limit are on top in another color."""
    tokens = np.array([response.tokens for response in responses])
    truncated = np.array([response.truncated for response in responses])
    end = _round_up(int(tokens.max()))
    counts, edges = np.histogram(tokens, bins=BINS, range=(0, end))
    cut, _ = np.histogram(tokens[truncated], bins=BINS, range=(0, end))
    top = int(counts.max())
    parts = [_line(LEFT, BOTTOM, RIGHT, BOTTOM)]
    parts += [_text(LEFT - 6, y + 4, f"{count:,}", "end") for y, count in ((BOTTOM, 0), (_y(1, 1), top))]
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        parts.append(_text(LEFT + share * (RIGHT - LEFT), BOTTOM + 16, f"{end * share:,.0f}", anchor))
    width = (RIGHT - LEFT) / BINS
    for number, (count, ended_early) in enumerate(zip(counts.tolist(), cut.tolist(), strict=True)):
        x, y, border = LEFT + number * width + 0.5, _y(count, top), _y(count - ended_early, top)
        span = (
            f"{edges[number]:,.0f} to {edges[number + 1]:,.0f} tokens: {count:,} responses, {ended_early:,} truncated"
        )
        bars = _bar(x, border, BOTTOM, width - 1, "finished") + _bar(x, y, border, width - 1, "truncated")
        parts.append(f"<g><title>{span}</title>{bars}</g>" if count else "")
    return _svg(parts, f"Lengths of {len(tokens):,} responses, the longest {tokens.max():,} tokens")


def _percent_ticks() -> list[tuple[float, str]]:
    return [(_y(share, 1.0), f"{share:.0%}") for share in (0.0, 0.5, 1.0)]


def _y(value: float, top: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * value / top


def _round_up(value: int) -> int:
    """The next of 1, 2, 2.5, 4, 5, 8, 10 times a power of ten, from 10."""
    power = 10 ** max(1, math.floor(math.log10(max(1, value))))
    return next(int(factor * power) for factor in (1, 2, 2.5, 4, 5, 8, 10) if value <= factor * power)


def _svg(parts: list[str], label: str) -> str:
    head = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">'
    return "".join([head, *parts, "</svg>"])


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="grid" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str, kind: str = "tick") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _bar(x: float, top: float, bottom: float, width: float, kind: str) -> str:
    if bottom <= top:
        return ""
    return f'<rect class="{kind}" x="{x:.1f}" y="{top:.1f}" width="{width:.1f}" height="{bottom - top:.1f}"/>'
