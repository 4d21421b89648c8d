"""The runs of a study: which are finished, and how one is made in the lab; ``ray_runs`` makes them with Ray."""

import io
import multiprocessing
import signal
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from openrlhf_cov.cluster.local_ray import STOP_TIMEOUT
from openrlhf_cov.cluster.sizing.prose import counted
from openrlhf_cov.errors import RunStopped, UsageError, reason_of
from openrlhf_cov.experiments.lab import request as lab
from openrlhf_cov.experiments.study.run_flags import lab_request
from openrlhf_cov.experiments.study.run_plan import SCREEN, Score, StudyRun, all_runs, number_of_runs
from openrlhf_cov.experiments.study.run_results import Result, read_result, score_of, unpack
from openrlhf_cov.experiments.study.spec import Spec
from openrlhf_cov.utils.cores import cores
from openrlhf_cov.utils.orphans import die_with_parent
from openrlhf_cov.utils.terminal import say

Made = TypeVar("Made")

# Fields of a spec with flags of ``openrlhf-cov evaluate``.
LOOKS = ("validation", "test")

# Flags of the lab that a spec leaves to the study.
OF_THE_STUDY = ("--output", "--base_policies", "--task", "--train.seed", "--help")
# Flags by which methods would begin with different policies, or have different budgets or tests.
OF_ALL_METHODS = (
    *("--base_seed", "--steps", "--stop_early"),
    *("--eval.steps", "--eval.n_samples_per_prompt", "--test_samples"),
)

TIMED_STEPS = 3
KILLED = "its process was killed, perhaps for lack of memory; fewer --jobs need less"


def given_of(words: Sequence[str], flags: Sequence[str]) -> list[str]:
    """Return the words that a parser takes for one of these flags, without their values.

    Args:
        words: Words of a command line.
        flags: Full names of the flags that are searched. Words with a shortened name or ``=VALUE`` are found, too.
    """
    # argparse takes --flag=value for two words, and any beginning of a flag for the flag itself.
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
        self.spec = spec
        self.output = output
        self.base_policies = base_policies
        # Results of other machines, which count as those of the same runs.
        self.given: dict[StudyRun, Result] = {}
        # Runs whose damage was reported.
        self.damaged: set[StudyRun] = set()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without results of other machines, which a worker does not need."""
        return vars(self) | {"given": {}}

    def take(self, packed: Path) -> None:
        """Count the runs of a packed file as finished.

        Raises:
            UsageError: The file is not one of ``pack``, or none of its runs is a run of the spec.
        """
        self.given = {result.run: result for result in unpack(packed, self.asked)}
        if not self.given:
            raise UsageError(f"--unpack {packed} has no run that {self.spec.title!r} asks for")

    def flags(self, run: StudyRun) -> list[str]:
        """Return the flags of a run: those of the spec, of the method and of the configuration, and the seed.

        If the spec has several base policies, the flags also name that of the seed.
        """
        words = [*self.spec.words, *self.spec.method(run.method).words, *run.configuration]
        words += ["--train.seed", str(run.seed)]
        if self.spec.base_policies > 1:
            words += ["--base_seed", str(run.seed % self.spec.base_policies)]
        return words

    def asked(self, run: StudyRun) -> list[str]:
        """Return the flags of a run without folders; an empty list for a method that the spec does not have."""
        known = any(method.name == run.method for method in self.spec.methods)
        return ["--task", self.spec.task, *self.flags(run)] if known else []

    def one_of_each_configuration(self) -> Iterator[StudyRun]:
        """Yield a run for every configuration of every method, by which flags are checked before anything runs."""
        yield from (
            StudyRun(method.name, SCREEN, configuration, 0)
            for method in self.spec.methods
            for configuration in method.configurations
        )
        if self.spec.sweep:
            swept = self.spec.sweep.configurations
            yield from (
                StudyRun(method.name, SCREEN, (*method.configurations[0], *configuration), 0)
                for method in self.spec.methods
                for configuration in swept
            )

    def refuse_own_flags(self, path: Path, *own: str) -> None:
        """Raise UsageError for a flag that the study sets itself, in any spelling that a parser accepts."""
        places = [("flags", self.spec.words)]
        for method in self.spec.methods:
            places += [(f"method {method.name}", (*method.words, *each)) for each in method.configurations]
        if self.spec.sweep:
            places += [("sweep", configuration) for configuration in self.spec.sweep.configurations]
        for place, words in places:
            for name in given_of(words, own):
                raise UsageError(f"{path}: {place}: {name} is what the study sets itself; drop it")

    def refuse_looks(self, path: Path) -> None:
        """Raise UsageError for flags that evaluate the trained model, where the task has splits of its own."""
        for name in LOOKS:
            if getattr(self.spec, name):
                raise UsageError(f"{path}: {name} has no effect: task {self.spec.task} has splits of its own; drop it")

    def check(self, path: Path) -> None:
        """Check that every configuration of every method can be run.

        Raises:
            UsageError: A field or a flag is refused. The message names the file, the method and the fault.
        """
        self.check_spec(path)
        for run in self.one_of_each_configuration():
            try:
                self.request(run)
            except UsageError as error:
                raise UsageError(f"{path}: method {run.method}: {error}") from error

    @abstractmethod
    def check_spec(self, path: Path) -> None:
        """Raise UsageError for flags and fields of the spec that this kind of study refuses."""

    @abstractmethod
    def request(self, run: StudyRun) -> Any:
        """Return the request that a run's flags make. Raise UsageError for flags that are refused."""

    def default_jobs(self) -> int:
        """Return the default of ``--jobs``."""
        return 1

    @abstractmethod
    def dry_run(self, jobs: int) -> None:
        """Say on stdout what would run and how long it would take with ``jobs`` runs at a time. No run is made."""

    @abstractmethod
    def is_another(self, run: StudyRun) -> bool:
        """Return True if the folder of the run holds anything other than this run or a part of it."""

    def evaluated(self, run: StudyRun) -> Collection[int]:
        """Return the steps after which a run is evaluated; () where they are not known."""
        return ()

    @abstractmethod
    def prepare(self, run: StudyRun) -> None:
        """Make the files that all runs begin with, such as a base policy, where they are missing."""

    @contextmanager
    def running(self, jobs: int) -> Iterator[None]:
        """Provide what runs share beside files while they are made, ``jobs`` side by side."""
        yield

    @abstractmethod
    def train(self, run: StudyRun) -> None:
        """Make a run, or resume it. Its results are in its files."""

    def scores(self) -> dict[StudyRun, Score]:
        """Return the scores of all finished runs. Raise UsageError if a folder holds another run than the spec's."""
        scores: dict[StudyRun, Score] = {}
        # Scores of tuning make further runs known, so runs are searched until no new one is found.
        while True:
            known = [run for run in all_runs(self.spec, scores) if run not in scores]
            found = {run: score for run in known if (score := self.score(run))}
            if not found:
                return scores
            scores |= found

    def score(self, run: StudyRun) -> Score | None:
        """Return the score of a run; None where it is not finished."""
        result = self.result(run)
        return score_of(result) if result else None

    def result(self, run: StudyRun) -> Result | None:
        """Return the result of a run; None for an unfinished or damaged run.

        Damage is reported on stderr, once for each run.

        Raises:
            UsageError: The folder of the run holds a run with other settings.
        """
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
            # Reported once, although a study reads its results several times.
            self.damaged.add(run)
            return None

    def results(self) -> list[Result]:
        """Return the results of all finished runs in the order of the spec.

        Raises:
            UsageError: A folder holds another run than the spec's, or runs have tests of different sizes.
        """
        runs = all_runs(self.spec, self.scores())
        found = [result for run in runs if (result := self.result(run))]
        # Runs of another version may have another test, and a mean over both would compare different questions.
        sizes = Counter(len(each.greedy) for each in found)
        for each in found:
            if (size := len(each.greedy)) != (usual := sizes.most_common(1)[0][0]):
                raise UsageError(
                    f"{self.output / each.run.folder}: its test has {size} questions, that of others {usual}; delete "
                    "it, and --unpack nothing that has it"
                )
        return found


def check_lab_spec(study: Study, path: Path) -> None:
    """Check the flags and fields of a spec for the lab, beside those that the parser of a run checks.

    Args:
        study: The study of the spec. It may train with Ray; its flags are those of the lab.
        path: File of the spec, for the message.

    Raises:
        UsageError: The spec has a flag that the study sets itself, evaluations although the task has its own, or a
            flag of one method that must be the same for all methods; or it needs a flag that this version lacks.
    """
    own = (*OF_THE_STUDY, "--base_seed") if study.spec.base_policies > 1 else OF_THE_STUDY
    study.refuse_own_flags(path, *own)
    study.refuse_looks(path)
    for method in study.spec.methods:
        for name in given_of([*method.words, *chain.from_iterable(method.configurations)], OF_ALL_METHODS):
            raise UsageError(f"{path}: method {method.name}: {name} is the same for all methods; put it into flags")
    # Without a sweep, the page has means over the steps and the middle of each run, which need runs of one length.
    for name in given_of(study.spec.words, ("--stop_early",)):
        if study.spec.sweep is None:
            raise UsageError(
                f"{path}: flags: {name} would give the runs different lengths, over which the page takes means; drop "
                "it, or give the spec a sweep"
            )
    known = lab.build_parser()._option_string_actions
    for flag in study.spec.needs:
        if flag not in known:
            raise UsageError(f"{path} needs {flag}, which the lab of this version does not have")


class LabStudy(Study):
    """Each run is one of ``openrlhf-cov lab``."""

    def check_spec(self, path: Path) -> None:
        """Implement ``Study``."""
        check_lab_spec(self, path)

    def request(self, run: StudyRun) -> lab.LabRequest:
        """Implement ``Study``."""
        places = ["--output", str(self.output / run.folder), "--base_policies", str(self.base_policies)]
        return lab_request([*places, *self.asked(run)])

    def default_jobs(self) -> int:
        """Return the number of cores, because a run has one thread."""
        return cores()

    def dry_run(self, jobs: int) -> None:
        """Print the number of configurations and the expected duration, from a timed step of each method."""
        total = number_of_runs(self.spec)
        finished = len(self.scores())
        say(f"{self.spec.title}: {total} runs, {finished} of them finished\n")
        lengths = []
        # Timed in a process of its own, as the runs are made, so that this one need not import PyTorch.
        with workers(1) as pool:
            for method in self.spec.methods:
                run = StudyRun(method.name, SCREEN, method.configurations[0], 0)
                steps = self.request(run).settings.steps
                found = result_of(pool, self.seconds, run)
                lengths.append(steps * found["step"] + found["rest"])
                one = f"{steps} steps of {found['step']:.2f} s, a run {lengths[-1]:.0f} s"
                say(f"  {method.name}: {counted(len(method.configurations), 'configuration')}, {one}\n")
        minutes = (total - finished) * sum(lengths) / len(lengths) / jobs / 60
        say(f"about {minutes:.0f} min with --jobs {jobs}; a step was timed on this machine as it is now\n")

    def is_another(self, run: StudyRun) -> bool:
        """Implement ``Study``."""
        return self.request(run).is_another()

    def evaluated(self, run: StudyRun) -> Collection[int]:
        """Implement ``Study``."""
        return self.request(run).settings.evaluated

    def prepare(self, run: StudyRun) -> None:
        """Make the base policies."""
        for seed in range(self.spec.base_policies):
            lab.prepare(self.request(replace(run, seed=seed)))

    def train(self, run: StudyRun) -> None:
        """Make one run, from its beginning."""
        with redirect_stdout(io.StringIO()):
            lab.train(self.request(run))

    def seconds(self, run: StudyRun) -> Mapping[str, float]:
        """Return the seconds of a step, and of a run's work beside its steps."""
        return lab.measure(self.request(run), TIMED_STEPS)


@contextmanager
def workers(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Provide ``jobs`` processes that end with this one, however it ends.

    Raises:
        RunStopped: A process was killed, and the block let BrokenProcessPool pass.
    """
    # Spawned and not forked: this process may have threads by now, whose locks a fork would copy as they are.
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=begin)
    try:
        yield pool
        pool.shutdown()
    except BrokenProcessPool as error:
        raise RunStopped(KILLED) from error
    finally:
        at_work = list((pool._processes or {}).values())  # none after a shutdown
        pool.shutdown(wait=False, cancel_futures=True)
        for process in at_work:
            process.terminate()
        for process in at_work:
            process.join(STOP_TIMEOUT)


def begin() -> None:
    """Let a worker end with its parent, and ignore Ctrl-C, which the parent handles."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def result_of(pool: ProcessPoolExecutor, work: Callable[[StudyRun], Made], run: StudyRun) -> Made:
    """Return the result of a run from a worker.

    Args:
        pool: The processes in which the work is done.
        work: The function that makes the run.
        run: The run.

    Raises:
        RunStopped: The run failed.
        BrokenProcessPool: A process of the pool was killed. This error, UsageError and OSError are raised as they are.
    """
    try:
        return pool.submit(work, run).result()
    except (UsageError, BrokenProcessPool, OSError):
        raise
    except Exception as error:  # a run fails with whatever its settings lead to
        raise RunStopped(f"{run.folder} cannot be made: {reason_of(error)}") from error
