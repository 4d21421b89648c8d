"""The runs of a study: which are finished, and how one is made; in the laboratory, or as ``study_ray`` does it."""

import io
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, NoReturn

from openrlhf_cov.cli import lab
from openrlhf_cov.errors import UsageError
from openrlhf_cov.study.plan import Score, StudyRun, all_runs
from openrlhf_cov.study.results import Result, read_result, score_of, unpack
from openrlhf_cov.study.spec import Spec
from openrlhf_cov.utils.terminal import Parser, say

LOOKS = ("validation", "test")
"""Fields of a spec with flags of ``openrlhf-cov evaluate``."""

OF_ALL_ARMS = ("--base_seed", "--steps", "--eval.steps", "--eval.n_samples_per_prompt", "--test_samples")
"""Flags without which arms do not begin with the same policy, have the same budget and see the same test."""


def given_of(words: Sequence[str], flags: Sequence[str]) -> list[str]:
    """The words that a parser takes for one of these flags, in any spelling, without what stands behind a ``=``."""
    names = [word.partition("=")[0] for word in words]
    short = ("-h",) if "--help" in flags else ()
    return [
        name
        for name in names
        if name.startswith(short) or (len(name) > 2 and any(flag.startswith(name) for flag in flags))
    ]


class Study(ABC):
    """A spec, the folder that it fills, and how each of its runs is made."""

    def __init__(self, spec: Spec, output: Path, base_policies: Path) -> None:
        self.spec, self.output, self.base_policies = spec, output, base_policies
        self.given: dict[StudyRun, Result] = {}
        """Results of other machines, which count as those of the same runs."""
        self.damaged: set[StudyRun] = set()
        """Runs of which that was said."""

    def __getstate__(self) -> dict[str, Any]:
        """Without what other machines made, which a worker has no use for."""
        return vars(self) | {"given": {}}

    def take(self, packed: Path) -> None:
        """Count the runs of a file as finished; UsageError where none of them is the spec's."""
        self.given = {result.run: result for result in unpack(packed, self.asked)}
        if not self.given:
            raise UsageError(f"--unpack {packed} has no run that {self.spec.title!r} asks for")

    def asked(self, run: StudyRun) -> list[str]:
        """The flags of a run but for folders; none for an arm that the spec does not have."""
        arm = next((arm for arm in self.spec.arms if arm.name == run.arm), None)
        if arm is None:
            return []
        return ["--task", self.spec.task, *self.spec.words, *arm.words, *run.cell, "--train.seed", str(run.seed)]

    def refuse_own_flags(self, path: Path, *own: str) -> None:
        """UsageError for a flag that the study sets itself, in any spelling that a parser takes for it."""
        of_arms = ((f"arm {arm.name}", (*arm.words, *cell)) for arm in self.spec.arms for cell in arm.cells)
        for place, words in (("flags", self.spec.words), *of_arms):
            for name in given_of(words, own):
                raise UsageError(f"{path}: {place}: {name} is what the study sets itself; drop it")

    def refuse_looks(self, path: Path) -> None:
        """UsageError for flags of a look at the trained model, where the task says how it is looked at."""
        for name in LOOKS:
            if getattr(self.spec, name):
                raise UsageError(f"{path}: {name} has no effect: task {self.spec.task} has splits of its own; drop it")

    @abstractmethod
    def check(self, path: Path) -> None:
        """Every cell of every arm is a run that can be made; UsageError names the file, the arm and what is wrong."""

    @abstractmethod
    def is_another(self, run: StudyRun) -> bool:
        """True if its folder holds anything else than this run or a part of it."""

    @abstractmethod
    def evaluated(self, run: StudyRun) -> Collection[int]:
        """The steps of its evaluations, () where they are not known."""

    @abstractmethod
    def prepare(self, run: StudyRun) -> None:
        """Make what all runs begin with."""

    @contextmanager
    def running(self, jobs: int) -> Iterator[None]:
        """While its runs are made, ``jobs`` side by side: what they share beside files."""
        yield

    @abstractmethod
    def train(self, run: StudyRun) -> None:
        """Make a run, or go on with it; what it says is in its files."""

    def scores(self) -> dict[StudyRun, Score]:
        """Those of all finished runs. UsageError where a folder holds another run than the spec's."""
        scores: dict[StudyRun, Score] = {}
        while True:  # what tuning chooses names further runs
            known = [run for run in all_runs(self.spec, scores) if run not in scores]
            found = {run: score for run in known if (score := self.score(run))}
            if not found:
                return scores
            scores |= found

    def score(self, run: StudyRun) -> Score | None:
        """None where the run is not finished."""
        result = self.result(run)
        return score_of(result) if result else None

    def result(self, run: StudyRun) -> Result | None:
        """None where the run is not finished, or its files are damaged; UsageError where its folder holds another."""
        if run in self.given:
            return self.given[run]
        if self.is_another(run):
            raise UsageError(
                f"{self.output / run.folder} holds a run of other settings than {self.spec.title!r} asks for; give "
                "another --output, or delete it"
            )
        try:
            return read_result(self.output, run, self.evaluated(run))
        except ValueError as error:
            if run not in self.damaged:
                say(f"{error}; the run does not count as finished\n", sys.stderr)
            self.damaged.add(run)
            return None

    def results(self) -> list[Result]:
        """Of all finished runs, in the order of the spec."""
        runs = all_runs(self.spec, self.scores())
        found = [result for run in runs if (result := self.result(run))]
        sizes = Counter(len(each.greedy) for each in found)
        for each in found:
            if (size := len(each.greedy)) != (usual := sizes.most_common(1)[0][0]):
                raise UsageError(
                    f"{self.output / each.run.folder}: its test has {size} questions, that of others {usual}; delete "
                    "it, and --unpack nothing that has it"
                )
        return found


class LabStudy(Study):
    """Each run is one of ``openrlhf-cov lab``."""

    def words(self, run: StudyRun) -> list[str]:
        """The run as a command line of the laboratory."""
        place = ["--output", str(self.output / run.folder), "--base_policies", str(self.base_policies)]
        return [*place, *self.asked(run)]

    def request(self, run: StudyRun) -> lab.LabRequest:
        """UsageError for flags that the laboratory refuses."""
        try:
            return lab.LabRequest.of(lab.build_parser(_Strict), self.words(run))
        except ValueError as error:
            raise UsageError(str(error)) from error

    def check(self, path: Path) -> None:
        """See ``Study``."""
        self.refuse_own_flags(path, "--output", "--base_policies", "--task", "--train.seed", "--help")
        self.refuse_looks(path)
        for arm in self.spec.arms:
            for name in given_of([word for cell in (arm.words, *arm.cells) for word in cell], OF_ALL_ARMS):
                raise UsageError(f"{path}: arm {arm.name}: {name} is the same for all arms; put it into flags")
        known = lab.build_parser()._option_string_actions
        for flag in self.spec.needs:
            if flag not in known:
                raise UsageError(f"{path} needs {flag}, which the laboratory of this version does not have")
        for arm in self.spec.arms:
            for cell in arm.cells:
                try:
                    self.request(StudyRun(arm.name, "screen", cell, 0))
                except UsageError as error:
                    raise UsageError(f"{path}: arm {arm.name}: {error}") from error

    def is_another(self, run: StudyRun) -> bool:
        """See ``Study``."""
        return self.request(run).is_another()

    def evaluated(self, run: StudyRun) -> Collection[int]:
        """See ``Study``."""
        return self.request(run).settings.evaluated

    def prepare(self, run: StudyRun) -> None:
        """The base policy."""
        lab.prepare(self.request(run))

    def train(self, run: StudyRun) -> None:
        """One run, from its beginning."""
        with redirect_stdout(io.StringIO()):
            lab.train(self.request(run))

    def seconds(self, run: StudyRun, steps: int) -> Mapping[str, float]:
        """Those of a step, and of what a run does beside its steps."""
        return lab.measure(self.request(run), steps)


class _Strict(Parser):
    """A parser that raises UsageError instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)
