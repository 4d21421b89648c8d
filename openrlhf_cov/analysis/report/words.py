"""The words and numbers of a report: the table for the terminal, and sentences about a run (pure)."""

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
    main_score,
)
from openrlhf_cov.analysis.report.curves import REWARD
from openrlhf_cov.analysis.theory import TheoryCheck
from openrlhf_cov.utils.estimates import LEVEL, Interval
from openrlhf_cov.utils.metric_table import ENTROPY
from openrlhf_cov.utils.text_table import NONE, Row, aligned

RUN_HEAD = ("run", "steps", "reward", "entropy", "length", "selected")
LAW_HEAD = ("run", "a", "b", "ceiling", "dR/dH", "R²", "RMSE", "forecast RMSE", "final error")
# Pairs of runs whose differences are printed.
MAX_PAIRS = 6
# Coefficients are said to differ below this p-value.
SAME_P = 0.05


def summary(contents: Contents) -> str:
    """Return the tables of the runs and of the law, and a line for each thing that a reader has to know."""
    lines = run_table(contents)
    lines += ["", f"Entropy law R = -a exp(H) + b. {asked(contents.options)}"]
    rows = [law_row(run) for run in contents.runs if run.law.accepted]
    lines += aligned([LAW_HEAD, *rows]) if rows else []
    lines += [line for run in contents.runs for line in _remarks(run)]
    lines += [f"Note: {note}." for note in contents.notes]
    lines += same_lines(contents.same) if contents.same and compares(contents) else []
    lines += size_lines(contents.sizes) if contents.sizes else []
    return "\n".join(lines) + "\n"


def run_table(contents: Contents) -> list[str]:
    """Return the table of the runs: first and last values of the curves; columns without a value are left out."""
    score = main_score(contents.runs)
    rows: list[Row] = [(*RUN_HEAD, score)]
    for run in contents.runs:
        curves = (run.reward, run.entropy, run.length)
        selected = share(run.selected) if run.selected > 0 else NONE
        rows.append((run.name, f"{run.step_count:,}", *map(arrow, curves), selected, arrow(run.score_ends(score))))
    columns = [column for column in zip(*rows, strict=True) if any(cell != NONE for cell in column[1:])]
    return aligned(list(zip(*columns, strict=True)))


def law_row(run: RunReport) -> Row:
    """Return the row of a run in the table with the head ``LAW_HEAD``.

    If the law does not describe the run, all cells but its name are ``NONE``.
    """
    fit = run.law.accepted
    found = run.law.forecast
    if fit is None:
        return (run.name, *[NONE] * (len(LAW_HEAD) - 1))
    slope = number(run.slope.estimate) if run.slope else NONE
    errors = (number(found.rmse), f"{found.final_error:+.3f}") if found else (NONE, NONE)
    line = (number(fit.a.estimate), number(fit.b.estimate), with_interval(fit.ceiling), slope)
    return (run.name, *line, number(fit.r2), number(fit.rmse), *errors)


def asked(options: Options) -> str:
    """Return a sentence about what the law is fitted to, and how."""
    fit = "Huber's robust fit" if options.robust else "least squares"
    first = percent(options.forecast_share)
    how = f"{fit}, {share(LEVEL)} intervals, forecast from the first {first} % of the points"
    return f"R is {r_and_h(options)}. Fit: {how}."


def compares(contents: Contents) -> bool:
    """Return True if the law describes two runs or more, so that their coefficients can be compared."""
    return sum(run.law.accepted is not None for run in contents.runs) > 1


def same_lines(same: SameSection) -> list[str]:
    """Return the test of equal coefficients and the first pairs of runs."""
    pairs = same.result.differences if same.result else ()
    more = [f"  {len(pairs) - MAX_PAIRS} more pairs with --export"] if len(pairs) > MAX_PAIRS else []
    return [same_sentence(same), *(f"  {difference_line(same, pair)}" for pair in pairs[:MAX_PAIRS]), *more]


def difference_line(same: SameSection, difference: Difference) -> str:
    """Return a line with the differences of a, b and the ceiling of two runs, and their intervals.

    Args:
        same: The section with the names of the runs.
        difference: The difference, the first run minus the second.
    """
    parts = [f"{name} {with_interval(getattr(difference, name))}" for name in ("a", "b", "ceiling")]
    return f"{same.names[difference.first]} minus {same.names[difference.second]}: {', '.join(parts)}"


def size_lines(sizes: SizeSection) -> list[str]:
    """Return sentences about the trend in model size."""
    if sizes.trend is None:
        return [f"No trend in model size: {sizes.reason}."]
    span = f"{len(sizes.names)} runs from {size_text(min(sizes.sizes))} to {size_text(max(sizes.sizes))}"
    slopes = [f"{name} {number(getattr(sizes.trend, name).slope * math.log(10))}" for name in ("a", "b", "ceiling")]
    lines = [f"Trend in model size ({span}): ten times the parameters change {', '.join(slopes)}."]
    if sizes.unfit:
        lines.append(_unfit(sizes.unfit).strip())
    if sizes.extrapolation:
        found = sizes.extrapolation
        parts = [f"{name} {with_interval(getattr(found, name))}" for name in ("a", "b", "ceiling")]
        lines.append(f"Extrapolated at {size_text(found.size)} parameters: {', '.join(parts)}.")
    return lines


def with_interval(interval: Interval) -> str:
    """Return ``0.71 [0.69, 0.73]``; without an interval where there is none."""
    if not (math.isfinite(interval.low) and math.isfinite(interval.high)):
        return f"{number(interval.estimate)} [no interval]"
    return f"{number(interval.estimate)} [{number(interval.low)}, {number(interval.high)}]"


def number(value: float) -> str:
    """Return a number with three decimals from 0.1 and one from 100, else with three significant digits.

    NaN and infinities are ``NONE``.
    """
    if not math.isfinite(value):
        return NONE
    if 100 <= abs(value) < 1000:
        return f"{value:.1f}"
    if value == 0 or 0.1 <= abs(value) < 100:
        return f"{value:.3f}"
    return f"{value:.3g}"


def percent(share: float) -> str:
    """Return a fraction in percent with all its digits, without the sign."""
    return f"{100 * share:.10g}"


def narrow(found: Forecast) -> str:
    """Return a warning about a forecast that is fitted to few points, without a full stop; empty for many points."""
    points = found.fit.points
    too_few = (
        f"the forecast is fitted to {points} points; below about {NARROW_BELOW} points its interval is too narrow"
    )
    return too_few if points < NARROW_BELOW else ""


def p_value(value: float) -> str:
    """Return a p-value as text."""
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def size_text(size: float) -> str:
    """Return 7e9 as 7B."""
    for power, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if size >= power:
            return f"{size / power:.3g}{unit}"
    return f"{size:g}"


def arrow(ends: Ends) -> str:
    """Return ``0.40 -> 0.16``, or one number where both ends are equal."""
    if math.isnan(ends.first):
        return NONE
    if ends.first == ends.last:
        return number(ends.first)
    return f"{number(ends.first)} -> {number(ends.last)}"


def early_facts(run: RunReport) -> list[tuple[str, str]]:
    """Return how much of the drop of entropy and of the gain of reward came early; empty where neither changed."""
    names = ("drop of entropy after 1/12 and 1/3 of the run", "gain of R after 1/12 and 1/3 of the run")
    found = zip(names, (run.law.early.drop, run.law.early.gain), strict=True)
    return [(name, ", ".join(map(share, values))) for name, values in found if all(map(math.isfinite, values))]


def _remarks(run: RunReport) -> list[str]:
    """Return lines about a run that the law does not describe, or whose forecast is missing or of little use."""
    found = run.law.forecast
    if run.law.accepted is None:
        return [
            f"{run.name}: the law does not apply.",
            *(f"  - {reason.text}" for reason in run.law.result.verdict.reasons),
        ]
    if found is None:
        return [f"{run.name}: no forecast: {run.law.no_forecast}."]
    if found.rmse > found.persistence_rmse:
        text = f"its RMSE is {number(found.rmse)}, and repeating the last level has {number(found.persistence_rmse)}"
        return [f"{run.name}: the forecast is worth nothing: {text}."]
    few = narrow(found)
    return [f"{run.name}: {few}."] if few else []


def r_and_h(options: Options) -> str:
    """Return what R is, and what H is where it is not the mean over all tokens."""
    names = options.metric.split(",")
    r = options.metric if len(names) == 1 else f"mean of {', '.join(names)}"
    return r if options.entropy == ENTROPY else f"{r}, H: {options.entropy}"


# --- sentences


def share(value: float) -> str:
    """Return a fraction in percent with two or more significant digits."""
    if not math.isfinite(value):
        return NONE
    percent = 100 * value
    return (f"{percent:.0f}" if abs(percent) >= 10 or percent == 0 else f"{percent:.2g}") + " %"


def ends(interval: Interval) -> str:
    """Return ``low to high``; a dash where there is no interval."""
    if math.isnan(interval.low) or math.isnan(interval.high):
        return NONE
    return f"{number(interval.low)} to {number(interval.high)}"


def error_of(value: float, law: LawSection) -> str:
    """Return an error of R as text.

    Args:
        value: The error, in units of R.
        law: The law of the run. If R cannot exceed 1, R is a share and the text is in percent, as in the paper.
    """
    if law.highest_reward != 1.0:
        return number(value)
    return f"{100 * value:.1f} %"


def law_facts(run: RunReport) -> list[tuple[str, str]]:
    """Return names and values of the fit of a run that the law describes; empty for another run."""
    fit = run.law.accepted
    if fit is None:
        return []
    worth = f"{fit.independent_points:,.0f}"
    worth = f", worth {worth} independent points" if worth != f"{fit.points:,}" else ""
    slope = [(f"dR/dH at H = {number(run.entropy.last)}", with_interval(run.slope))] if run.slope else []
    return [
        ("ceiling, R at H = 0", f"{number(fit.ceiling.estimate)}, {share(LEVEL)} interval {ends(fit.ceiling)}"),
        *slope,
        ("R²", number(fit.r2)),
        ("RMSE", error_of(fit.rmse, run.law)),
        ("a", with_interval(fit.a)),
        ("b", with_interval(fit.b)),
        ("points", f"{fit.points:,}{worth}"),
        *early_facts(run),
    ]


def law_sentence(run: RunReport, options: Options) -> str:
    """Return one sentence about the law; it does not repeat the reasons against the law.

    Args:
        run: The run.
        options: The choices of the user, which name R.
    """
    fit = run.law.accepted
    if fit is None:
        return "The law does not apply to this run."
    now = f"; it ended at {number(run.reward.last)}" if options.metric == REWARD else ""
    return (
        f"The law describes this run. With no entropy left, {options.metric} would reach "
        f"{number(fit.ceiling.estimate)} ({ends(fit.ceiling)}){now}."
    )


def forecast_sentence(law: LawSection, options: Options) -> str:
    """Return how well the first part of the run predicted the rest, as the paper reports it.

    Args:
        law: The law of the run, with its forecast or the reason why there is none.
        options: The choices of the user, which name the share of the points that is fitted.
    """
    if law.forecast is None:
        return f"No forecast: {law.no_forecast}."
    found = law.forecast
    points = f"{found.fit.points:,} of {law.point_count:,} points"
    first = f"Fitted to the first {percent(options.forecast_share)} % ({points})"
    errors = (
        f"the law misses the rest by an RMSE of {error_of(found.rmse, law)} and the last point by "
        f"{error_of(abs(found.final_error), law)}"
    )
    paper = " (paper: 0.9 % and 0.5 % in math, 1.2 % and 1.9 % in code)" if law.highest_reward == 1.0 else ""
    inside = f"{share(found.in_band_frac)} of the later points lie in its {share(found.fit.a.level)} interval"
    rival = f"Repeating the last known level would have missed by {error_of(found.persistence_rmse, law)}"
    worth = "" if found.rmse < found.persistence_rmse else ": this forecast is worth nothing"
    few = narrow(found)
    few = f" {few[0].upper()}{few[1:]}." if few else ""
    return f"{first}, {errors}{paper}. {inside[0].upper()}{inside[1:]}. {rival}{worth}.{few}"


def theory_sentence(theory: TheorySection) -> str:
    """Return how well a theorem predicts the changes of entropy of the run."""
    which = f"Theorem {theory.theorem} ({'policy gradient' if theory.theorem == 1 else 'natural policy gradient'})"
    if theory.check is None:
        return f"{which}: {theory.reason}."
    check = theory.check
    return (
        f"{which}: the rank correlation of predicted and measured ΔH is {with_interval(check.correlation)} over "
        f"{check.pairs:,} pairs of steps{_against_zero(check)}. The signs agree in "
        f"{share(check.sign_agreement.estimate)} of the pairs (by chance: {share(check.chance_agreement)}), and the "
        f"covariance is positive in {share(check.positive_cov_frac)} of the steps."
    )


def _against_zero(check: TheoryCheck) -> str:
    low = check.correlation.low
    high = check.correlation.high
    if math.isnan(low):
        return ""
    if low > 0:
        return ", above 0 as predicted"
    return ", below 0, against the theorem" if high < 0 else ", not distinguishable from 0"


def same_sentence(same: SameSection) -> str:
    """Return whether the runs share one a and one b."""
    if same.result is None:
        return f"The coefficients of the runs cannot be compared: {same.reason}."
    result = same.result
    p = f"p {p_value(result.p_value)}"
    if result.p_value < SAME_P:
        found = f"The runs do not share one a and one b ({p})."
    else:
        found = f"The runs may share one a and one b ({p}): a = {number(result.a)}, b = {number(result.b)}. "
        found += "This is no proof; the differences show how far apart they may be."
    return found + _unfit(same.unfit)


def _unfit(names: tuple[str, ...]) -> str:
    return f" The law does not apply to {', '.join(names)}, so these coefficients mean little." if names else ""
