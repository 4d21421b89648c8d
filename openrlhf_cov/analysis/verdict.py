"""Does the entropy law apply to a run? If it does not, the reasons, instead of a confident ceiling (pure)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from openrlhf_cov.analysis.law import FEWEST_POINTS, MIN_POINTS, LawFit, LawPoints, fit_law
from openrlhf_cov.analysis.regression import MAX_POINTS, RESAMPLES, Design, Regression, thinned

# The highest possible R, unless the user names another one: R is an accuracy.
HIGHEST_REWARD = 1.0
# Independent points below which little is known: a random walk that met the law by chance is worth 1 to 4 points, and
# so are 200 points with a kink, a jump or another slow departure from the law. 40 points whose noise has an
# autocorrelation of 0.65 fall below in one case of ten.
MIN_EFFECTIVE_POINTS = 4
# The entropy must fall by this share of its start, and by FALL_ERRORS standard errors. Otherwise the ceiling is a
# guess far from all points.
MIN_FALL = 0.1
FALL_ERRORS = 3
# False alarms among runs that follow the law, from the test of the residuals.
MISFIT_P = 0.01
# Departures from the line below this share of the gain it describes are let pass, however certain they are.
MIN_MISFIT = 0.1


@dataclass(frozen=True)
class Reason:
    """Why the law does not apply: a ``code`` for programs and one sentence."""

    code: str
    text: str


@dataclass(frozen=True)
class LawVerdict:
    """The law applies unless there is a reason against it."""

    reasons: tuple[Reason, ...]

    @property
    def applies(self) -> bool:
        """True if there is no reason against the law."""
        return not self.reasons

    @property
    def codes(self) -> set[str]:
        """The codes of the reasons."""
        return {reason.code for reason in self.reasons}


@dataclass(frozen=True)
class Misfit:
    """Systematic part of the residuals: ``share`` of the gain that the law describes, p-value of "there is none"."""

    share: float
    p_value: float


@dataclass(frozen=True)
class LawResult:
    """A fit, None if the points do not allow one, and the verdict whether the law applies."""

    fit: LawFit | None
    misfit: Misfit | None
    verdict: LawVerdict

    def record(self) -> dict[str, Any]:
        """Return the numbers and the reasons as JSON takes them."""
        share = self.misfit.share if self.misfit and math.isfinite(self.misfit.share) else None
        return {
            "fit": self.fit.record() if self.fit else None,
            "misfit": {"share": share, "p_value": self.misfit.p_value} if self.misfit else None,
            "applies": self.verdict.applies,
            "reasons": [vars(reason) for reason in self.verdict.reasons],
        }


def examine_law(
    points: LawPoints,
    *,
    interventions: Sequence[str] = (),
    highest_reward: float | None = None,
    method: str = "least_squares",
    resamples: int = RESAMPLES,
) -> LawResult:
    """Fit the law and judge whether it describes the points. No points are an error.

    Args:
        points: Entropy in nats and reward of the steps.
        interventions: Names of what acts on the entropy of the run (covariance method, entropy term, KL term). The
            paper states the law without them.
        highest_reward: Largest possible R, 1 for an accuracy; None if unknown.
        method: ``least_squares``, or ``huber`` for a robust fit.
        resamples: Resamples of the intervals.

    Returns:
        Fit, misfit and verdict; the fit is None where there cannot be one.
    """
    reasons = [
        Reason("intervention", f"{each} acts on the entropy; the law describes runs without it")
        for each in interventions
    ]
    if len(points) < MIN_POINTS:
        count = "1 point" if len(points) == 1 else f"{len(points)} points"
        reasons.append(Reason("too_few_points", f"{count}, fewer than {MIN_POINTS}"))
    reasons += _entropy_reasons(points)
    try:
        fit = fit_law(points, method=method, resamples=resamples)
    except ValueError as error:
        return LawResult(None, None, LawVerdict(tuple(reasons) or (Reason("no_fit", str(error)),)))
    misfit = residual_misfit(points, fit, resamples=resamples)
    reasons += _fit_reasons(points, fit, highest_reward)
    if misfit is not None and misfit.p_value < MISFIT_P and misfit.share > MIN_MISFIT:
        # A share of the gain means nothing where the points do not show that there is one.
        size = f" of {misfit.share:.0%} of the gain" if fit.a.low > 0 else ""
        text = f"the residuals follow a curve or a drift{size} (p {misfit.p_value:.2g})"
        reasons.append(Reason("residual_trend", text))
    return LawResult(fit, misfit, LawVerdict(tuple(reasons)))


def usable_bound(points: LawPoints, highest_reward: float | None) -> float | None:
    """Return the highest that R can be; None where R was higher, because the number is then that of another reward.

    Args:
        points: The points of a run.
        highest_reward: The bound that the user gave; None for none.
    """
    if highest_reward is None or (len(points) and points.reward.max() > highest_reward):
        return None
    return highest_reward


def residual_misfit(points: LawPoints, fit: LawFit, *, resamples: int = RESAMPLES) -> Misfit | None:
    """Test R = b - a x + c x^2 + d cos(pi t) with x = exp(H) against c = d = 0; None where the points cannot tell.

    t runs from 0 to 1 over the steps. c is the curve of a law with a kink, d what comes and goes with time alone. Wald
    test with the null distribution of a block bootstrap of the larger model's residuals. Differs from a runs test,
    which calls every autocorrelated residual a trend. A sudden jump of b looks like noise that wanders, not like these
    curves: it shows in the effective points of the fit.

    Args:
        points: Entropy in nats and reward of the steps.
        fit: The fit of the law to these points, whose gain is the unit of ``Misfit.share``.
        resamples: Resamples of the null distribution.
    """
    x = np.exp(points.entropy)
    t = points.steps - points.steps[0]
    # (n, 4). The quadratic term is centred, so that it is nearly orthogonal to the line.
    rows = np.stack([np.ones(len(x)), x, (x - x.mean()) ** 2, np.cos(np.pi * t / t[-1])], axis=1)
    if len(x) < len(rows[0]) + FEWEST_POINTS:
        return None
    try:
        design = Design(thinned(rows))
    except ValueError:  # the entropy takes two values, or follows the cosine
        return None
    regression = Regression.least_squares(design, thinned(points.reward))
    # The part of the two terms that is orthogonal to the line, which no other line could describe.
    curve = design.q @ (design.r @ regression.coefficients * [0, 0, 1, 1])
    gain = abs(fit.a.estimate) * np.ptp(x)
    drawn = regression.draws(tested=2, resamples=resamples).statistic
    p_value = (1 + int((drawn >= regression.statistic(2)).sum())) / (1 + resamples)
    return Misfit(float(np.ptp(curve) / gain) if gain else math.inf, p_value)


def _fit_reasons(points: LawPoints, fit: LawFit, highest_reward: float | None) -> list[Reason]:
    reasons = []
    flat = not np.ptp(points.reward)
    if fit.a.high < 0 and not flat:
        reasons.append(Reason("reward_falls", f"the reward falls with the entropy (a = {fit.a.estimate:.3g})"))
    elif flat:
        reasons.append(Reason("reward_flat", f"the reward is {points.reward[0]:.3g} in all steps"))
    elif fit.a.low <= 0:
        interval = f"a = {fit.a.estimate:.3g}, {_ends(fit.a.low, fit.a.high)}"
        text = f"the points do not show whether the reward depends on the entropy: {interval}"
        reasons.append(Reason("slope_unknown", text))
    if fit.effective_points < MIN_EFFECTIVE_POINTS:
        averaged = ", averaged over consecutive ones," if fit.points > MAX_POINTS else ""
        worth = f"{fit.points} points{averaged} are worth {fit.effective_points:.1f} independent ones"
        text = f"the residuals are autocorrelated: {worth}"
        reasons.append(Reason("residuals_wander", text))
    if highest_reward is not None and fit.ceiling.low > highest_reward:
        text = (
            f"the ceiling, {_ends(fit.ceiling.low, fit.ceiling.high)}, is above the highest reward {highest_reward:g}"
        )
        reasons.append(Reason("ceiling_too_high", text))
    return reasons


def _entropy_reasons(points: LawPoints) -> list[Reason]:
    """Return the reason that the entropy does not fall, if it does not.

    The medians of the first and the last tenth of the points are compared, of at least three points each. Their
    difference must exceed ``MIN_FALL`` of the start and what the noise of single steps explains.
    """
    if len(points) < FEWEST_POINTS:
        return []
    count = max(3, len(points) // 10)
    # Medians, because the entropy of a single step may be far off.
    start = np.median(points.entropy[:count])
    end = np.median(points.entropy[-count:])
    step_noise = float(np.median(np.abs(np.diff(points.entropy)))) / 0.954  # median |N(0, 2)| is 0.954
    error = step_noise * math.sqrt(2 / count)
    if start - end > max(MIN_FALL * start, FALL_ERRORS * error):
        return []
    moved = "rises" if end - start > max(MIN_FALL * start, FALL_ERRORS * error) else "hardly moves"
    return [Reason("entropy_not_falling", f"the entropy {moved}, from {start:.3g} to {end:.3g}")]


def _ends(low: float, high: float) -> str:
    return f"{low:.3g} to {high:.3g}"
