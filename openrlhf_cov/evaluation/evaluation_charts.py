"""Charts of one benchmark: pass@k with its interval, and a histogram of response lengths (pure)."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from openrlhf_cov.analysis.pages.chart import Axis, Chart, Look, Mark, Panel, bands, color_of
from openrlhf_cov.evaluation.response_records import Response
from openrlhf_cov.evaluation.tables import percent, percent_interval
from openrlhf_cov.utils.estimates import LEVEL, Interval

BINS = 24
HEIGHT = 240
"""Pixels."""


def pass_curve(name: str, scores: dict[int, Interval]) -> Chart:
    """pass@k against k (logarithmic), 0 to 100 %, with its interval as a band."""
    places = list(range(len(scores)))
    low, middle, high = ([getattr(each, bound) for each in scores.values()] for bound in ("low", "estimate", "high"))
    texts = [f"pass@{k}: {percent(each.estimate)} % ({percent_interval(each)})" for k, each in scores.items()]
    look = Look(color_of(0), marker="circle")
    area = bands(places, low, high, Look(color_of(0), opacity=0.2))
    line = Mark("line", look, places, middle, hover="%{customdata}<extra></extra>", texts=texts)
    x = Axis("k", ticks={place: str(k) for place, k in enumerate(scores)})
    panel = Panel((*area, line), x, Axis(share=True, ends=(0.0, 1.05)))
    values = ", ".join(f"pass@{k} {percent(each.estimate)} %" for k, each in scores.items())
    note = f"{values}; with the {LEVEL:.0%} intervals"
    return Chart(name, "pass@k", (panel,), values, note, height=HEIGHT)


def length_histogram(name: str, responses: Sequence[Response]) -> Chart:
    """How many responses have how many tokens; those cut at the token limit are on top in another color."""
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
    note = f"{len(tokens):,} responses, {tokens.mean():,.0f} tokens in the mean, {tokens.max():,} at most"
    note += f", {truncated.mean():.1%} truncated" if truncated.any() else ""
    panel = Panel(tuple(marks), Axis("tokens of a response"))
    return Chart(name, "Response lengths", (panel,), f"Lengths of {note}", note, height=HEIGHT)
