"""Which columns the figures of curves show, for the pictures and for the page alike; names as in docs/metrics.md."""

from collections.abc import Iterable
from dataclasses import dataclass

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
RESPONSE_ENTROPY = "entropy/response_mean"
"""H of the paper's eq. 5."""


@dataclass(frozen=True)
class Curve:
    """A column and what it is called in a legend or above a panel; a ``share`` is a fraction, shown in percent."""

    column: str
    label: str
    share: bool = False


@dataclass(frozen=True)
class CurveFigure:
    """Panels side by side, a line per run in each; ``name`` is that of its file.

    ``families`` are the beginnings of further columns, ``control/`` and the like: whatever a log has of them that is
    described.
    """

    name: str
    title: str
    panels: tuple[Curve, ...] = ()
    families: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        return (*(panel.column for panel in self.panels), *self.families)

    def panels_of(self, logged: Iterable[str]) -> tuple[Curve, ...]:
        """Its panels for runs that have ``logged`` these columns."""
        further = {name for name in logged if name.startswith(self.families) and is_known(name)}
        return self.panels + _panels(*sorted(further))


def _panels(*columns: str) -> tuple[Curve, ...]:
    return tuple(Curve(column, title_and_unit(column), definition(column).unit == SHARE) for column in columns)


PROGRESS = CurveFigure("reward_and_entropy", "Reward and entropy", _panels(REWARD, ENTROPY))
SELECTION = CurveFigure(
    "selection",
    "Tokens that the covariance method restrains",
    _panels("cov/selected_frac", "cov/selected_abs_log_ratio", "cov/selected_ppo_kl"),
)
GRADIENT = CurveFigure("gradient", "Gradients of the tokens", _panels(*family("gradient/")))
METHODS = CurveFigure("methods", "Numbers of the methods themselves", families=OWN)
SAMPLING = CurveFigure(
    "sampling",
    "Dynamic sampling",
    _panels("sampling/kept_frac", "sampling/all_right_frac", "sampling/all_wrong_frac"),
)
SOURCES = CurveFigure("sources", "By data source", families=(OF_SOURCES,))
LENGTH = CurveFigure("response_length", "Response length", _panels("response_length", "truncated"))
CURVE_FIGURES = (PROGRESS, SELECTION, METHODS, GRADIENT, SAMPLING, LENGTH)


def figures_of(logged: Iterable[str]) -> tuple[CurveFigure, ...]:
    """Return the figures for runs that have ``logged`` these columns; sources have one only where they are logged."""
    if any(column.startswith(OF_SOURCES) for column in logged):
        return (*CURVE_FIGURES, SOURCES)
    return CURVE_FIGURES


def _curves(columns: Iterable[str]) -> tuple[Curve, ...]:
    return tuple(Curve(column, title(column)) for column in columns)


BAND_CURVES = _curves(BANDS)
ACCURACY_CURVES = {
    title: _curves(family(prefix))
    for title, prefix in (
        ("Cov(log π, π A) of responses", WEIGHTED_ACCURACY),
        ("Cov(log π, A) of responses", RESPONSE_ACCURACY),
        ("Cov(log π, A) of tokens", TOKEN_ACCURACY),
    )
}
"""Title of a panel -> its curves, first what the paper shows."""
PHASES = _curves(PHASE_COLUMNS)
OTHER_PHASE = Curve("other", "other")
"""What of ``STEP_TOTAL`` is in none of the phases."""

SERIES_COLUMNS = tuple(
    dict.fromkeys(
        [
            *(column for figure in (*CURVE_FIGURES, SOURCES) for column in figure.columns),
            *(curve.column for curves in (BAND_CURVES, *ACCURACY_CURVES.values()) for curve in curves),
            "cov/prob_weighted_mean",
            GROUP_COVARIANCE,
            "entropy/delta",
        ]
    )
)
"""Columns, and families of them, of which ``RunReport.series`` has a curve, where the run has them."""

COLUMNS = (
    *SERIES_COLUMNS,
    "score",
    RESPONSE_ENTROPY,
    *INTERVENTION_COLUMNS,
    "time",
    *(prediction for prediction, _ in PREDICTIONS.values()),
    *(phase.column for phase in PHASES),
    STEP_TOTAL,
)
"""All training columns that a report needs; the others of a log are not read."""
