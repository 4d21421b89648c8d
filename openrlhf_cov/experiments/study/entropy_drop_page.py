"""The page that compares predictions of the entropy's fall with the measured fall, task by task (pure)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from openrlhf_cov.analysis.entropy_drop import PREDICTIONS, drop_correlations
from openrlhf_cov.analysis.pages.chart import Axis, Chart, Look, Mark, Panel
from openrlhf_cov.analysis.theory import PREDICTIONS as BETWEEN_ROLLOUTS
from openrlhf_cov.analysis.theory import pairs_of
from openrlhf_cov.cluster.sizing.prose import counted
from openrlhf_cov.experiments.study.answer import shown
from openrlhf_cov.experiments.study.document import Document, Section
from openrlhf_cov.experiments.study.run_results import Result
from openrlhf_cov.experiments.study.seed_estimates import CORRELATION, mean_over_seeds
from openrlhf_cov.experiments.study.study_summary import capitalized, joined
from openrlhf_cov.models.dynamics import spearman
from openrlhf_cov.utils.estimates import Interval

TITLE = "Predicted and measured falls of the entropy"
ABOUT = (
    "Which prediction of −ΔH follows the fall that a step causes? Both are of the tokens of the same rollout, so "
    "that other prompts add nothing. `python scripts/make_entropy_drops.py` makes the runs."
)
HOW = (
    "A number is Spearman's correlation over the steps of a run, as the mean and 95 % interval over seeds "
    "(Student's t). The measured fall is the mean entropy of the policy at the sampled tokens before the updates of "
    "a step minus that after them. Theorem 1 is Cov(log p, p·A), and theorem 2 Cov(log p, A). The discriminator is "
    "mean(A·(S − E)) with S = p·(H + log p) and its expectation E, the exact rate of a policy gradient if states "
    "shared no parameters. The natural gradient has mean(A·(H + log p)), which includes the drift (m_S − "
    "m_F)·mean(H) of unbalanced positive and negative mass; the last prediction is the drift alone. The drift is 0 "
    "where the advantages of every group add up to 0 and responses have one length."
)
BETWEEN = (
    "The last column is theorem 1 as most logs have it: against the difference between two rollouts, in which other "
    "prompts are most of the change."
)
HEAD = ("runs of", "runs", *PREDICTIONS.values(), "theorem 1, between rollouts")


@dataclass(frozen=True)
class DropRow:
    """Correlations of some runs.

    Attributes:
        name: What the runs have in common.
        runs: Number of runs.
        correlations: Column of a prediction -> mean over runs with its interval.
        between: The same for theorem 1 against the next rollout.
    """

    name: str
    runs: int
    correlations: Mapping[str, Interval]
    between: Interval


def drop_row(name: str, results: Sequence[Result]) -> DropRow:
    """Return the correlations of predicted and measured falls, as means over runs.

    Args:
        name: What the runs have in common, for the page.
        results: Runs with different seeds and ``--record_mechanism``.
    """
    found = [drop_correlations(each.metrics) for each in results]
    correlations = {prediction: mean_correlation([each[prediction] for each in found]) for prediction in PREDICTIONS}
    between = []
    for each in results:
        predicted, changes = pairs_of(each.metrics, BETWEEN_ROLLOUTS[1][0], "entropy/delta")
        between.append(spearman(predicted.tolist(), changes.tolist()))
    return DropRow(name, len(results), correlations, mean_correlation(between))


def mean_correlation(values: Sequence[float]) -> Interval:
    """Return the mean of those that are defined, with Student's interval cut at -1 and 1, which it may exceed."""
    return mean_over_seeds([each for each in values if np.isfinite(each)], CORRELATION)


def drop_document(rows: Sequence[DropRow]) -> Document:
    """Return the page with its table and its figure."""
    cells = tuple(
        (
            row.name,
            str(row.runs),
            *(shown(each, signed=True) for each in row.correlations.values()),
            shown(row.between, signed=True),
        )
        for row in rows
    )
    section = Section("Rank correlation with the measured fall", (HOW, BETWEEN), HEAD, cells)
    return Document(TITLE, ABOUT, (section,), (drop_chart(rows),), drop_summary(rows))


def drop_summary(rows: Sequence[DropRow]) -> str:
    """Return a sentence on which prediction follows the measured fall best, by the median correlation over the rows.

    It is empty if no correlation is defined.
    """
    medians = {
        title: median_correlation([row.correlations[prediction] for row in rows])
        for prediction, title in PREDICTIONS.items()
    }
    known = {title: median for title, median in medians.items() if np.isfinite(median)}
    if not known:
        return ""
    ordered = sorted(known, key=lambda title: -known[title])
    said = joined([f"{title} ({known[title]:+.2f})" for title in ordered]).replace("(-", "(−")
    between = f"{median_correlation([row.between for row in rows]):+.2f}".replace("-", "−")
    return (
        f"{capitalized(ordered[0])} is the best prediction: over {counted(len(rows), 'group')} of runs, the median "
        f"rank correlations with the measured fall are {said}. Against the difference between two rollouts, as most "
        f"logs have it, theorem 1 has {between}."
    )


def median_correlation(found: Sequence[Interval]) -> float:
    """Return the median of the estimates that are defined; NaN if none is."""
    estimates = [each.estimate for each in found if np.isfinite(each.estimate)]
    return float(np.median(estimates)) if estimates else float("nan")


def drop_chart(rows: Sequence[DropRow]) -> Chart:
    """Return a panel for each prediction: correlation and interval of each row, the first row on top."""
    panels = []
    said = []
    ticks: dict[float, str] = {len(rows) - place: row.name for place, row in enumerate(rows)}
    for prediction, title in PREDICTIONS.items():
        known = [
            (len(rows) - place, row.correlations[prediction])
            for place, row in enumerate(rows)
            if np.isfinite(row.correlations[prediction].estimate)
        ]
        if not known:
            continue
        places = [place for place, _ in known]
        found = [each for _, each in known]
        low = [each.low if np.isfinite(each.low) else each.estimate for each in found]
        high = [each.high if np.isfinite(each.high) else each.estimate for each in found]
        texts = [f"{title}, {ticks[place]}: {shown(each)}" for place, each in known]
        said += texts
        mark = Mark(
            "dots",
            Look("#0072b2", marker="circle", size=7.0),
            [each.estimate for each in found],
            places,
            low=low,
            high=high,
            whiskers="x",
            hover="%{customdata}<extra></extra>",
            texts=texts,
        )
        x = Axis("rank correlation", zero=True, ends=(-1.05, 1.05))
        panels.append(Panel((mark,), x, Axis(ticks=ticks, ends=(0.4, len(rows) + 0.6)), title=title))
    return Chart(
        "entropy_drops", TITLE, tuple(panels), "; ".join(said), columns=3, shared="y", row=1.0 + 0.24 * len(rows)
    )
