"""The page that compares forecasts of the end of a run: the entropy law against a sigmoid in compute (pure)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from openrlhf_cov.analysis.end_forecast import END_SHARE, EndForecast, forecast_end
from openrlhf_cov.analysis.pages.chart import Axis, Chart, Mark, Panel, look_of
from openrlhf_cov.experiments.study.answer import finished_runs, shown
from openrlhf_cov.experiments.study.document import Document, Section
from openrlhf_cov.experiments.study.run_results import Result
from openrlhf_cov.experiments.study.seed_estimates import mean_difference, mean_over_seeds
from openrlhf_cov.experiments.study.spec import Spec
from openrlhf_cov.experiments.study.study_law import points
from openrlhf_cov.experiments.study.study_summary import joined
from openrlhf_cov.experiments.study.sweeps import runs_of
from openrlhf_cov.utils.estimates import Interval

SHARES = (0.15, 0.3, 0.5)
# Field of ``EndForecast`` -> heading.
FORECASTS = {
    "law": "law, told the entropy",
    "ceiling": "law at entropy 0",
    "sigmoid": "sigmoid",
    "last": "last reward",
}
ALL = "all methods"
TITLE = "Forecasts of the end of a run"
BY_TASK = "By task"
OVER_STUDIES = (
    "A row has the smallest and the largest mean error of the studies of a task. A forecast is better in a study if "
    "the 95 % interval of the difference excludes zero. Studies of one task share runs of GRPO, so they are not "
    "independent."
)
ABOUT = (
    "Which curve forecasts the reward at the end of a run from its beginning: the law R = −a·exp(H) + b, or a "
    f"sigmoid in the number of steps? The end is the mean training reward of the last {END_SHARE:.0%} of the steps. "
    "All published lab runs with fresh seeds count, but for the short ones of the bandit. A sweep counts with the "
    "runs of all its settings. Many of these runs end early, when the task is learned or the policy has collapsed."
)
HOW = (
    "Errors are absolute, in units of the reward (0 to 1). The law is fitted to the known steps and then told the "
    "entropy of the end, which no forecast knows in practice; at entropy 0 it is told nothing. The sigmoid is R = "
    "R₀ + (A − R₀) / (1 + (C₀ / C)^B) with C in steps, as in arXiv 2510.13786, and levels from 0 to 1. The last "
    "reward is the mean of the last tenth of the known steps. Every forecast stays within 0 and 1."
)
INTERVALS = (
    "Means and 95 % intervals over seeds (Student's t). In each row, errors are first averaged over all runs of a "
    "seed, of several methods or settings of a sweep, because runs with the same seed are not independent. A negative "
    "difference favours the law."
)
CAPTION = (
    "Mean absolute error of each forecast, by task and known part of the run, averaged over the studies of the task."
)


# The runs of a method: for each setting of the sweep, seed -> run.
RunsBySetting = Mapping[str, Sequence[Mapping[int, Result]]]
# The forecasts of a method: for each setting of the sweep, seed -> forecast.
Settings = Sequence[Mapping[int, EndForecast]]


@dataclass(frozen=True)
class StudyErrors:
    """Forecasts of one study: share of known steps -> method -> setting of the sweep -> seed -> forecast.

    The methods of a study without a sweep have one setting.
    """

    study: str
    task: str
    forecasts: Mapping[float, Mapping[str, Settings]]


def runs_by_setting(spec: Spec, results: Sequence[Result]) -> RunsBySetting:
    """Return the finished runs with fresh seeds of each method: method -> setting of the sweep -> seed -> run.

    Args:
        spec: The study, with or without a sweep.
        results: Its finished runs.
    """
    if spec.sweep is None:
        return {method: [runs] for method, runs in finished_runs(spec, results).items()}
    return {method.name: list(runs_of(spec, method, results).values()) for method in spec.methods}


def study_errors(study: str, task: str, runs: RunsBySetting) -> StudyErrors:
    """Return the forecasts for all finished runs of a study.

    Args:
        study: Name of the study.
        task: Its task.
        runs: Finished runs, by method, setting and seed. A run that is too short for a forecast is left out of that
            share.
    """
    found = {}
    for share in SHARES:
        by_method = {
            method: [forecasts for of_setting in settings if (forecasts := _forecasts(of_setting, share))]
            for method, settings in runs.items()
        }
        found[share] = {method: settings for method, settings in by_method.items() if settings}
    return StudyErrors(study, task, found)


def _forecasts(runs: Mapping[int, Result], share: float) -> dict[int, EndForecast]:
    """Return the forecasts of runs, by seed, without those of the runs that are too short."""
    found = {}
    for seed, result in runs.items():
        try:
            found[seed] = forecast_end(points(result), share)
        except ValueError:
            continue
    return found


def forecast_document(studies: Sequence[StudyErrors]) -> Document:
    """Return the page: a table by task and one by study."""
    by_study: list[tuple[str, ...]] = []
    for each in studies:
        first = next(iter(each.forecasts[SHARES[0]]), None)
        if first is None:
            continue
        for share in SHARES:
            for name, methods in ((first, [first]), (ALL, list(each.forecasts[share]))):
                by_study.append(_study_row(each, share, name, methods))
    head = ("study", "methods", "runs", "known", *FORECASTS.values(), "law minus sigmoid")
    task_head = ("task", "studies", "known", *FORECASTS.values(), "law better in", "sigmoid better in")
    return Document(
        TITLE,
        ABOUT,
        (
            Section(BY_TASK, (HOW, OVER_STUDIES), task_head, tuple(_task_rows(studies))),
            Section("By study", (INTERVALS,), head, tuple(by_study)),
        ),
        (forecast_chart(studies),),
        forecast_summary(studies),
    )


def forecast_summary(studies: Sequence[StudyErrors]) -> str:
    """Return in how many studies of each task the law or the sigmoid is better, for the last share of ``SHARES``."""
    known = f"{SHARES[-1]:.0%}"
    law_wins = []
    sigmoid_wins = []
    for task, count, share, *_, law, sigmoid in _task_rows(studies):
        if share == known:
            law_wins.append(f"{law} of {count} studies of {task}")
            sigmoid_wins.append(f"{sigmoid} of {count} of {task}")
    if not law_wins:
        return ""
    return (
        f"From the first {known} of a run, the law forecasts its end better than the sigmoid in "
        f"{joined(law_wins)}; the sigmoid is better in {joined(sigmoid_wins)}. The law is told the entropy of the "
        "end, which no forecast knows in practice."
    )


def forecast_chart(studies: Sequence[StudyErrors]) -> Chart:
    """Return a panel for each task: the mean error of each forecast against the known share of the steps."""
    marks: dict[str, list[Mark]] = {}
    for task in dict.fromkeys(each.task for each in studies):
        of_task = [each for each in studies if each.task == task]
        for place, (name, heading) in enumerate(FORECASTS.items()):
            errors = [np.mean([mean_error(each, share, name) for each in of_task]) for share in SHARES]
            marks.setdefault(task, []).append(Mark("line", look_of(place), SHARES, errors, name=heading))
    # The panels share an axis, so its ends must suit all of them.
    highest = max((mark.values("y").max() for of_task in marks.values() for mark in of_task), default=1.0)
    x = Axis("known part of the run", ticks={share: f"{share:.0%}" for share in SHARES})
    y = Axis("mean absolute error", ends=(0.0, 1.05 * float(highest)))
    panels = [Panel(tuple(of_task), x, y, task) for task, of_task in marks.items()]
    return Chart("forecasts", "Errors of the forecasts", tuple(panels), note=CAPTION, columns=3, shared="y")


def _task_rows(studies: Sequence[StudyErrors]) -> list[tuple[str, ...]]:
    """Return a row for each task and share: the range of the mean errors over its studies, and who is better."""
    rows = []
    for task in dict.fromkeys(each.task for each in studies):
        of_task = [each for each in studies if each.task == task]
        for share in SHARES:
            means = [[mean_error(each, share, name) for each in of_task] for name in FORECASTS]
            differences = [difference(all_settings(each, share)) for each in of_task]
            better = (sum(each.high < 0 for each in differences), sum(each.low > 0 for each in differences))
            cells = (_range(values) for values in means)
            rows.append((task, str(len(of_task)), f"{share:.0%}", *cells, *map(str, better)))
    return rows


def mean_error(study: StudyErrors, share: float, name: str) -> float:
    """Return the mean error of a forecast over the seeds of a study.

    Args:
        study: The forecasts of the study.
        share: Known share of the steps, one of ``SHARES``.
        name: The forecast, a key of ``FORECASTS``.
    """
    return float(np.mean(list(errors_by_seed(all_settings(study, share), name).values())))


def all_settings(study: StudyErrors, share: float) -> list[Mapping[int, EndForecast]]:
    """Return the forecasts of a study from a share of the steps, by seed, for each method and setting."""
    return list(chain.from_iterable(study.forecasts[share].values()))


def _range(values: Sequence[float]) -> str:
    low = f"{min(values):.2f}"
    high = f"{max(values):.2f}"
    return low if low == high else f"{low}–{high}"


def errors_by_seed(forecasts: Iterable[Mapping[int, EndForecast]], name: str) -> dict[int, float]:
    """Return the error of a forecast by seed, as the mean over methods and settings.

    Args:
        forecasts: For each method and setting, its forecasts by seed; a seed may lack some of them.
        name: The forecast, a key of ``FORECASTS``.
    """
    by_seed: dict[int, list[float]] = {}
    for of_setting in forecasts:
        for seed, forecast in of_setting.items():
            by_seed.setdefault(seed, []).append(forecast.error(name))
    return {seed: float(np.mean(errors)) for seed, errors in by_seed.items()}


def difference(forecasts: Settings) -> Interval:
    """Return the error of the law minus that of the sigmoid, over the seeds of all methods and settings."""
    law = errors_by_seed(forecasts, "law")
    sigmoid = errors_by_seed(forecasts, "sigmoid")
    return mean_difference([law[seed] - sigmoid[seed] for seed in law])


def _study_row(study: StudyErrors, share: float, name: str, methods: Sequence[str]) -> tuple[str, ...]:
    of_methods = list(chain.from_iterable(study.forecasts[share].get(method, []) for method in methods))
    runs = sum(map(len, of_methods))
    errors = [list(errors_by_seed(of_methods, forecast).values()) for forecast in FORECASTS]
    cells = [shown(mean_over_seeds(each)) for each in errors]
    return (study.study, name, str(runs), f"{share:.0%}", *cells, shown(difference(of_methods), signed=True))
