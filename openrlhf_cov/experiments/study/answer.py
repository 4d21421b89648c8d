"""The record of a study's answer, and the format of its numbers (pure)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from openrlhf_cov.experiments.study.run_plan import chosen
from openrlhf_cov.experiments.study.run_results import Result, score_of
from openrlhf_cov.experiments.study.spec import Spec
from openrlhf_cov.experiments.study.table_rows import report_runs
from openrlhf_cov.utils.estimates import Interval

# Smallest difference of two methods that a table with two digits shows.
SHOWN = 0.005
NOT_ENOUGH = "Not enough data"
# Title of the section with the differences of all methods from the first one.
AGAINST = "Difference from the baseline"

# Method -> seed -> finished run of its selected configuration, with the reported seeds.
Runs = Mapping[str, dict[int, Result]]


@dataclass(frozen=True)
class Answer:
    """A question, its answer in a few sentences, and the numbers behind it as rows of a table."""

    question: str
    text: str
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def finished_runs(spec: Spec, results: Sequence[Result]) -> Runs:
    """Return the finished runs of each method with its selected configuration and the reported seeds.

    Args:
        spec: The study, which gives the order of the methods.
        results: Finished runs of the study. Those of tuning decide which configurations are selected.

    Returns:
        Method -> seed -> run. A method whose tuning is not finished has no runs.
    """
    scores = {each.run: score_of(each) for each in results}
    return {method.name: report_runs(method, chosen(spec, method, scores), results) for method in spec.methods}


def differs(apart: Interval) -> bool:
    """Return True if the interval of a difference excludes 0 and a table with two digits shows the difference."""
    return apart.low * apart.high > 0 and abs(apart.estimate) >= SHOWN


def rule(over: str = "") -> str:
    """Return the words for when ``differs`` is true, to follow "a difference counts if ".

    Args:
        over: What the interval is over, such as "8 seeds"; nothing if the text says it elsewhere.
    """
    return f"its 95 % interval{over and f' over {over}'} excludes zero and its size is at least {SHOWN:g}"


def lacks_interval(apart: Interval) -> bool:
    """Return True if a table with two digits shows a difference, but no interval because all seeds have the same one.

    Args:
        apart: The difference, from at least two seeds.
    """
    return math.isnan(apart.low) and abs(apart.estimate) >= SHOWN


def verdict(apart: Interval, below: str, above: str) -> str:
    """Return in words, with the numbers, if the interval of a difference excludes 0 and on which side.

    Args:
        apart: The difference and its interval. It has no interval if all runs have the same difference, and no
            estimate if there are too few runs.
        below: Words for a difference below 0.
        above: Words for a difference above 0.
    """
    if not math.isfinite(apart.estimate):
        return "has too few runs"
    if lacks_interval(apart):
        word = "has no interval"
    elif not differs(apart):
        word = "shows no difference"
    elif apart.estimate > 0:
        word = above
    else:
        word = below
    return f"{word} ({shown(apart, signed=True)})"


def shown(value: Interval, digits: int = 2, signed: bool = False) -> str:
    """Return "0.80 [0.71, 0.89]"; the estimate alone without an interval, "-" without an estimate.

    Args:
        value: The estimate and its interval.
        digits: Digits after the decimal point.
        signed: True to write a plus before positive numbers.
    """
    sign = "+" if signed else ""
    if not math.isfinite(value.estimate):
        return "-"
    if not math.isfinite(value.low):
        return f"{value.estimate:{sign}.{digits}f}"
    return f"{value.estimate:{sign}.{digits}f} [{value.low:{sign}.{digits}f}, {value.high:{sign}.{digits}f}]"


def listed(names: Sequence[str]) -> str:
    """Return the names with commas between them, or "none"."""
    return ", ".join(names) or "none"
