"""Which columns the figures of curves show, for the pictures and for the page alike; names as in docs/metrics.md."""

from dataclasses import dataclass

from openrlhf_cov.analysis.naming import ENTROPY
from openrlhf_cov.analysis.runs import INTERVENTION_COLUMNS
from openrlhf_cov.analysis.theory import BANDS

REWARD = "reward"


@dataclass(frozen=True)
class Curve:
    """A column and what it is called in a legend or above a panel; a ``share`` is a fraction, shown in percent."""

    column: str
    label: str
    share: bool = False


@dataclass(frozen=True)
class CurveFigure:
    """Panels side by side, a line per run in each; ``name`` is that of its file."""

    name: str
    title: str
    panels: tuple[Curve, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(panel.column for panel in self.panels)


PROGRESS = CurveFigure(
    "reward_and_entropy",
    "Reward and entropy",
    (Curve(REWARD, "mean reward"), Curve(ENTROPY, "mean token entropy (nats)")),
)
SELECTION = CurveFigure(
    "selection",
    "Tokens that the covariance method restrains",
    (
        Curve("cov/selected_frac", "selected, of all trained tokens", share=True),
        Curve("cov/selected_abs_log_ratio", "|log π − log π old| on selected tokens"),
        Curve("cov/selected_ppo_kl", "KL to the old policy on selected tokens"),
    ),
)
SAMPLING = CurveFigure(
    "sampling",
    "Dynamic sampling",
    (
        Curve("sampling/kept_frac", "groups kept", share=True),
        Curve("sampling/all_right_frac", "groups with right responses alone", share=True),
        Curve("sampling/all_wrong_frac", "groups with wrong responses alone", share=True),
    ),
)
LENGTH = CurveFigure(
    "response_length",
    "Response length",
    (
        Curve("response_length", "mean tokens of a response"),
        Curve("truncated", "cut at the token limit", share=True),
    ),
)
CURVE_FIGURES = (PROGRESS, SELECTION, SAMPLING, LENGTH)

BAND_CURVES = tuple(
    Curve(column, label)
    for column, label in zip(
        BANDS, ("top 0.02 %", "top 0.2 %", "top 2 %", "top 20 %", "top 50 %", "all tokens"), strict=True
    )
)
ACCURACY_CURVES = (
    Curve("cov/acc_low", "hard (about 1 of 8 correct)"),
    Curve("cov/acc_mid", "medium (about half)"),
    Curve("cov/acc_high", "easy (about 7 of 8)"),
)
TOKEN_ACCURACY_CURVES = tuple(
    Curve(curve.column.replace("cov/", "cov/token_"), curve.label) for curve in ACCURACY_CURVES
)

PHASES = (
    Curve("timing/generation", "generation"),
    Curve("timing/make_experience", "scoring"),
    Curve("timing/ppo_train", "updates"),
    Curve("timing/broadcast", "weight transfer"),
)
STEP_TOTAL = "timing/step_total"
OTHER_PHASE = Curve("other", "other")
"""What of ``STEP_TOTAL`` is in none of the phases."""

SERIES_COLUMNS = tuple(
    dict.fromkeys(
        [
            *(column for figure in CURVE_FIGURES for column in figure.columns),
            *(curve.column for curve in (*BAND_CURVES, *ACCURACY_CURVES, *TOKEN_ACCURACY_CURVES)),
            "cov/prob_weighted_mean",
            "entropy/delta",
        ]
    )
)
"""Columns of which ``RunReport.series`` has a curve, where the run has them."""

COLUMNS = (
    *SERIES_COLUMNS,
    "score",
    *INTERVENTION_COLUMNS,
    "time",
    "entropy/delta_theorem1",
    "entropy/delta_theorem2",
    *(phase.column for phase in PHASES),
    STEP_TOTAL,
)
"""All training columns that a report needs; the others of a log are not read."""
