"""The main table of a study: what each arm reached, against the first one on the same seeds (pure)."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from openrlhf_cov.evaluation.scores import avg_at_k, pass_at_k, problem_scores
from openrlhf_cov.experiments.study.run_plan import REPORT, Score, StudyRun, chosen
from openrlhf_cov.experiments.study.run_results import Floats, Result, score_of
from openrlhf_cov.experiments.study.seed_estimates import (
    PERCENT,
    SHARE,
    UNBOUNDED,
    mean_over_questions,
    mean_over_seeds,
)
from openrlhf_cov.experiments.study.spec import Arm, Cell, Spec
from openrlhf_cov.utils.estimates import Interval
from openrlhf_cov.utils.metric_table import CPU_TIME, STEP_TOTAL

PASS_AT = (1, 2, 4, 8, 16, 32)
# One number of a run.
Number = Callable[[Result], float]


def _over_steps(result: Result, name: str, reduce: Callable[[Floats], np.floating]) -> float:
    """A metric reduced over the steps that have it; NaN without."""
    values = result.metrics.column(name)
    values = values[np.isfinite(values)]
    return float(reduce(values)) if len(values) else float("nan")


def passed(k: int) -> Number:
    """pass@k of the test, unbiased; NaN of a run with fewer samples."""
    return lambda result: pass_at_k(result.sampled, k) if k <= result.samples else float("nan")


def mean_of(name: str) -> Number:
    """Mean of a metric over the steps of a run."""
    return lambda result: _over_steps(result, name, np.mean)


def seconds(result: Result) -> float:
    """Median of a step: of the CPU where the run says so, else by the clock."""
    times = [_over_steps(result, name, np.median) for name in (CPU_TIME, STEP_TOTAL)]
    return next((each for each in times if np.isfinite(each)), float("nan"))


def end_of(name: str) -> Number:
    """A number of the last evaluation."""
    return lambda result: float(result.evaluations.column(name)[-1])


def accuracy(result: Result) -> float:
    """Greedy accuracy in the test."""
    return float(result.greedy.mean())


def half_way(result: Result) -> float:
    """Greedy accuracy on the validation split in the middle of the run; NaN without an evaluation there."""
    steps = result.evaluations.steps
    (found,) = np.nonzero(2 * steps == steps[-1])
    return float(result.evaluations.column("greedy")[found[0]]) if len(found) else float("nan")


def worst_kind(result: Result) -> float:
    """Greedy accuracy in the test on the kind of questions on which it is lowest; NaN where all are of one kind."""
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
class ArmRow:
    """One arm. ``numbers`` are over its seeds, ``differences`` from the first arm over the seeds that both have."""

    arm: str
    # None while it is not chosen.
    point: Cell | None
    seeds: tuple[int, ...]
    numbers: dict[str, Interval]
    differences: dict[str, Interval]
    pairs: int
    # Accuracy over questions, of the same runs.
    questions: Interval
    # Its difference from the first arm over questions, of the seeds that both have.
    apart: Interval


def main_rows(spec: Spec, results: Sequence[Result]) -> list[ArmRow]:
    """A row for each arm, in the order of the spec; arms without a finished run have no seeds."""
    scores = {each.run: score_of(each) for each in results}
    found = {arm.name: report_runs(arm, chosen(spec, arm, scores), results) for arm in spec.arms}
    first = found[spec.arms[0].name]
    return [_row(arm, chosen(spec, arm, scores), found[arm.name], first) for arm in spec.arms]


def report_runs(arm: Arm, point: Cell | None, results: Sequence[Result]) -> dict[int, Result]:
    """The finished runs of an arm's point with fresh seeds, by seed."""
    wanted = {StudyRun(arm.name, REPORT, point, seed) for seed in arm.seeds} if point is not None else set()
    return {each.run.seed: each for each in sorted(results, key=lambda each: each.run.seed) if each.run in wanted}


def paired(number: Number, first: dict[int, Result], second: dict[int, Result]) -> Interval:
    """``number`` of ``first`` minus that of ``second``, over the seeds that both have."""
    return mean_over_seeds([number(first[seed]) - number(second[seed]) for seed in first if seed in second])


def mean_number(name: str, runs: Iterable[Result]) -> Interval:
    """Return the mean over runs of a number of ``NUMBERS``; its interval ends at the bounds of the number."""
    return mean_over_seeds([NUMBERS[name](each) for each in runs], BOUNDS.get(name, UNBOUNDED))


def _row(arm: Arm, point: Cell | None, runs: dict[int, Result], first: dict[int, Result]) -> ArmRow:
    return ArmRow(
        arm=arm.name,
        point=point,
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
    """Greedy accuracy (N,) in the test."""
    return problem_scores(result.greedy[:, None], avg_at_k)


@dataclass(frozen=True)
class CellRow:
    """One cell of an arm's grid: validation accuracy of each seed of tuning that is finished."""

    arm: str
    cell: Cell
    scores: dict[int, Score]
    is_chosen: bool


def tuning_rows(spec: Spec, results: Sequence[Result]) -> list[CellRow]:
    """Every cell of every arm that is tuned."""
    scores = {each.run: score_of(each) for each in results}
    rows = []
    for arm in spec.arms:
        if arm.at is not None or len(arm.cells) == 1:
            continue
        point = chosen(spec, arm, scores)
        for cell in arm.cells:
            of_cell = [run for run in scores if (run.arm, run.cell) == (arm.name, cell) and run.stage != REPORT]
            rows.append(CellRow(arm.name, cell, {run.seed: scores[run] for run in of_cell}, cell == point))
    return rows
