"""What a report says in words and numbers: the law, the forecast, the theory, run by run (pure)."""

import math

from openrlhf_cov.analysis.law import Forecast
from openrlhf_cov.analysis.theory import TheoryCheck
from openrlhf_cov.report.contents import LawSection, Options, RunReport, SameSection, TheorySection
from openrlhf_cov.report.curves import REWARD
from openrlhf_cov.report.text import narrow, number, p_value, percent, with_interval
from openrlhf_cov.utils.estimates import Interval
from openrlhf_cov.utils.text_table import NONE

SAME_P = 0.05
"""p-value below which coefficients are said to differ."""


def share(value: float) -> str:
    """A fraction in percent, two or more significant digits."""
    if not math.isfinite(value):
        return NONE
    percent = 100 * value
    return (f"{percent:.0f}" if abs(percent) >= 10 or percent == 0 else f"{percent:.2g}") + " %"


def ends(interval: Interval) -> str:
    """``low to high``, a dash where there is none."""
    if math.isnan(interval.low) or math.isnan(interval.high):
        return NONE
    return f"{number(interval.low)} to {number(interval.high)}"


def duration(seconds: float) -> str:
    """Days and hours, hours and minutes, or minutes and seconds; a dash for NaN."""
    if not math.isfinite(seconds):
        return NONE
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes // 1440} d {minutes % 1440 // 60} h"


def error_of(value: float, options: Options) -> str:
    """An error of R: in percent where R is a share of 1, as the paper gives them, else in units of R."""
    if options.highest_reward != 1.0:
        return number(value)
    return f"{100 * value:.1f} %"


def law_facts(run: RunReport, options: Options) -> list[tuple[str, str]]:
    """Names and values of what the fit says, for a run to which the law applies; empty for another."""
    fit = run.law.result.fit
    if fit is None or not run.law.result.verdict.applies:
        return []
    level, worth = f"{share(options.level)} interval", fit.effective_points < fit.points
    slope = [(f"dR/dH at H = {number(run.entropy.last)}", with_interval(run.slope))] if run.slope else []
    return [
        ("ceiling, R at H = 0", f"{number(fit.ceiling.estimate)}, {level} {ends(fit.ceiling)}"),
        *slope,
        ("R²", number(fit.r2)),
        ("RMSE", error_of(fit.rmse, options)),
        ("a", with_interval(fit.a)),
        ("b", with_interval(fit.b)),
        ("points", f"{fit.points:,}" + (f", worth {fit.effective_points:,.0f} independent ones" if worth else "")),
    ]


def law_sentence(run: RunReport, options: Options) -> str:
    """One sentence on the law; the reasons against it stand apart."""
    fit = run.law.result.fit
    if fit is None or not run.law.result.verdict.applies:
        return "The law does not apply here:"
    now = f"; it ended at {number(run.reward.last)}" if options.metric == REWARD else ""
    return (
        f"The law describes this run. With no entropy left, {options.metric} would reach "
        f"{number(fit.ceiling.estimate)} ({ends(fit.ceiling)}){now}."
    )


def forecast_sentence(law: LawSection, options: Options) -> str:
    """How well the first part of the run foretold the rest, as the paper reports it."""
    if law.forecast is None:
        return f"No forecast: {law.no_forecast}."
    found = law.forecast
    points = f"{found.fit.points:,} of {law.point_count:,} points"
    first = f"Fitted to the first {percent(options.forecast_share)} % ({points})"
    errors = (
        f"the law misses the rest by an RMSE of {error_of(found.rmse, options)} and the last point by "
        f"{error_of(abs(found.final_error), options)}"
    )
    paper = " (paper, math: 0.9 % and 0.5 %)" if options.highest_reward == 1.0 else ""
    inside = f"{share(found.in_band_frac)} of the later points lie in its {share(found.fit.a.level)} interval"
    few = narrow(found)
    return f"{first}, {errors}{paper}; {inside}. {_worth(found, options)}" + (f" {few.capitalize()}." if few else "")


def _worth(found: Forecast, options: Options) -> str:
    rival = f"Repeating the last level known would have missed by {error_of(found.persistence_rmse, options)}"
    if found.rmse < found.persistence_rmse:
        return f"{rival}."
    return f"{rival}: this forecast is worth nothing."


def theory_sentence(theory: TheorySection) -> str:
    """The theorem against the run."""
    which = f"Theorem {theory.theorem} ({'policy gradient' if theory.theorem == 1 else 'natural policy gradient'})"
    if theory.check is None:
        return f"{which}: {theory.reason}."
    check = theory.check
    return (
        f"{which}: rank correlation of predicted and measured ΔH {with_interval(check.correlation)} over "
        f"{check.pairs:,} pairs of steps{_against_zero(check)}; same sign in {share(check.sign_agreement.estimate)}, "
        f"by chance {share(check.chance_agreement)}; covariance above 0 in {share(check.positive_cov_frac)} of steps."
    )


def _against_zero(check: TheoryCheck) -> str:
    low, high = check.correlation.low, check.correlation.high
    if math.isnan(low):
        return ""
    if low > 0:
        return ", above 0 as predicted"
    return ", below 0, against the theorem" if high < 0 else ", not told from 0"


def same_sentence(same: SameSection) -> str:
    """Have these runs one a and one b?"""
    if same.result is None:
        return f"Whether the runs share their coefficients cannot be said: {same.reason}."
    result = same.result
    p = f"p {p_value(result.p_value)}"
    if result.p_value < SAME_P:
        found = f"The runs do not share one a and one b ({p})."
    else:
        found = f"Nothing speaks against one a and one b for these runs ({p}): a = {number(result.a)}, b = "
        found += f"{number(result.b)}. That is no proof: the differences below say how far apart they may be."
    if same.unfit:
        found += f" The law does not apply to {', '.join(same.unfit)}, whose coefficients mean little."
    return found
