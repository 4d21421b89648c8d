"""The contents of a report as records: numbers, reasons and short curves, ready to be drawn and written."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from openrlhf_cov.analysis.across import SameCoefficients, SizeTrend
from openrlhf_cov.analysis.law import Forecast, LawFit, LawPoints
from openrlhf_cov.analysis.regression import Floats
from openrlhf_cov.analysis.report.curves import REWARD, SCORE, Series
from openrlhf_cov.analysis.report.token_view import TokenFile
from openrlhf_cov.analysis.stages import EarlyShares
from openrlhf_cov.analysis.theory import AccuracyCovariance, StageBands, TheoryCheck
from openrlhf_cov.analysis.verdict import HIGHEST_REWARD, LawResult
from openrlhf_cov.utils.estimates import HIGHEST_ENTROPY, Interval
from openrlhf_cov.utils.metric_table import ENTROPY

# What R of the law can be, beside the numbers of evaluations.
TRAINING_METRICS = (REWARD, SCORE)
# Words in the names of scores of evaluations, the most telling one first.
SCORES = ("avg@", "greedy", "pass", "acc", "sampled", "score", "avg")


@dataclass(frozen=True)
class Options:
    """The choices of the user.

    ``metric`` is R of the law: ``reward`` or ``score`` of training, or the name of an evaluation's number; several
    with commas are one, their mean. ``entropy`` is the column of H.
    ``forecast_share`` is the share of the points that the forecast is fitted to. ``highest_reward`` is the best that
    R can be. ``sizes`` are non-embedding parameters by run name, ``extrapolate_to`` a size to go to, or None.
    """

    metric: str = REWARD
    entropy: str = ENTROPY
    forecast_share: float = 0.15
    robust: bool = False
    highest_reward: float | None = HIGHEST_REWARD
    sizes: Mapping[str, float] = field(default_factory=dict)
    extrapolate_to: float | None = None

    @property
    def method(self) -> str:
        """The name of the fit, a key of ``openrlhf_cov.analysis.law.METHODS``."""
        return "huber" if self.robust else "least_squares"


@dataclass(frozen=True)
class Ends:
    """The means of the first and last twentieth of a curve, of one value at least; NaN without values."""

    first: float
    last: float


@dataclass(frozen=True, eq=False)
class LawLine:
    """The fitted line over a grid of ``entropy`` (n,), from H = 0 (the ceiling) to the highest of the run.

    ``exp_entropy`` is exp(H), the x axis of the law. ``reward`` is the line, ``low`` and ``high`` the pointwise
    interval of the line, ``point_low`` and ``point_high`` that of a further point.
    """

    entropy: Floats
    exp_entropy: Floats
    reward: Floats
    low: Floats
    high: Floats
    point_low: Floats
    point_high: Floats


@dataclass(frozen=True, eq=False)
class LawSection:
    """The law of one run: R (``Options.metric``) against exp(H).

    ``points`` are for drawing, at most 1000 of the ``point_count`` that were fitted, in the order of time. Look at
    ``result.verdict.applies`` before showing a number of ``result.fit`` with confidence; ``result.verdict.reasons``
    are sentences that say why not. ``line`` is None without a fit. ``forecast`` has its numbers from all points
    (``later``, ``predicted``, ``low``, ``high`` are those to draw, at most 1000); where it is None,
    ``no_forecast`` says why. ``early`` is how much of the fall and of the gain came early, of all points.
    ``highest_reward`` is the bound of R in force: ``Options.highest_reward``, or None where R of this run was higher.
    """

    points: LawPoints
    point_count: int
    result: LawResult
    line: LawLine | None
    forecast: Forecast | None
    no_forecast: str
    early: EarlyShares
    highest_reward: float | None

    @property
    def accepted(self) -> LawFit | None:
        """The fit of a run that the law describes; None for another run."""
        return self.result.fit if self.result.verdict.applies else None


@dataclass(frozen=True, eq=False)
class TheorySection:
    """One theorem (1 or 2) on one run.

    ``check`` has its numbers from all pairs; ``predicted`` and ``changes`` are those to draw, at most 1000, in the
    order of time. ``group_predicted`` and ``group_changes`` are the means of tenths of all pairs, in the order of the
    prediction: the trend through the cloud. Where ``check`` is None, ``reason`` says why.
    """

    theorem: int
    check: TheoryCheck | None
    reason: str
    group_predicted: Floats
    group_changes: Floats


@dataclass(frozen=True, eq=False)
class Phases:
    """Seconds per step and phase, means over parts of the run; ``steps`` (m,) is the middle of each, m at most 120.

    ``seconds`` has the time (m,) of each column of ``PHASES``, and ``OTHER_PHASE`` last, in the order of the stack;
    0 where nothing was logged. Both names are defined in ``openrlhf_cov.analysis.report.curves``.
    """

    steps: Floats
    seconds: Mapping[str, Floats]


@dataclass(frozen=True, eq=False)
class RunReport:
    """One run.

    ``name`` is short and unlike that of any other run of the report. ``settings`` are flags and values with secrets
    masked, empty where they are not known. ``warnings`` say what was odd about the files. ``step_count`` is the number
    of logged steps, ``last_step`` the number of the last one, ``seconds`` the time between first and last line, NaN
    without a clock. ``length`` is that of responses in tokens, ``selected`` the mean share of selected tokens, NaN
    where it was not logged.
    ``series`` has a curve for each of ``SERIES_COLUMNS`` that was logged; a missing one is not there. ``evaluations``
    are the curves of all numbers of evaluations. ``stage_bands`` is table 1 over training, empty without covariances.
    ``accuracy`` is the covariance by accuracy of the prompts, by title of ``ACCURACY_CURVES``, as far as it was logged
    (both lists are in ``openrlhf_cov.analysis.report.curves``). ``group_correlation`` is that of eq. 8 with -dH over
    the steps, None without. ``phases`` is None where no time was logged.
    """

    name: str
    path: Path
    settings: Mapping[str, str]
    warnings: tuple[str, ...]
    step_count: int
    last_step: int
    seconds: float
    entropy: Ends
    reward: Ends
    length: Ends
    selected: float
    series: Mapping[str, Series]
    evaluations: Mapping[str, Series]
    law: LawSection
    theory: tuple[TheorySection, ...]
    stage_bands: tuple[StageBands, ...]
    accuracy: Mapping[str, AccuracyCovariance]
    group_correlation: Interval | None
    phases: Phases | None
    token_files: tuple[TokenFile, ...]

    def score_ends(self, name: str) -> Ends:
        """Return the first and the last value of a number of the evaluations; NaN where the run does not have it."""
        series = self.evaluations.get(name)
        return Ends(float(series.values[0]), float(series.values[-1])) if series else Ends(math.nan, math.nan)

    @property
    def slope(self) -> Interval | None:
        """dR/dH at the entropy that the run ended with; None without a fit or an entropy."""
        fit = self.law.result.fit
        return fit.slope_at(self.entropy.last) if fit and abs(self.entropy.last) < HIGHEST_ENTROPY else None


@dataclass(frozen=True)
class Extrapolation:
    """a, b and the ceiling that the trend gives a model of ``size`` parameters."""

    size: float
    a: Interval
    b: Interval
    ceiling: Interval


@dataclass(frozen=True, eq=False)
class SizeSection:
    """a, b and the ceiling of the runs ``names`` against their ``sizes``. If ``trend`` is None, ``reason`` says why.

    ``unfit`` names the runs to which the law does not apply. ``grid`` is the trend at sizes for drawing,
    ``extrapolation`` the trend at the size that the user named.
    """

    names: tuple[str, ...]
    unfit: tuple[str, ...]
    sizes: tuple[float, ...]
    trend: SizeTrend | None
    reason: str
    grid: tuple[Extrapolation, ...]
    extrapolation: Extrapolation | None


@dataclass(frozen=True)
class SameSection:
    """The test whether the runs ``names`` share one a and one b. If ``result`` is None, ``reason`` says why.

    Its differences count the runs in the order of ``names``. ``unfit`` names the runs to which the law does not apply.
    """

    names: tuple[str, ...]
    unfit: tuple[str, ...]
    result: SameCoefficients | None
    reason: str


@dataclass(frozen=True)
class Setting:
    """A flag that differs between runs; ``values`` is by run, in their order, None where a run did not set it.

    Runs whose flags are not known at all have None everywhere and make no difference.
    """

    flag: str
    values: tuple[str | None, ...]


@dataclass(frozen=True, eq=False)
class Contents:
    """The content of a report. ``same`` is None for a single run, ``sizes`` None where no size is known.

    ``notes`` are sentences about the report as a whole.
    """

    title: str
    options: Options
    runs: tuple[RunReport, ...]
    settings: tuple[Setting, ...]
    same: SameSection | None
    sizes: SizeSection | None
    notes: tuple[str, ...]


def of_training(metric: str) -> bool:
    """Return True if R is measured on the rollouts, not by evaluations."""
    return metric.split(",")[0] in TRAINING_METRICS


def is_score(column: str) -> bool:
    """Return True if a number of an evaluation is a score, by its name."""
    return any(word in column for word in SCORES)


def evaluation_columns(runs: Sequence[RunReport]) -> list[str]:
    """Return the numbers of evaluations: overall scores, then scores of parts of a benchmark, then other numbers."""
    # In the order in which the runs logged them; sorted() below keeps this order within each kind.
    columns = list(dict.fromkeys(name for run in runs for name in run.evaluations))
    return sorted(columns, key=lambda name: (not is_score(name), is_part(name, columns)))


def is_part(column: str, columns: Collection[str]) -> bool:
    """Return True if a number is a part of another one, as ``greedy/c`` is of ``greedy``.

    Args:
        column: Name of the number.
        columns: Names of all numbers of the evaluations.
    """
    whole, slash, _ = column.partition("/")
    return bool(slash) and whole in columns


def main_score(runs: Sequence[RunReport]) -> str:
    """Return the first score of the evaluations, "" without one."""
    return next(filter(is_score, evaluation_columns(runs)), "")
