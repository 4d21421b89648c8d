"""Plan the runs of a study: all runs, and those that can start when some are finished (pure)."""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final, Literal

from openrlhf_cov.experiments.study.spec import Configuration, Spec, StudyMethod, slug

# Stages: every configuration of a method, the best ones again, and the selected one with fresh seeds.
Stage = Literal["screen", "final", "report"]
SCREEN: Final = "screen"
FINAL: Final = "final"
REPORT: Final = "report"
STAGES: tuple[Stage, ...] = (SCREEN, FINAL, REPORT)


@dataclass(frozen=True)
class StudyRun:
    """One run of a study."""

    method: str
    stage: Stage
    configuration: Configuration
    seed: int

    @property
    def folder(self) -> PurePosixPath:
        """The path of the run below the study's folder; tuning and report never share one."""
        stage = REPORT if self.stage == REPORT else "tuning"
        configuration = slug(" ".join(self.configuration)) or "point"
        return PurePosixPath(stage, slug(self.method), configuration, f"seed-{self.seed}")


@dataclass(frozen=True)
class Score:
    """Accuracy on the validation split: in the last step and as the mean over the run, by which tuning chooses.

    ``hard`` is the accuracy in the last step on the questions that the habit of the base policy does not answer. By
    it a sweep decides whether a run has learned the task.
    """

    last: float
    area: float
    hard: float = math.nan


# The scores of the finished runs.
Scores = Mapping[StudyRun, Score]


def runs_due(spec: Spec, scores: Scores, failed: Collection[StudyRun] = ()) -> list[StudyRun]:
    """Return the runs that can start and are neither finished nor failed, the most urgent first.

    Tiers follow one another. In a tier the tuning of all methods comes first, configuration by configuration, then the
    reported runs, seed by seed, so that all methods of a tier advance together.

    Args:
        spec: The study.
        scores: Scores of the finished runs.
        failed: Runs that failed, which are not tried again.
    """
    for tier in sorted({method.tier for method in spec.methods}):
        of_tier = [method for method in spec.methods if method.tier == tier]
        known = [list(_runs(spec, method, scores)) for method in of_tier]
        due = [
            (STAGES.index(run.stage), place, number, run)
            for number, runs in enumerate(known)
            for stage in STAGES
            for place, run in enumerate([each for each in runs if each.stage == stage])
            if run not in scores and run not in failed
        ]
        if due:
            # By stage, then by place in the stage, then by method, so that all methods advance together.
            return [run for *_, run in sorted(due, key=lambda each: each[:3])]
    return []


def chosen(spec: Spec, method: StudyMethod, scores: Scores) -> Configuration | None:
    """Return the configuration that tuning selects for a method: the one with the best mean over all seeds of tuning.

    Args:
        spec: The study.
        method: The method. With ``at`` it takes the selected configuration of the method that ``at`` names. With a
            single configuration it is not tuned.
        scores: Scores of the finished runs.

    Returns:
        The configuration; None while a run of the method's tuning is missing.
    """
    if method.at is not None:
        return chosen(spec, spec.method(method.at), scores)
    if len(method.configurations) == 1:
        return method.configurations[0]
    finalists = best_configurations(spec, method, scores)
    seeds = (*spec.tuning.seeds, *spec.tuning.final_seeds)
    runs = {
        configuration: [tuning_run(spec, method, configuration, seed) for seed in seeds] for configuration in finalists
    }
    if not finalists or any(run not in scores for each in runs.values() for run in each):
        return None
    return max(finalists, key=lambda configuration: merit(scores, runs[configuration]))


def best_configurations(spec: Spec, method: StudyMethod, scores: Scores) -> list[Configuration]:
    """Return the finalists of a method, the best first; one configuration where the spec has no ``final_seeds``.

    Args:
        spec: The study.
        method: A method that is tuned.
        scores: Scores of the finished runs.

    Returns:
        The configurations; empty until every configuration of the method has run with every seed of
        ``tuning.seeds``.
    """
    runs = {
        configuration: [tuning_run(spec, method, configuration, seed) for seed in spec.tuning.seeds]
        for configuration in method.configurations
    }
    if any(run not in scores for each in runs.values() for run in each):
        return []
    ranked = sorted(method.configurations, key=lambda configuration: merit(scores, runs[configuration]), reverse=True)
    # Without final seeds nothing more is known of the finalists, so the best configuration is selected at once.
    return ranked[: spec.tuning.finalists if spec.tuning.final_seeds else 1]


def merit(scores: Scores, runs: list[StudyRun]) -> tuple[float, float]:
    """Return the mean accuracy of the last step, and for equal ones the mean area under the curve: greater is better.

    Accuracies count as equal if they agree to four decimals, because packed numbers are rounded.

    Args:
        scores: Scores of the finished runs.
        runs: The runs of one configuration, which must all be finished.
    """
    found = [scores[run] for run in runs]
    return round(sum(each.last for each in found) / len(found), 4), sum(each.area for each in found) / len(found)


def tuning_run(spec: Spec, method: StudyMethod, configuration: Configuration, seed: int) -> StudyRun:
    """Return the run of tuning with a configuration and a seed, in the stage of the seed.

    Args:
        spec: The study.
        method: The method.
        configuration: A configuration of the method.
        seed: One of ``tuning.seeds``, or else of ``tuning.final_seeds``.
    """
    return StudyRun(method.name, SCREEN if seed in spec.tuning.seeds else FINAL, configuration, seed)


def all_runs(spec: Spec, scores: Scores) -> list[StudyRun]:
    """Return every run that is known, finished or not, method by method.

    Args:
        spec: The study.
        scores: Scores of the finished runs. They decide which finals, reported runs and next values of a bisection are
            known.
    """
    return [run for method in spec.methods for run in _runs(spec, method, scores)]


def number_of_runs(spec: Spec) -> int:
    """Return the number of runs of the whole study."""
    tuned = [method for method in spec.methods if method.at is None and len(method.configurations) > 1]
    finals = [
        min(spec.tuning.finalists, len(method.configurations)) * len(spec.tuning.final_seeds) for method in tuned
    ]
    screens = [len(method.configurations) * len(spec.tuning.seeds) for method in tuned]
    # Known in advance: how many runs tuning and a bisection take does not depend on their outcomes.
    of_a_seed = spec.sweep.runs_of_a_seed if spec.sweep else 1
    return sum(finals) + sum(screens) + sum(len(method.seeds) for method in spec.methods) * of_a_seed


def _runs(spec: Spec, method: StudyMethod, scores: Scores) -> Iterator[StudyRun]:
    if method.at is None and len(method.configurations) > 1:
        # All configurations with one seed before the next seed: an interrupted study has compared all of them.
        yield from (
            StudyRun(method.name, SCREEN, configuration, seed)
            for seed in spec.tuning.seeds
            for configuration in method.configurations
        )
        finalists = best_configurations(spec, method, scores)
        yield from (
            StudyRun(method.name, FINAL, configuration, seed)
            for seed in spec.tuning.final_seeds
            for configuration in finalists
        )
    selected = chosen(spec, method, scores)
    if selected is None:
        return
    for seed in method.seeds:
        if spec.sweep is None:
            yield StudyRun(method.name, REPORT, selected, seed)
        elif spec.sweep.bisect:
            yield from bisection(spec, method, selected, seed, scores)
        else:
            yield from (
                StudyRun(method.name, REPORT, (*selected, *configuration), seed)
                for configuration in spec.sweep.configurations
            )


def bisection(
    spec: Spec, method: StudyMethod, selected: Configuration, seed: int, scores: Scores
) -> Iterator[StudyRun]:
    """Yield the runs of one seed that are known so far: each outcome decides the next value.

    The search looks for the last value of the sweep that the seed still learns, as if it learned all values before and
    none after it. Because the runs follow from the finished ones, an interrupted study resumes where it was.

    Args:
        spec: The study, which has a sweep.
        method: The method.
        selected: Configuration that tuning selected for the method.
        seed: Seed of the runs.
        scores: Scores of the finished runs.
    """
    assert spec.sweep is not None
    # Both ends lie outside of the sweep: no value may be learned, or all of them.
    learned_up_to = -1
    failed_from = len(spec.sweep.configurations)
    while failed_from - learned_up_to > 1:
        middle = (learned_up_to + failed_from) // 2
        run = StudyRun(method.name, REPORT, (*selected, *spec.sweep.configurations[middle]), seed)
        yield run
        if run not in scores:
            return
        if has_learned(spec, scores[run]):
            learned_up_to = middle
        else:
            failed_from = middle


def has_learned(spec: Spec, score: Score) -> bool:
    """Return True if a run reached the accuracy from which the study counts the task as learned.

    Args:
        spec: The study; False for every run if it has no ``learned``.
        score: Score of the run. ``hard`` is compared, the accuracy on the questions that need exploration.
    """
    return spec.learned is not None and score.hard >= spec.learned
