"""``openrlhf-cov study SPEC``: methods, settings and seeds as one command that goes on where it was cut off."""

import argparse
import multiprocessing
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from openrlhf_cov.cli import lab
from openrlhf_cov.cli.local_ray import STOP_TIMEOUT
from openrlhf_cov.cli.packages import require
from openrlhf_cov.cli.program import alone_in, check_folder, program
from openrlhf_cov.cli.study_ray import RayStudy
from openrlhf_cov.cli.study_runs import LabStudy, Study
from openrlhf_cov.errors import RunStopped, UsageError, reason_of
from openrlhf_cov.study.plan import SCREEN, Score, StudyRun, number_of_runs, runs_due
from openrlhf_cov.study.results import pack, unpack
from openrlhf_cov.study.spec import read_spec
from openrlhf_cov.utils.cores import cores
from openrlhf_cov.utils.json_lines import write_lines
from openrlhf_cov.utils.orphans import die_with_parent
from openrlhf_cov.utils.terminal import Parser, say

PAGE_FILE, TABLE_FILE = "study.html", "study.md"
TIMED_STEPS = 3
KILLED = "its process was killed, perhaps for lack of memory; fewer --jobs need less"
HOPELESS = 3
"""Failures without a success after which no further run is begun."""


def build_parser() -> Parser:
    """The parser of this command."""
    parser = Parser(prog="study", about=__doc__)
    parser.add_argument("spec", type=Path, metavar="SPEC", help="file of studies/, or one like these")
    parser.add_argument("--output", type=Path, metavar="DIR", help="folder of the study (default: runs/study/NAME)")
    parser.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help=f"runs side by side, in the laboratory with a thread each (default: {cores()}; of trainings 1)",
    )
    parser.add_argument("--base_policies", type=Path, metavar="DIR", help="where base policies are kept")
    parser.add_argument("--page", action="store_true", help="write page and table from what is finished, run nothing")
    parser.add_argument("--pack", type=Path, metavar="FILE", help="write the finished runs to one file (.jsonl.xz)")
    parser.add_argument(
        "--unpack", type=Path, metavar="FILE", help="take the runs of a file of --pack as finished; go on from there"
    )
    parser.add_argument("--dry_run", action="store_true", help="say what would run and how long")
    return parser


@program("study")
def main(argv: list[str] | None = None) -> None:
    """Exit status 0 when the study is complete; 2 for a refused request, 1 where a run failed, 130 after Ctrl-C."""
    answer(build_parser().parse_args(argv))


def answer(args: argparse.Namespace) -> None:
    """What the flags ask for."""
    try:
        if args.jobs is not None and args.jobs < 1:
            raise UsageError(f"--jobs is at least 1, got {args.jobs}")
        spec = read_spec(args.spec)
        kind = RayStudy if spec.engine == "ray" else LabStudy
        output: Path = args.output or Path("runs/study") / args.spec.stem
        study = kind(spec, output.absolute(), (args.base_policies or lab.base_policies()).absolute())
        study.check(args.spec)
        check_folder(study.output)
        check_folder(study.base_policies, "--base_policies")
        if args.pack:
            packed(study, args.pack)
        if args.unpack:
            study.take(args.unpack)
        require(("torch", "transformers", "openrlhf"))
        jobs = args.jobs or (1 if isinstance(study, RayStudy) else cores())
        if isinstance(study, RayStudy) and args.dry_run:
            study.say_commands()
            return
        if isinstance(study, LabStudy) and args.dry_run:
            dry_run(study, jobs)
            return
        failure = ""
        if not args.page:
            with alone_in(study.output):
                failure = run(study, jobs)
        write(study, args.pack)
        if failure:
            raise RunStopped(failure)
    except OSError as error:
        raise UsageError(str(error)) from error


def packed(study: Study, path: Path) -> set[StudyRun]:
    """The runs in a file that ``--pack`` is to replace; UsageError for one with anything else in it."""
    check_folder(path.absolute().parent, "--pack")
    if path.is_dir():
        raise UsageError(f"--pack {path} is a folder; give a file")
    if not path.is_file():  # nothing, a pipe or a device
        return set()
    held, known = list(unpack(path)), list(unpack(path, study.asked))
    if others := len(held) - len(known):
        raise UsageError(
            f"--pack {path} holds {others} runs that {study.spec.title!r} does not ask for; give another file, or "
            "delete it"
        )
    return {result.run for result in known}


def run(study: Study, jobs: int) -> str:
    """Make every missing run, ``jobs`` side by side; what is to be said if any failed, else nothing.

    A run that fails holds nothing up but what is chosen by it; where the first ``HOPELESS`` all do no other is begun.
    Where a process is killed, every run in flight may be the cause: each is made alone then, and one that is killed
    alone has failed.
    """
    scores, started = study.scores(), time.monotonic()
    total, before = number_of_runs(study.spec), len(scores)
    say(f"{study.output}: {before} of {total} runs are finished\n")
    failed: dict[StudyRun, str] = {}
    suspects: set[StudyRun] = set()

    def due() -> list[StudyRun]:
        hopeless = len(scores) == before and len(failed) >= HOPELESS
        return [] if hopeless else runs_due(study.spec, scores, failed)

    def end(run: StudyRun, score: Score | None, reason: str) -> None:
        if score is None:
            failed[run] = reason
            say(f"failed: {run.folder}: {reason}\n", sys.stderr)
            return
        scores[run] = score
        made, left = len(scores) - before, total - len(scores)
        minutes = (time.monotonic() - started) / made * left / 60
        say(f"{len(scores)}/{total} {run.folder}: {score.last:.3f}; about {minutes:.0f} min left\n")

    if not due():
        return ""
    with study.running(jobs):
        while first := due():
            running: dict[Future, StudyRun] = {}
            with workers(jobs) as pool:
                try:
                    result_of(pool, study.prepare, first[0])
                except BrokenProcessPool as error:
                    raise RunStopped("what makes the base policy was killed, perhaps for lack of memory") from error
                try:
                    work(study, pool, 1, lambda alone=suspects: [run for run in due() if run in alone], running, end)
                    work(study, pool, jobs, due, running, end)
                except BrokenProcessPool:
                    suspects = set(running.values())
                    for run in suspects:
                        if len(suspects) == 1:
                            end(run, None, KILLED)
                        else:
                            say(f"{run.folder}: {KILLED}, or the other's; each is made alone\n", sys.stderr)
    reasons = "; ".join(dict.fromkeys(failed.values()))
    return f"{len(failed)} of the runs failed, and are tried again by the same command: {reasons}" if failed else ""


def work(
    study: Study,
    pool: ProcessPoolExecutor,
    jobs: int,
    due: Callable[[], list[StudyRun]],
    running: dict[Future, StudyRun],
    end: Callable[[StudyRun, Score | None, str], None],
) -> None:
    """Make what is due until nothing is; BrokenProcessPool, with the runs in flight in ``running``, where a process
    of the pool is killed."""
    while True:
        for run in due():
            if len(running) < jobs and run not in running.values():
                running[pool.submit(study.train, run)] = run
        if not running:
            return
        finished, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in finished:
            score, reason = outcome(study, running[future], future)
            end(running.pop(future), score, reason)


def result_of(pool: ProcessPoolExecutor, work: Callable[..., Any], run: StudyRun, *more: Any) -> Any:
    """What a worker makes of a run; RunStopped where it fails."""
    try:
        return pool.submit(work, run, *more).result()
    except (UsageError, BrokenProcessPool, OSError):
        raise
    except Exception as error:  # a run fails with whatever its settings lead to
        raise RunStopped(f"{run.folder} cannot be made: {reason_of(error)}") from error


def outcome(study: Study, run: StudyRun, future: Future) -> tuple[Score | None, str]:
    """The score of a run that has ended, and why there is none."""
    try:
        future.result()
        return study.score(run), "it is not complete after its end"
    except BrokenProcessPool:
        raise
    except Exception as error:  # whatever a run fails with, the others go on
        return None, reason_of(error)


def write(study: Study, pack_to: Path | None = None) -> None:
    """``study.html``, ``study.md`` and ``figures/`` of the finished runs, in the folder of the study."""
    from openrlhf_cov.pages.picture import write_pictures
    from openrlhf_cov.study.document import document, in_short, markdown, page

    results = study.results()
    content = document(study.spec, results)
    study.output.mkdir(parents=True, exist_ok=True)
    write_lines(study.output / PAGE_FILE, page(content).split("\n"))
    write_lines(study.output / TABLE_FILE, markdown(content).split("\n"))
    write_pictures(content.charts, study.output / "figures", ("svg",))
    say(f"\n{in_short(study.spec, results)}")
    say(f"{len(results)} of {number_of_runs(study.spec)} runs: {study.output / PAGE_FILE}\n")
    if pack_to:
        if lost := packed(study, pack_to) - {each.run for each in results}:
            raise RunStopped(
                f"--pack {pack_to} holds {len(lost)} runs that are not finished here, and stays as it is; give "
                "another file, or --unpack it, too"
            )
        pack_to.parent.mkdir(parents=True, exist_ok=True)
        pack(results, pack_to, study.asked)


@contextmanager
def workers(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that end with this one, however it ends."""
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
    """A worker ends with its parent, and what it started with it; Ctrl-C is the parent's."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def dry_run(study: LabStudy, jobs: int) -> None:
    """Say what is missing, and how long that takes, by timing a step of each arm."""
    scores = study.scores()
    spec, total = study.spec, number_of_runs(study.spec)
    say(f"{spec.title}: {total} runs, {len(scores)} of them finished\n")
    left = total - len(scores)
    with workers(1) as pool:
        first = [StudyRun(arm.name, SCREEN, arm.cells[0], 0) for arm in spec.arms]
        result_of(pool, study.prepare, first[0])
        lengths = []
        for arm, of_arm in zip(spec.arms, first, strict=True):
            steps = study.request(of_arm).settings.steps
            found = result_of(pool, study.seconds, of_arm, TIMED_STEPS)
            lengths.append(steps * found["step"] + found["rest"])
            one = f"{steps} steps of {found['step']:.2f} s, a run {lengths[-1]:.0f} s"
            say(f"  {arm.name}: {len(arm.cells)} cells, {one}\n")
    minutes = left * sum(lengths) / len(lengths) / jobs / 60
    say(f"about {minutes:.0f} min with --jobs {jobs}; a step was timed on this machine as it is now\n")


if __name__ == "__main__":
    sys.exit(main())
