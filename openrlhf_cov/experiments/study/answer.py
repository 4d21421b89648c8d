"""What an answer of a study is, and how its numbers are said (pure)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from openrlhf_cov.experiments.study.run_plan import chosen
from openrlhf_cov.experiments.study.run_results import Result, score_of
from openrlhf_cov.experiments.study.spec import Spec
from openrlhf_cov.experiments.study.table_rows import report_runs
from openrlhf_cov.utils.estimates import Interval

# Difference of two arms that a table of two digits shows; one question that all seeds have right is none.
SHOWN = 0.005
NOT_ENOUGH = "Not enough data"

# The finished runs of each arm's point with fresh seeds, by seed.
Runs = Mapping[str, dict[int, Result]]


@dataclass(frozen=True)
class Answer:
    """A question, what the runs say in a sentence or some, and the numbers behind it as rows of a table."""

    question: str
    text: str
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def finished_runs(spec: Spec, results: Sequence[Result]) -> Runs:
    """The runs that are reported."""
    scores = {each.run: score_of(each) for each in results}
    return {arm.name: report_runs(arm, chosen(spec, arm, scores), results) for arm in spec.arms}


def differs(apart: Interval) -> bool:
    """True of a difference whose interval is without 0, and large enough to be seen in a table."""
    return apart.low * apart.high > 0 and abs(apart.estimate) >= SHOWN


def verdict(apart: Interval, below: str, above: str) -> str:
    """In words what an interval of a difference says."""
    if not math.isfinite(apart.low):
        return "cannot be told"
    word = (above if apart.estimate > 0 else below) if differs(apart) else "shows no difference"
    return f"{word} ({shown(apart, signed=True)})"


def shown(value: Interval, digits: int = 2, signed: bool = False) -> str:
    """0.80 [0.71, 0.89]; without an interval the estimate alone, "-" without an estimate."""
    sign = "+" if signed else ""
    if not math.isfinite(value.estimate):
        return "-"
    if not math.isfinite(value.low):
        return f"{value.estimate:{sign}.{digits}f}"
    return f"{value.estimate:{sign}.{digits}f} [{value.low:{sign}.{digits}f}, {value.high:{sign}.{digits}f}]"


def listed(names: Sequence[str]) -> str:
    """Names with commas, or none."""
    return ", ".join(names) or "none"
