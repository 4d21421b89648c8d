"""The missing runs of a study, made side by side, and the page and files that are written from the finished ones."""

import argparse
import html
import re
import sys
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from openrlhf_cov.errors import RunStopped, UsageError, reason_of
from openrlhf_cov.experiments.lab.request import base_policies as default_base_policies
from openrlhf_cov.experiments.study.lab_runs import KILLED, LabStudy, Study, result_of, workers
from openrlhf_cov.experiments.study.ray_runs import RayStudy, RayStudyOfLabFlags
from openrlhf_cov.experiments.study.run_plan import StudyRun, number_of_runs, runs_due
from openrlhf_cov.experiments.study.run_results import pack, reported_metrics, unpack
from openrlhf_cov.experiments.study.spec_file import read_spec
from openrlhf_cov.utils.json_lines import write_lines
from openrlhf_cov.utils.output_folders import check_folder
from openrlhf_cov.utils.terminal import say

# By the engine that a spec is written for, and the one that is asked for.
STUDIES: dict[tuple[str, str], type[Study]] = {
    ("lab", "lab"): LabStudy,
    ("lab", "ray"): RayStudyOfLabFlags,
    ("ray", "ray"): RayStudy,
}

PAGE_FILE = "study.html"
TABLE_FILE = "study.md"
# The title in a page.
TITLE = re.compile(r"<title>Study: ([^<]*)</title>")

# Failures without a success after which no further run is begun.
HOPELESS = 3


def study_of(args: argparse.Namespace) -> Study:
    """Return the study that the flags of ``openrlhf-cov study`` ask for, after checking it.

    Raises:
        UsageError: The spec cannot be read or has a fault, ``--engine`` does not fit it, or a folder cannot be
            written.
    """
    spec = read_spec(args.spec)
    written = spec.engine
    engine = args.engine or spec.engine
    if (written, engine) not in STUDIES:
        raise UsageError(
            f"--engine {engine}: {args.spec} has flags of the trainer (engine: {written}); write it with those of "
            f"openrlhf-cov {engine}"
        )
    if engine != "lab" and (spec.base_policies > 1 or spec.sweep):
        raise UsageError(f"--engine {engine}: {args.spec} has base_policies or sweep, which only the lab supports")
    name = args.spec.stem if engine == written else f"{args.spec.stem}-{engine}"
    output: Path = args.output or Path("runs/study") / name
    base_policies: Path = args.base_policies or default_base_policies()
    study = STUDIES[written, engine](spec, output.absolute(), base_policies.absolute())
    study.check(args.spec)
    check_folder(study.output)
    _check_page(study.output, spec.title)
    check_folder(study.base_policies, "--base_policies")
    return study


def _check_page(output: Path, title: str) -> None:
    """Check that the page in a folder is that of a study, which is replaced.

    Raises:
        UsageError: The folder has a page or a table of another study, or of something else.
    """
    page = output / PAGE_FILE
    if not page.is_file():
        if (output / TABLE_FILE).exists():  # the page is written first
            raise UsageError(
                f"--output {output}: {TABLE_FILE} is there and not of this command; choose another folder"
            )
        return
    with page.open("rb") as file:
        head = file.read(1 << 12).decode("utf-8", "replace")
    found = TITLE.search(head)
    if found is None:
        raise UsageError(f"--output {output}: {PAGE_FILE} is there and not of this command; choose another folder")
    if (other := html.unescape(found[1])) != title:
        raise UsageError(
            f"--output {output}: {PAGE_FILE} is of the study {other!r}; choose another folder, or delete the page if "
            "only the title has changed"
        )


def packed(study: Study, path: Path) -> set[StudyRun]:
    """Return the runs in the file that ``--pack`` is about to replace.

    Args:
        study: The study, whose spec the runs must be of.
        path: The file, which may not exist: then there are no runs.

    Raises:
        UsageError: The path is a folder or cannot be written, or the file holds anything but runs of this study.
    """
    check_folder(path.absolute().parent, "--pack")
    if path.is_dir():
        raise UsageError(f"--pack {path} is a folder; give a file")
    if not path.is_file():  # nothing, a pipe or a device
        return set()
    held = list(unpack(path))
    known = list(unpack(path, study.asked))
    if others := len(held) - len(known):
        raise UsageError(
            f"--pack {path} holds {others} runs that {study.spec.title!r} does not ask for; give another file, or "
            "delete it"
        )
    return {result.run for result in known}


class Campaign:
    """The missing runs of a study, made with up to ``jobs`` runs at a time.

    A run that fails blocks only the runs whose configuration it helps to select. If the first ``HOPELESS`` runs all
    fail, no other run is started. If a process is killed, every run in flight may be the cause. Each of them is then
    made alone, and a run that is killed alone has failed.
    """

    def __init__(self, study: Study, jobs: int) -> None:
        self.study = study
        self.jobs = jobs
        self.scores = study.scores()
        self.clock = time.monotonic()
        self.before = len(self.scores)
        self.total = number_of_runs(study.spec)
        self.in_flight: dict[Future[None], StudyRun] = {}
        # Runs that were in flight together when a process was killed.
        self.suspects: set[StudyRun] = set()
        # Failed runs with their reasons.
        self.failed: dict[StudyRun, str] = {}

    def run(self) -> str:
        """Make every run that can be made, and return a line about the failed runs; empty if none failed."""
        say(f"{self.study.output}: {self.before} of {self.total} runs are finished\n")
        if self.due():
            with self.study.running(self.jobs):
                while self.due():  # a process that is killed ends its pool
                    self.run_in_one_pool()
        if not self.failed:
            return ""
        reasons = "; ".join(dict.fromkeys(self.failed.values()))
        return f"{len(self.failed)} of the runs failed, and are tried again by the same command: {reasons}"

    def due(self) -> list[StudyRun]:
        """Return the runs that can be made now, in flight or not, the most urgent first.

        There are none after ``HOPELESS`` failures without a success.
        """
        # Settings that fail in every run would cost hours before the user sees it.
        hopeless = len(self.scores) == self.before and len(self.failed) >= HOPELESS
        return [] if hopeless else runs_due(self.study.spec, self.scores, self.failed)

    def run_in_one_pool(self) -> None:
        """Make runs that are due until none is left, or until a process is killed.

        Raises:
            RunStopped: The base policy could not be made. UsageError and OSError of its making are raised as they are.
        """
        with workers(self.jobs) as pool:
            try:
                # Before the runs, because several workers would otherwise make the same base policy at the same time.
                result_of(pool, self.study.prepare, self.due()[0])
            except BrokenProcessPool as error:
                raise RunStopped("what makes the base policy was killed, perhaps for lack of memory") from error
            try:
                self.start(pool)
                while self.in_flight:
                    for future in wait(self.in_flight, return_when=FIRST_COMPLETED).done:
                        self.end(future)
                    self.start(pool)
            except BrokenProcessPool:
                self.suspect()

    def start(self, pool: ProcessPoolExecutor) -> None:
        """Start as many runs as there is room for; suspects come first, each alone."""
        due = self.due()
        suspects = [run for run in due if run in self.suspects]
        # Alone: if a process is killed again, it is clear which run was the cause.
        room = 1 if suspects else self.jobs
        for run in suspects or due:
            if len(self.in_flight) < room and run not in self.in_flight.values():
                self.in_flight[pool.submit(self.study.train, run)] = run

    def end(self, future: Future[None]) -> None:
        """Take note of a run that has ended.

        Raises:
            BrokenProcessPool: A process was killed. The run then stays in flight.
        """
        run = self.in_flight[future]
        try:
            future.result()
            score = self.study.score(run)
            reason = "it is not complete after its end"
        except BrokenProcessPool:
            raise
        except Exception as error:  # whatever a run fails with, the others go on
            score = None
            reason = reason_of(error)
        del self.in_flight[future]
        if score is None:
            self.fail(run, reason)
            return
        self.scores[run] = score
        made = len(self.scores) - self.before
        left = self.total - len(self.scores)
        minutes = (time.monotonic() - self.clock) / made * left / 60
        say(f"{len(self.scores)}/{self.total} {run.folder}: {score.last:.3f}; about {minutes:.0f} min left\n")

    def fail(self, run: StudyRun, reason: str) -> None:
        """Take note of a run that has failed, which this campaign does not try again, and say so on stderr.

        Args:
            run: The run.
            reason: What went wrong, as one line for the user.
        """
        self.failed[run] = reason
        say(f"failed: {run.folder}: {reason}\n", sys.stderr)

    def suspect(self) -> None:
        """Note that a process was killed: a run that was alone in flight has failed, several are suspects."""
        self.suspects = set(self.in_flight.values())
        self.in_flight.clear()
        if len(self.suspects) == 1:
            self.fail(self.suspects.pop(), KILLED)
        for run in self.suspects:
            say(f"{run.folder}: {KILLED}, or the other's; each is made alone\n", sys.stderr)


def write(study: Study, pack_to: Path | None = None) -> None:
    """Write ``study.html``, ``study.md`` and ``figures/`` of the finished runs to the folder of the study.

    Args:
        study: The study.
        pack_to: File to which the finished runs are packed as well; None for no file.

    Raises:
        UsageError: A folder holds another run than the spec's, runs have tests of different sizes, or ``pack_to``
            cannot be written or holds runs of another study.
        RunStopped: ``pack_to`` holds runs that are not finished here and would lose them. The pages are written
            before.
    """
    from openrlhf_cov.analysis.pages.picture import write_pictures
    from openrlhf_cov.experiments.study.document import document, in_short, markdown, page

    results = study.results()
    content = document(study.spec, results)
    study.output.mkdir(parents=True, exist_ok=True)
    write_lines(study.output / PAGE_FILE, page(content).split("\n"))
    write_lines(study.output / TABLE_FILE, markdown(content).split("\n"))
    write_pictures(content.charts, study.output / "figures", ("svg",))
    say(f"\n{in_short(study.spec, results)}")
    say(f"{len(results)} of {number_of_runs(study.spec)} runs: {study.output / PAGE_FILE}\n")
    if pack_to:
        # A file that several machines fill may hold runs that only other machines have.
        if lost := packed(study, pack_to) - {each.run for each in results}:
            raise RunStopped(
                f"--pack {pack_to} holds {len(lost)} runs that are not finished here, and stays as it is; give "
                "another file, or --unpack it, too"
            )
        pack_to.parent.mkdir(parents=True, exist_ok=True)
        pack(results, pack_to, study.asked, reported_metrics(study.spec))
