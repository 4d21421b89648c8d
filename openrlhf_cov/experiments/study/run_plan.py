"""Plan the runs of a study, and which of them can start, given what is finished (pure)."""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final, Literal

from openrlhf_cov.experiments.study.spec import Arm, Cell, Spec, slug

# Stages: every cell of an arm, its best cells again, its point with fresh seeds.
Stage = Literal["screen", "final", "report"]
SCREEN: Final = "screen"
FINAL: Final = "final"
REPORT: Final = "report"
STAGES: tuple[Stage, ...] = (SCREEN, FINAL, REPORT)


@dataclass(frozen=True)
class StudyRun:
    """One run of a study."""

    arm: str
    stage: Stage
    cell: Cell
    seed: int

    @property
    def folder(self) -> PurePosixPath:
        """The path of the run below the study's folder; tuning and report never share one."""
        stage = REPORT if self.stage == REPORT else "tuning"
        return PurePosixPath(stage, slug(self.arm), slug(" ".join(self.cell)) or "point", f"seed-{self.seed}")


@dataclass(frozen=True)
class Score:
    """Accuracy on the validation split: in the last step and as the mean over the run, by which tuning chooses.

    ``hard`` is that in the last step on the questions that the habit of the base policy does not answer, by which a
    sweep decides if a run has learned the task.
    """

    last: float
    area: float
    hard: float = math.nan


# Of the finished runs.
Scores = Mapping[StudyRun, Score]


def runs_due(spec: Spec, scores: Scores, failed: Collection[StudyRun] = ()) -> list[StudyRun]:
    """Return the runs that can start and are neither finished nor failed, the most urgent first.

    The order is tier by tier; in a tier the tuning of all arms, cell by cell, then the fresh seeds of all, seed by
    seed. At any time every arm of a tier is about as far as the others. A tier waits for those before it.

    Args:
        spec: The study.
        scores: Scores of the finished runs.
        failed: Runs that failed, which are not tried again.
    """
    for tier in sorted({arm.tier for arm in spec.arms}):
        of_tier = [arm for arm in spec.arms if arm.tier == tier]
        known = [list(_runs(spec, arm, scores)) for arm in of_tier]
        due = [
            (STAGES.index(run.stage), place, number, run)
            for number, runs in enumerate(known)
            for stage in STAGES
            for place, run in enumerate([each for each in runs if each.stage == stage])
            if run not in scores and run not in failed
        ]
        if due:
            # By stage, then by place in the stage, then by arm, so that all arms advance together.
            return [run for *_, run in sorted(due, key=lambda each: each[:3])]
    return []


def chosen(spec: Spec, arm: Arm, scores: Scores) -> Cell | None:
    """Return the cell that tuning selects for an arm, that of the best mean over all seeds of tuning.

    Args:
        spec: The study.
        arm: The arm; one with ``at`` takes the cell of that arm, and one with a single cell has nothing to select.
        scores: Scores of the finished runs.

    Returns:
        The cell; None while a run of the arm's tuning is missing.
    """
    if arm.at is not None:
        return chosen(spec, spec.arm(arm.at), scores)
    if len(arm.cells) == 1:
        return arm.cells[0]
    finalists = best_cells(spec, arm, scores)
    seeds = (*spec.tuning.seeds, *spec.tuning.final_seeds)
    runs = {cell: [tuning_run(spec, arm, cell, seed) for seed in seeds] for cell in finalists}
    if not finalists or any(run not in scores for each in runs.values() for run in each):
        return None
    return max(finalists, key=lambda cell: merit(scores, runs[cell]))


def best_cells(spec: Spec, arm: Arm, scores: Scores) -> list[Cell]:
    """Return the finalists of an arm, the best first; one cell where the spec has no ``final_seeds``.

    Args:
        spec: The study.
        arm: The arm.
        scores: Scores of the finished runs.

    Returns:
        The cells; empty while a cell has not been run with every seed of ``tuning.seeds``.
    """
    runs = {cell: [tuning_run(spec, arm, cell, seed) for seed in spec.tuning.seeds] for cell in arm.cells}
    if any(run not in scores for each in runs.values() for run in each):
        return []
    ranked = sorted(arm.cells, key=lambda cell: merit(scores, runs[cell]), reverse=True)
    # Without final seeds nothing more is known of the finalists, so the best cell is selected at once.
    return ranked[: spec.tuning.finalists if spec.tuning.final_seeds else 1]


def merit(scores: Scores, runs: list[StudyRun]) -> tuple[float, float]:
    """Return the mean accuracy of the last step, and for equal ones the mean area under the curve: greater is better.

    Accuracies count as equal if they agree to four decimals, because packed numbers are rounded.
    """
    found = [scores[run] for run in runs]
    return round(sum(each.last for each in found) / len(found), 4), sum(each.area for each in found) / len(found)


def tuning_run(spec: Spec, arm: Arm, cell: Cell, seed: int) -> StudyRun:
    """Return the run of tuning with a cell and a seed, in the stage of the seed.

    Args:
        spec: The study.
        arm: The arm.
        cell: A cell of the arm.
        seed: One of ``tuning.seeds``, or else of ``tuning.final_seeds``.
    """
    return StudyRun(arm.name, SCREEN if seed in spec.tuning.seeds else FINAL, cell, seed)


def all_runs(spec: Spec, scores: Scores) -> list[StudyRun]:
    """Return every run that is known, finished or not; what is chosen from tuning is known when that is finished."""
    return [run for arm in spec.arms for run in _runs(spec, arm, scores)]


def number_of_runs(spec: Spec) -> int:
    """Return the number of runs of the whole study."""
    tuned = [arm for arm in spec.arms if arm.at is None and len(arm.cells) > 1]
    finals = [min(spec.tuning.finalists, len(arm.cells)) * len(spec.tuning.final_seeds) for arm in tuned]
    screens = [len(arm.cells) * len(spec.tuning.seeds) for arm in tuned]
    # Known in advance: how many runs tuning and a bisection take does not depend on their outcomes.
    of_a_seed = spec.sweep.runs_of_a_seed if spec.sweep else 1
    return sum(finals) + sum(screens) + sum(len(arm.seeds) for arm in spec.arms) * of_a_seed


def _runs(spec: Spec, arm: Arm, scores: Scores) -> Iterator[StudyRun]:
    if arm.at is None and len(arm.cells) > 1:
        # All cells with one seed before the next seed: a study that is cut off has compared all cells.
        yield from (StudyRun(arm.name, SCREEN, cell, seed) for seed in spec.tuning.seeds for cell in arm.cells)
        finalists = best_cells(spec, arm, scores)
        yield from (StudyRun(arm.name, FINAL, cell, seed) for seed in spec.tuning.final_seeds for cell in finalists)
    point = chosen(spec, arm, scores)
    if point is None:
        return
    for seed in arm.seeds:
        if spec.sweep is None:
            yield StudyRun(arm.name, REPORT, point, seed)
        elif spec.sweep.bisect:
            yield from bisection(spec, arm, point, seed, scores)
        else:
            yield from (StudyRun(arm.name, REPORT, (*point, *cell), seed) for cell in spec.sweep.cells)


def bisection(spec: Spec, arm: Arm, point: Cell, seed: int, scores: Scores) -> Iterator[StudyRun]:
    """Yield the runs of one seed that are known so far: each outcome decides the next value.

    The search looks for the last value of the sweep that the seed still learns, as if it learned all values before and
    none after it. Because the runs follow from the finished ones, an interrupted study resumes where it was.

    Args:
        spec: The study, which has a sweep.
        arm: The method.
        point: Settings that tuning selected for the method.
        seed: Seed of the runs.
        scores: Scores of the finished runs.
    """
    assert spec.sweep is not None
    # Both ends lie outside of the sweep: no value may be learned, or all of them.
    learned_up_to = -1
    failed_from = len(spec.sweep.cells)
    while failed_from - learned_up_to > 1:
        middle = (learned_up_to + failed_from) // 2
        run = StudyRun(arm.name, REPORT, (*point, *spec.sweep.cells[middle]), seed)
        yield run
        if run not in scores:
            return
        if has_learned(spec, scores[run]):
            learned_up_to = middle
        else:
            failed_from = middle


def has_learned(spec: Spec, score: Score) -> bool:
    """Return True if a run reached the accuracy from which the study counts the task as learned."""
    return spec.learned is not None and score.hard >= spec.learned
