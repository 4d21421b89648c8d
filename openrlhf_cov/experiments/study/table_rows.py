"""The main table of a study: what each method reached, against the first one on the same seeds (pure)."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from openrlhf_cov.evaluation.scores import pass_at_k
from openrlhf_cov.experiments.study.run_plan import REPORT, Score, StudyRun, chosen
from openrlhf_cov.experiments.study.run_results import Floats, Result, score_of
from openrlhf_cov.experiments.study.seed_estimates import (
    PERCENT,
    SHARE,
    UNBOUNDED,
    mean_difference,
    mean_over_questions,
    mean_over_seeds,
)
from openrlhf_cov.experiments.study.spec import Configuration, Spec, StudyMethod
from openrlhf_cov.utils.estimates import Interval
from openrlhf_cov.utils.metric_table import CPU_TIME, STEP_TOTAL

PASS_AT = (1, 2, 4, 8, 16, 32)
# One number of a run.
Number = Callable[[Result], float]


def _over_steps(result: Result, name: str, reduce: Callable[[Floats], np.floating]) -> float:
    """Return a metric reduced over the steps that have it; NaN without."""
    values = result.metrics.column(name)
    values = values[np.isfinite(values)]
    return float(reduce(values)) if len(values) else float("nan")


def passed(k: int) -> Number:
    """Return the function for pass@k of the test, unbiased; NaN of a run with fewer samples."""
    return lambda result: pass_at_k(result.sampled, k) if k <= result.samples else float("nan")


def mean_of(name: str) -> Number:
    """Return the function for the mean of a metric over the steps of a run."""
    return lambda result: _over_steps(result, name, np.mean)


def seconds(result: Result) -> float:
    """Return the median seconds of a step: of the CPU where the run has them, else by the clock."""
    # Runs side by side share the cores, so the clock depends on what else runs.
    times = [_over_steps(result, name, np.median) for name in (CPU_TIME, STEP_TOTAL)]
    return next((each for each in times if np.isfinite(each)), float("nan"))


def end_of(name: str) -> Number:
    """Return the function for a number of the last evaluation."""
    return lambda result: float(result.evaluations.column(name)[-1])


def accuracy(result: Result) -> float:
    """Return the greedy accuracy in the test."""
    return float(result.greedy.mean())


def half_way(result: Result) -> float:
    """Return the greedy accuracy on the validation split in the middle of the run; NaN without an evaluation there."""
    steps = result.evaluations.steps
    (found,) = np.nonzero(2 * steps == steps[-1])
    return float(result.evaluations.column("greedy")[found[0]]) if len(found) else float("nan")


def worst_kind(result: Result) -> float:
    """Return the lowest greedy accuracy in the test over the kinds of questions; NaN where all are of one kind."""
    kinds = np.array(result.kinds)
    names = set(result.kinds)
    return min(float(result.greedy[kinds == name].mean()) for name in names) if len(names) > 1 else float("nan")


# What a row has of each run; "accuracy" and pass@k are of the test, "area" is of the validation curve, "selected" and
# "no gradient" in percent of the tokens, "truncated" in percent of the samples.
NUMBERS: dict[str, Number] = {
    "accuracy": accuracy,
    "worst kind": worst_kind,
    "half-way": half_way,
    **{f"pass@{k}": passed(k) for k in PASS_AT},
    "area": lambda result: score_of(result).area,
    "reward": mean_of("reward"),
    "entropy": mean_of("entropy/mean"),
    "frozen entropy": end_of("entropy"),
    "base kl": end_of("base_kl"),
    "mean first-token entropy": mean_of("entropy/position_0"),
    "selected": lambda result: 100 * mean_of("cov/selected_frac")(result),
    "length": end_of("length"),
    "truncated": lambda result: 100 * mean_of("truncated")(result),
    "positive mass": mean_of("gradient/positive_mass"),
    "negative mass": mean_of("gradient/negative_mass"),
    "no gradient": lambda result: 100 * mean_of("gradient/zero_frac")(result),
    "norm": mean_of("gradient/norm"),
    "seconds": seconds,
}
# Bounds of the numbers that have any.
BOUNDS = {
    **dict.fromkeys(("accuracy", "worst kind", "half-way", "area", *(f"pass@{k}" for k in PASS_AT)), SHARE),
    **dict.fromkeys(("selected", "truncated", "no gradient"), PERCENT),
}


@dataclass(frozen=True)
class MethodRow:
    """The results of one method.

    ``numbers`` are means over its seeds. ``differences`` are means over the seeds that it shares with the first
    method.
    """

    method: str
    # None while tuning is not finished.
    selected: Configuration | None
    seeds: tuple[int, ...]
    numbers: dict[str, Interval]
    differences: dict[str, Interval]
    pairs: int
    # Accuracy over questions, of the same runs.
    questions: Interval
    # Its difference from the first method over questions, of the seeds that both have.
    apart: Interval


def main_rows(spec: Spec, results: Sequence[Result]) -> list[MethodRow]:
    """Return a row for each method, in the order of the spec.

    Args:
        spec: The study. Its first method is the baseline of the differences.
        results: Finished runs of the study. Those of tuning decide which configurations are selected.

    Returns:
        A row for every method; one without a finished run has no seeds and NaN as numbers.
    """
    scores = {each.run: score_of(each) for each in results}
    found = {method.name: report_runs(method, chosen(spec, method, scores), results) for method in spec.methods}
    first = found[spec.methods[0].name]
    return [_row(method, chosen(spec, method, scores), found[method.name], first) for method in spec.methods]


def report_runs(method: StudyMethod, selected: Configuration | None, results: Sequence[Result]) -> dict[int, Result]:
    """Return the finished runs with fresh seeds of a method, by seed in increasing order.

    Args:
        method: The method.
        selected: The configuration that tuning selected for the method; None while it is not known, and then no run is
            returned.
        results: Finished runs of the study.
    """
    if selected is None:
        return {}
    wanted = {StudyRun(method.name, REPORT, selected, seed) for seed in method.seeds}
    return {each.run.seed: each for each in sorted(results, key=lambda each: each.run.seed) if each.run in wanted}


def paired(number: Number, first: dict[int, Result], second: dict[int, Result]) -> Interval:
    """Return the mean difference of two methods, over the seeds that both have.

    Args:
        number: Returns the number of a run that is compared.
        first: Runs of one method, by seed.
        second: Runs of the other method, by seed, which are subtracted.

    Returns:
        The difference; without an interval where all seeds have the same one (``mean_difference``).
    """
    return mean_difference([number(first[seed]) - number(second[seed]) for seed in first if seed in second])


def mean_number(name: str, runs: Iterable[Result]) -> Interval:
    """Return the mean of a number over runs, with Student's interval cut at the bounds of the number.

    Args:
        name: Key of ``NUMBERS``.
        runs: Finished runs with different seeds.
    """
    return mean_over_seeds([NUMBERS[name](each) for each in runs], BOUNDS.get(name, UNBOUNDED))


def _row(
    method: StudyMethod, selected: Configuration | None, runs: dict[int, Result], first: dict[int, Result]
) -> MethodRow:
    return MethodRow(
        method=method.name,
        selected=selected,
        seeds=tuple(runs),
        numbers={name: mean_number(name, runs.values()) for name in NUMBERS},
        differences={name: paired(number, runs, first) for name, number in NUMBERS.items()},
        pairs=len(set(runs) & set(first)),
        questions=mean_over_questions([by_question(each) for each in runs.values()]),
        apart=mean_over_questions(
            [by_question(runs[seed]) - by_question(first[seed]) for seed in runs if seed in first]
        ),
    )


def by_question(result: Result) -> Floats:
    """Return the greedy accuracy (N,) in the test, question by question."""
    return result.greedy.astype(np.float64)


@dataclass(frozen=True)
class ConfigurationRow:
    """One configuration of a method's grid: the score of each seed of tuning that is finished."""

    method: str
    configuration: Configuration
    scores: dict[int, Score]
    is_chosen: bool


def tuning_rows(spec: Spec, results: Sequence[Result]) -> list[ConfigurationRow]:
    """Return a row for every configuration of every method that is tuned, in the order of the spec.

    Args:
        spec: The study.
        results: Finished runs of the study; those of tuning count here.
    """
    scores = {each.run: score_of(each) for each in results}
    rows = []
    for method in spec.methods:
        if method.at is not None or len(method.configurations) == 1:
            continue
        selected = chosen(spec, method, scores)
        for configuration in method.configurations:
            by_seed = {
                run.seed: score
                for run, score in scores.items()
                if (run.method, run.configuration) == (method.name, configuration) and run.stage != REPORT
            }
            rows.append(ConfigurationRow(method.name, configuration, by_seed, is_chosen=configuration == selected))
    return rows
