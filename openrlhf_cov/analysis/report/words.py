"""What a report says in words and numbers: the table for the terminal, and sentences, run by run (pure)."""

import math

from openrlhf_cov.analysis.across import Difference
from openrlhf_cov.analysis.law import NARROW_BELOW, Forecast
from openrlhf_cov.analysis.report.contents import (
    Contents,
    Ends,
    LawSection,
    Options,
    RunReport,
    SameSection,
    SizeSection,
    TheorySection,
)
from openrlhf_cov.analysis.report.curves import REWARD
from openrlhf_cov.analysis.theory import TheoryCheck
from openrlhf_cov.utils.estimates import LEVEL, Interval
from openrlhf_cov.utils.metric_table import ENTROPY
from openrlhf_cov.utils.text_table import NONE, Row, aligned

EARLY_HEADS = ("fall of H by 1/12, 1/3", "gain of R by 1/12, 1/3")
"""Columns of ``analysis.stages``."""
HEAD = (
    *("run", "steps", "entropy", "reward", "a", "b", "ceiling", "dR/dH"),
    *("R²", "RMSE", "forecast RMSE", "final error", *EARLY_HEADS),
)
"""Columns of ``run_rows``."""
LEFT = (0, 2, 3)
"""Columns that are flush left."""
MAX_PAIRS = 6
"""Pairs of runs whose differences are printed."""


def summary(contents: Contents) -> str:
    """Table of the runs, then whatever a reader of it has to know, a line each."""
    options = contents.options
    lines = aligned([HEAD, *run_rows(contents)], left=LEFT)
    method = "Huber's fit" if options.robust else "least squares"
    lines += [
        "",
        f"law R = -a exp(H) + b, R: {r_and_h(options)}, {method}; "
        f"{LEVEL:.0%} intervals; dR/dH at the end; forecast from the first {percent(options.forecast_share)}% of the "
        "points, final error: predicted - observed; in the paper 73 %, 94 % of the fall and 76 %, 93 % of the gain",
    ]
    lines += [line for run in contents.runs for line in _remarks(run)]
    lines += [*contents.notes, *(same_lines(contents.same) if contents.same else [])]
    lines += size_lines(contents.sizes) if contents.sizes else []
    return "\n".join(lines) + "\n"


def run_rows(contents: Contents) -> list[Row]:
    """One row of ``HEAD`` per run; no number of the law where it does not apply."""
    return [
        (run.name, f"{run.step_count:,}", arrow(run.entropy), arrow(run.reward), *_law_cells(run), *early_cells(run))
        for run in contents.runs
    ]


def same_lines(same: SameSection) -> list[str]:
    """The test of equal coefficients, and the first pairs of runs."""
    pairs = same.result.differences if same.result else ()
    more = [f"  {len(pairs) - MAX_PAIRS} more pairs with --export"] if len(pairs) > MAX_PAIRS else []
    return [same_sentence(same), *(f"  {difference_line(same, pair)}" for pair in pairs[:MAX_PAIRS]), *more]


def difference_line(same: SameSection, difference: Difference) -> str:
    """``first minus second``: a, b and the ceiling with their intervals."""
    parts = [f"{name} {with_interval(getattr(difference, name))}" for name in ("a", "b", "ceiling")]
    return f"{same.names[difference.first]} minus {same.names[difference.second]}: {', '.join(parts)}"


def size_lines(sizes: SizeSection) -> list[str]:
    """The trend in model size in sentences."""
    if sizes.trend is None:
        return [f"No trend in model size: {sizes.reason}."]
    span = f"{len(sizes.names)} runs from {size_text(min(sizes.sizes))} to {size_text(max(sizes.sizes))}"
    slopes = [f"{name} {number(getattr(sizes.trend, name).slope * math.log(10))}" for name in ("a", "b", "ceiling")]
    lines = [f"Against the logarithm of model size, {span}: change for ten times the parameters: {', '.join(slopes)}."]
    if sizes.unfit:
        lines.append(f"The law does not apply to {', '.join(sizes.unfit)}, whose coefficients mean little.")
    if sizes.extrapolation:
        found = sizes.extrapolation
        parts = [f"{name} {with_interval(getattr(found, name))}" for name in ("a", "b", "ceiling")]
        lines.append(f"Extrapolated at {size_text(found.size)} parameters: {', '.join(parts)}.")
    return lines


def with_interval(interval: Interval) -> str:
    """``0.71 [0.69, 0.73]``; without an interval where there is none."""
    if not (math.isfinite(interval.low) and math.isfinite(interval.high)):
        return f"{number(interval.estimate)} [no interval]"
    return f"{number(interval.estimate)} [{number(interval.low)}, {number(interval.high)}]"


def number(value: float) -> str:
    """Three digits behind the point from 0.1, three that count below; ``NONE`` for NaN."""
    if not math.isfinite(value):
        return NONE
    if value == 0 or 0.1 <= abs(value) < 1000:
        return f"{value:.3f}"
    return f"{value:.3g}"


def percent(share: float) -> str:
    """A fraction in percent with all the digits that it was given with, without the sign."""
    return f"{100 * share:.10g}"


def narrow(found: Forecast) -> str:
    """What to know of a forecast that is fitted to few points; empty for one of many."""
    points = found.fit.points
    too_few = f"fitted to {points} points only: below about {NARROW_BELOW} its interval is too narrow"
    return too_few if points < NARROW_BELOW else ""


def p_value(value: float) -> str:
    """A p-value as people write it."""
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def size_text(size: float) -> str:
    """7e9 as 7B."""
    for power, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if size >= power:
            return f"{size / power:.3g}{unit}"
    return f"{size:g}"


def arrow(ends: Ends) -> str:
    """``0.40 -> 0.16``."""
    if math.isnan(ends.first):
        return NONE
    return f"{number(ends.first)} -> {number(ends.last)}"


def _law_cells(run: RunReport) -> Row:
    law = run.law
    if law.result.fit is None or not law.result.verdict.applies:
        return (NONE,) * 8
    fit, found = law.result.fit, law.forecast
    predicted = (number(found.rmse), f"{found.final_error:+.3f}") if found else (NONE, NONE)
    slope = number(run.slope.estimate) if run.slope else NONE
    line = (number(fit.a.estimate), number(fit.b.estimate), with_interval(fit.ceiling), slope)
    return (*line, number(fit.r2), number(fit.rmse), *predicted)


def early_cells(run: RunReport) -> tuple[str, str]:
    """What of the fall of entropy and of the gain came by 1/12 and by 1/3 of the run."""
    drop, gain = (", ".join(map(share, each)) for each in (run.law.early.drop, run.law.early.gain))
    return drop, gain


def _remarks(run: RunReport) -> list[str]:
    verdict, found = run.law.result.verdict, run.law.forecast
    if not verdict.applies:
        return [f"{run.name}: the law does not apply", *(f"  {reason.text}" for reason in verdict.reasons)]
    if found is None:
        return [f"{run.name}: no forecast, {run.law.no_forecast}"]
    if found.rmse > found.persistence_rmse:
        text = f"its RMSE is {number(found.rmse)}, that of the last mean going on {number(found.persistence_rmse)}"
        return [f"{run.name}: the forecast is worth nothing, {text}"]
    few = narrow(found)
    return [f"{run.name}: the forecast is {few}"] if few else []


def r_and_h(options: Options) -> str:
    """What R is, and H where it is not the mean over all tokens."""
    names = options.metric.split(",")
    r = options.metric if len(names) == 1 else f"mean of {', '.join(names)}"
    return r if options.entropy == ENTROPY else f"{r}, H: {options.entropy}"


# --- sentences

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
    level, worth = f"{share(LEVEL)} interval", fit.effective_points < fit.points
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
    paper = " (paper: 0.9 % and 0.5 % in math, 1.2 % and 1.9 % in code)" if options.highest_reward == 1.0 else ""
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
