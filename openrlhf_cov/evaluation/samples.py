"""The responses of a run in the order of its problems: what summaries, pages and comparisons are made of."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from openrlhf_cov.errors import UsageError
from openrlhf_cov.evaluation.response_records import (
    AskedProblem,
    BenchmarkSettings,
    GraderDifference,
    Response,
    RunSettings,
    read_problems,
    read_responses,
    read_settings,
)


@dataclass(frozen=True)
class ProblemSamples:
    """One problem and the K responses to it, sample 0 first."""

    problem: AskedProblem
    responses: tuple[Response, ...]


@dataclass(frozen=True, kw_only=True)
class BenchmarkSamples:
    """The results of one benchmark."""

    settings: BenchmarkSettings
    # N problems, in the order of the requests.
    items: tuple[ProblemSamples, ...]

    @property
    def responses(self) -> list[Response]:
        """All N * K responses."""
        return [response for item in self.items for response in item.responses]

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Correctness by the grader strict, (N, K)."""
        return np.array([[response.correct for response in item.responses] for item in self.items])

    @property
    def published(self) -> NDArray[np.bool_] | None:
        """Correctness by the grader published, (N, K); None where a response has no verdict of it."""
        verdicts = [[response.published for response in item.responses] for item in self.items]
        return None if any(None in row for row in verdicts) else np.array(verdicts)

    @property
    def differences(self) -> list[GraderDifference]:
        """The responses on which the two graders differ, those without a verdict of published left out."""
        return [
            GraderDifference(
                benchmark=each.benchmark,
                id=each.id,
                sample=each.sample,
                text=each.text,
                gold=item.problem.answer,
                answer=each.answer,
                strict=each.correct,
                published=each.published,
            )
            for item in self.items
            for each in item.responses
            if each.published not in (None, each.correct)
        ]

    def by_published(self) -> "BenchmarkSamples":
        """Return the same samples by the verdicts of the grader ``published``.

        Raises:
            UsageError: The grader ``published`` did not grade all samples.
        """
        if self.published is None:
            raise UsageError(
                f"{self.settings.name} was graded by strict alone; `openrlhf-cov evaluate --regrade` adds the "
                "grades of published"
            )
        items = tuple(
            replace(item, responses=tuple(replace(each, correct=each.published) for each in item.responses))
            for item in self.items
        )
        return replace(self, items=items)

    @property
    def answers(self) -> list[list[str | None]]:
        """The extracted answers: N rows of K."""
        return [[response.answer for response in item.responses] for item in self.items]


def group_samples(
    settings: RunSettings, problems: list[AskedProblem], responses: list[Response]
) -> list[BenchmarkSamples]:
    """Return the samples of every benchmark, in the order of the settings.

    Args:
        settings: Settings of the run.
        problems: The problems of all benchmarks; those of one benchmark stand in their order.
        responses: The responses, in any order.

    Raises:
        UsageError: A response or a problem is missing, or a response belongs to no request of the run.
    """
    evaluated = {how.name: [p for p in problems if p.benchmark == how.name] for how in settings.benchmarks}
    for how in settings.benchmarks:
        if len(evaluated[how.name]) != how.problems:
            found = len(evaluated[how.name])
            raise UsageError(f"there are {found} problems of {how.name}, but the settings name {how.problems}")
    given = {response.key: response for response in responses}
    samples = {(how.name, p.id): how.samples for how in settings.benchmarks for p in evaluated[how.name]}
    if unknown := sorted(key for key in given if key[2] >= samples.get(key[:2], 0)):
        raise UsageError(f"{len(unknown):,} responses belong to no request of the run, for example {unknown[0]}")
    keys = ((*problem, k) for problem, count in samples.items() for k in range(count))
    if first := next((key for key in keys if key not in given), None):
        count = sum(samples.values())
        raise UsageError(
            f"the run is not finished: {count - len(given):,} of {count:,} responses are missing, the first of them "
            f"sample {first[2]} of {first[1]} of {first[0]}; run `evaluate` again to continue it"
        )
    return [
        BenchmarkSamples(
            settings=how,
            items=tuple(
                ProblemSamples(problem, tuple(given[how.name, problem.id, k] for k in range(how.samples)))
                for problem in evaluated[how.name]
            ),
        )
        for how in settings.benchmarks
    ]


def read_samples(folder: Path, grader: str = "strict") -> tuple[RunSettings, list[BenchmarkSamples]]:
    """Return the settings and the samples of a finished run.

    Args:
        folder: Folder of an evaluation.
        grader: The grader that says which samples are correct, ``strict`` or ``published``.

    Raises:
        UsageError: The folder has no finished run, or ``published`` did not grade it. The message names the folder.
    """
    settings = read_settings(folder)
    problems = read_problems(folder)
    responses = read_responses(folder)
    try:
        samples = group_samples(settings, problems, responses)
        return settings, [each.by_published() for each in samples] if grader == "published" else samples
    except UsageError as error:
        raise UsageError(f"{folder}: {error}") from error
