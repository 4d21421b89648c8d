"""The curves of a report: which columns its figures show, and series that are short enough to draw (pure).

The names of columns are those of docs/metrics.md.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openrlhf_cov.analysis.regression import Floats, extremes, running_mean, thinned
from openrlhf_cov.analysis.runs import INTERVENTION_COLUMNS
from openrlhf_cov.analysis.theory import (
    BANDS,
    GROUP_COVARIANCE,
    PREDICTIONS,
    RESPONSE_ACCURACY,
    TOKEN_ACCURACY,
    WEIGHTED_ACCURACY,
)
from openrlhf_cov.utils.metric_table import (
    ENTROPY,
    OF_SOURCES,
    OWN,
    SHARE,
    STEP_TOTAL,
    definition,
    family,
    is_known,
    title,
    title_and_unit,
)
from openrlhf_cov.utils.metric_table import (
    PHASES as PHASE_COLUMNS,
)

REWARD = "reward"
SCORE = "score"
LENGTH_COLUMN = "response_length"
SELECTED_SHARE = "cov/selected_frac"
# H of equation 5 of the paper.
RESPONSE_ENTROPY = "entropy/response_mean"


@dataclass(frozen=True)
class Curve:
    """A column and its name in a legend or above a panel; a ``share`` is a fraction, shown in percent."""

    column: str
    label: str
    share: bool = False


@dataclass(frozen=True)
class CurveFigure:
    """Panels with one line per run in each; ``name`` is the name of the file.

    ``families`` are prefixes of further columns, such as ``control/``: every known column of a log with such a prefix
    gets a panel.
    """

    name: str
    title: str
    panels: tuple[Curve, ...] = ()
    families: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the panels, and the prefixes of further columns."""
        return (*(panel.column for panel in self.panels), *self.families)

    def panels_of(self, logged: Iterable[str]) -> tuple[Curve, ...]:
        """Return the panels for runs that logged these columns."""
        further = {name for name in logged if name.startswith(self.families) and is_known(name)}
        return self.panels + _panels(*sorted(further))


def _panels(*columns: str) -> tuple[Curve, ...]:
    return tuple(Curve(column, title_and_unit(column), definition(column).unit == SHARE) for column in columns)


# What a reader looks at first, in a page.
OVERVIEW = CurveFigure("curves", "Training curves", _panels(REWARD, ENTROPY, LENGTH_COLUMN, SELECTED_SHARE))
PROGRESS = CurveFigure("reward_and_entropy", "Reward and entropy", _panels(REWARD, ENTROPY))
SELECTION = CurveFigure(
    "selection",
    "Tokens that the method selected",
    _panels(SELECTED_SHARE, "cov/selected_abs_log_ratio", "cov/selected_ppo_kl"),
)
GRADIENT = CurveFigure("gradient", "Gradients of the tokens", _panels(*family("gradient/")))
METHODS = CurveFigure("methods", "Metrics of the methods", families=OWN)
SAMPLING = CurveFigure(
    "sampling",
    "Dynamic sampling",
    _panels("sampling/kept_frac", "sampling/all_right_frac", "sampling/all_wrong_frac"),
)
SOURCES = CurveFigure("sources", "Data sources", families=(OF_SOURCES,))
LENGTH = CurveFigure("response_length", "Response length", _panels(LENGTH_COLUMN, "truncated"))
# The figures of what the method did, in a page.
METHOD_FIGURES = (SELECTION, METHODS, GRADIENT, SAMPLING, SOURCES)
# The figures that are written as files.
CURVE_FIGURES = (PROGRESS, LENGTH, *METHOD_FIGURES)


def _curves(columns: Iterable[str]) -> tuple[Curve, ...]:
    return tuple(Curve(column, title(column)) for column in columns)


BAND_CURVES = _curves(BANDS)
# Title of a panel -> its curves, first what the paper shows.
ACCURACY_CURVES = {
    title: _curves(family(prefix))
    for title, prefix in (
        ("Cov(log π, π A) of responses", WEIGHTED_ACCURACY),
        ("Cov(log π, A) of responses", RESPONSE_ACCURACY),
        ("Cov(log π, A) of tokens", TOKEN_ACCURACY),
    )
}
PHASES = _curves(PHASE_COLUMNS)
# The part of ``STEP_TOTAL`` that is in no phase.
OTHER_PHASE = Curve("other", "other")

# Columns, and prefixes of columns, that ``RunReport.series`` has a curve for if the run has them.
SERIES_COLUMNS = tuple(
    dict.fromkeys(
        [
            *(column for figure in CURVE_FIGURES for column in figure.columns),
            *(curve.column for curves in (BAND_CURVES, *ACCURACY_CURVES.values()) for curve in curves),
            "cov/prob_weighted_mean",
            GROUP_COVARIANCE,
            "entropy/delta",
        ]
    )
)

# All training columns that a report needs; the others of a log are not read.
COLUMNS = (
    *SERIES_COLUMNS,
    SCORE,
    RESPONSE_ENTROPY,
    *INTERVENTION_COLUMNS,
    "time",
    *(prediction for prediction, _ in PREDICTIONS.values()),
    *(phase.column for phase in PHASES),
    STEP_TOTAL,
)


# --- series

# Points of a curve: the lowest and highest value of some 600 parts, about the columns of pixels of a panel.
MAX_DRAWN = 1200
# Steps of a stack.
MAX_BARS = 120
# Dots of a cloud.
MAX_DOTS = 1000
# The running mean is over this share of the points.
SMOOTHED = 1 / 30
# A curve is interrupted where it has no point for this many times the usual distance, and for VISIBLE of the run.
USUAL_GAPS = 10
VISIBLE = 1 / 200


@dataclass(frozen=True, eq=False)
class Series:
    """A curve: ``steps``, ``values`` and ``mean`` have the shape (n,), in the order of time.

    ``mean`` is the centred running mean over ``window`` logged steps, and equal to ``values`` where ``window`` is 1.
    ``values`` and ``mean`` are NaN where the curve is interrupted, which is nowhere at an end.
    """

    steps: Floats
    values: Floats
    mean: Floats
    window: int

    def __len__(self) -> int:
        return len(self.steps)


def to_series(
    steps: ArrayLike, values: ArrayLike, *, most: int = MAX_DRAWN, smoothed: float = SMOOTHED
) -> Series | None:
    """Return the curve of a column by step, with its extremes.

    A short gap is bridged, a long gap interrupts the curve.

    Args:
        steps: Steps (n,).
        values: Values (n,), NaN where a step has none.
        most: Largest number of points.
        smoothed: Share of the points in the running mean.

    Returns:
        The curve, None without a value.
    """
    steps = np.asarray(steps, dtype=np.float64)
    values = np.asarray(values, dtype=np.float64)
    there = np.flatnonzero(~np.isnan(values))
    if not len(there):
        return None
    if len(there) < len(steps):
        steps = steps[there]
        values = values[there]
    # An odd number, so that the window has a middle.
    window = max(1, int(len(steps) * smoothed) // 2 * 2 + 1)
    gaps = _gaps(steps)
    # Each gap takes one of the points, a NaN that interrupts the line.
    chosen = extremes(values, most - len(gaps))
    mean = running_mean(values, window, chosen)
    places = np.searchsorted(chosen, gaps + 1)
    middles = (steps[gaps] + steps[gaps + 1]) / 2
    return Series(
        steps=np.insert(steps[chosen], places, middles),
        values=np.insert(values[chosen], places, np.nan),
        mean=np.insert(mean, places, np.nan),
        window=window,
    )


def spread_out(count: int, most: int = MAX_DOTS) -> NDArray[np.intp]:
    """Return the places of dots in equal distances, with the first and the last, ascending.

    Args:
        count: Number of dots.
        most: Largest number of places.
    """
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.intp))


def stacked(steps: ArrayLike, columns: Mapping[str, Floats], most: int = MAX_BARS) -> tuple[Floats, dict[str, Floats]]:
    """Return the means of columns over equal parts of a run.

    Args:
        steps: Global steps (n,).
        columns: Name -> values (n,), NaN where a step has none.
        most: Largest number m of parts.

    Returns:
        The mean step (m,) of each part, and name -> means (m,), NaN where a part has no value.
    """
    means = {}
    for name, values in columns.items():
        # Means of the values that there are: a NaN would spoil the part that it is in.
        there = ~np.isnan(values)
        shares = thinned(there.astype(np.float64), most)
        sums = thinned(np.where(there, values, 0.0), most)
        means[name] = np.divide(sums, shares, out=np.full(len(shares), np.nan), where=shares > 0)
    return thinned(np.asarray(steps, dtype=np.float64), most), means


def _gaps(steps: Floats) -> NDArray[np.intp]:
    """Return the places before long gaps."""
    if len(steps) < 3:
        return np.zeros(0, dtype=np.intp)
    apart = np.diff(steps)
    return np.flatnonzero(apart > max(USUAL_GAPS * np.median(apart), VISIBLE * (steps[-1] - steps[0])))
