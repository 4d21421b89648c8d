"""``openrlhf-cov study SPEC``: methods, settings and seeds as one command that goes on where it was cut off."""

import io
import multiprocessing
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from openrlhf_cov.cli import lab, study_ray
from openrlhf_cov.cli.packages import require
from openrlhf_cov.errors import UsageError
from openrlhf_cov.study.plan import Run, Score, all_runs, number_of_runs, runs_due
from openrlhf_cov.study.results import Result, pack, read_result, score_of, unpack
from openrlhf_cov.study.spec import Spec, read_spec
from openrlhf_cov.utils.cores import cores
from openrlhf_cov.utils.json_lines import write_lines
from openrlhf_cov.utils.orphans import die_with_parent
from openrlhf_cov.utils.terminal import Parser, refuse, say

PAGE_FILE, TABLE_FILE = "study.html", "study.md"
TIMED_STEPS = 3


def build_parser() -> Parser:
    """The parser of this command."""
    parser = Parser(prog="study", about=__doc__)
    parser.add_argument("spec", type=Path, metavar="SPEC", help="file of studies/, or one like these")
    parser.add_argument("--output", type=Path, metavar="DIR", help="folder of the study (default: runs/study/NAME)")
    parser.add_argument(
        "--jobs", type=int, default=cores(), metavar="N", help=f"runs side by side, a thread each (default: {cores()})"
    )
    parser.add_argument("--base_policies", type=Path, metavar="DIR", help="where base policies are kept")
    parser.add_argument("--page", action="store_true", help="write page and table from what is finished, run nothing")
    parser.add_argument("--pack", type=Path, metavar="FILE", help="write the finished runs to one file (.jsonl.xz)")
    parser.add_argument(
        "--unpack", type=Path, metavar="FILE", help="take the runs of a file of --pack as finished; go on from there"
    )
    parser.add_argument("--dry_run", action="store_true", help="say what would run and how long, and run nothing")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Exit status 0 when the study is complete; 2 for a refused request, 1 where a run failed."""
    args = build_parser().parse_args(argv)
    try:
        if args.jobs < 1:
            raise UsageError(f"--jobs is at least 1, got {args.jobs}")
        spec = read_spec(args.spec)
        output: Path = args.output or Path("runs/study") / args.spec.stem
        if spec.engine == "ray":
            study_ray.check(spec, args.spec, output)
            if not args.dry_run:
                raise UsageError(
                    f"{args.spec}: a study of engine ray is not run here; --dry_run prints the command of each run"
                )
            study_ray.dry_run(spec, output, {})
            return 0
        study = Study(spec, output, args.base_policies or lab.base_policies())
        study.check(args.spec)
        if args.unpack:
            study.take(args.unpack)
        require(("torch", "transformers", "openrlhf"))
        if args.dry_run:
            return dry_run(study, args.jobs)
        if not args.page:
            run(study, args.jobs)
        write(study, args.pack)
        return 0
    except (UsageError, OSError) as error:
        return refuse("study", error)


class Study:
    """A spec, the folder that it fills, and the command line of each of its runs."""

    def __init__(self, spec: Spec, output: Path, base_policies: Path) -> None:
        self.spec, self.output, self.base_policies = spec, output, base_policies
        self.given: dict[Run, Result] = {}
        """Results of other machines, which count as those of the same runs."""

    def take(self, packed: Path) -> None:
        """Count the runs of a file as finished; UsageError where none of them is the spec's."""
        self.given = {result.run: result for result in unpack(packed, self.asked)}
        if not self.given:
            raise UsageError(f"--unpack {packed} has no run that {self.spec.title!r} asks for")

    def words(self, run: Run) -> list[str]:
        """The run as a command line of the laboratory."""
        place = ["--output", str(self.output / run.folder), "--base_policies", str(self.base_policies)]
        return [*place, *self.asked(run)]

    def asked(self, run: Run) -> list[str]:
        """Its flags but for folders; none for an arm that the spec does not have."""
        arm = next((arm for arm in self.spec.arms if arm.name == run.arm), None)
        if arm is None:
            return []
        return ["--task", self.spec.task, *self.spec.words, *arm.words, *run.cell, "--train.seed", str(run.seed)]

    def request(self, run: Run) -> lab.Request:
        """UsageError for flags that the laboratory refuses."""
        try:
            return lab.Request.of(_Strict(lab.build_parser()).parser, self.words(run))
        except ValueError as error:
            raise UsageError(str(error)) from error

    def check(self, path: Path) -> None:
        """Every cell of every arm is a run that can be made; UsageError names the file, the arm and what is wrong."""
        known = lab.build_parser().format_help()
        for flag in self.spec.needs:
            if f" {flag} " not in known:
                raise UsageError(f"{path} needs {flag}, which the laboratory of this version does not have")
        for arm in self.spec.arms:
            for cell in arm.cells:
                try:
                    self.request(Run(arm.name, "screen", cell, 0))
                except UsageError as error:
                    raise UsageError(f"{path}: arm {arm.name}: {error}") from error

    def scores(self) -> dict[Run, Score]:
        """Those of all finished runs. UsageError where a folder holds another run than the spec's."""
        scores: dict[Run, Score] = {}
        while True:  # what tuning chooses names further runs
            known = [run for run in all_runs(self.spec, scores) if run not in scores]
            found = {run: score for run in known if (score := self.score(run))}
            if not found:
                return scores
            scores |= found

    def score(self, run: Run) -> Score | None:
        """None where the run is not finished."""
        if run in self.given:
            return score_of(self.given[run])
        request = self.request(run)
        if request.is_another():
            raise UsageError(
                f"{request.args.output} holds a run of other settings than {self.spec.title!r} asks for; give another "
                "--output, or delete it"
            )
        result = read_result(self.output, run) if request.is_complete() else None
        return score_of(result) if result else None


    def results(self) -> list[Result]:
        """Of all finished runs, in the order of the spec."""
        runs = all_runs(self.spec, self.scores())
        found = (self.given.get(run) or read_result(self.output, run) for run in runs)
        return [result for result in found if result]


class _Strict:
    """A parser that raises UsageError instead of ending the process."""

    def __init__(self, parser: Parser) -> None:
        self.parser = parser
        parser.error = self._error  # type: ignore[method-assign]

    def _error(self, message: str) -> Any:
        raise UsageError(message)


def run(study: Study, jobs: int) -> None:
    """Make every missing run, ``jobs`` side by side."""
    scores, started = study.scores(), time.monotonic()
    total, before = number_of_runs(study.spec), len(scores)
    say(f"{study.output}: {before} of {total} runs are finished\n")
    if not runs_due(study.spec, scores):
        return
    with workers(jobs) as pool:
        pool.submit(make_base_policy, study.words(runs_due(study.spec, scores)[0])).result()
        running: dict[Future, Run] = {}
        while True:
            for due in runs_due(study.spec, scores):
                if len(running) < jobs and due not in running.values():
                    running[pool.submit(train, study.words(due))] = due
            if not running:
                return
            finished, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                done = running.pop(future)
                future.result()
                score = study.score(done)
                if score is None:
                    raise UsageError(f"{study.output / done.folder} is not complete after its run")
                scores[done] = score
                made, left = len(scores) - before, total - len(scores)
                minutes = (time.monotonic() - started) / made * left / 60
                say(f"{len(scores)}/{total} {done.folder}: {score.last:.3f}; about {minutes:.0f} min left\n")


def write(study: Study, pack_to: Path | None = None) -> None:
    """``study.html``, ``study.md`` and ``figures/`` of the finished runs, in the folder of the study."""
    from openrlhf_cov.pages.picture import write_pictures
    from openrlhf_cov.study.document import document, markdown, page

    results = study.results()
    content = document(study.spec, results)
    study.output.mkdir(parents=True, exist_ok=True)
    write_lines(study.output / PAGE_FILE, page(content).split("\n"))
    write_lines(study.output / TABLE_FILE, markdown(content).split("\n"))
    write_pictures(content.charts, study.output / "figures", ("svg",))
    if pack_to:
        pack_to.parent.mkdir(parents=True, exist_ok=True)
        pack(results, pack_to, study.asked)
    say(f"{len(results)} of {number_of_runs(study.spec)} runs: {study.output / PAGE_FILE}\n")


@contextmanager
def workers(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that end with this one, however it ends."""
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=die_with_parent)
    try:
        yield pool
    except BrokenProcessPool as error:
        raise UsageError(
            "a run was killed, perhaps for lack of memory; run the command again, with fewer --jobs"
        ) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in list((pool._processes or {}).values()):
            process.terminate()


def make_base_policy(words: Sequence[str]) -> None:
    """In a worker: make what all runs begin with."""
    lab.prepare(lab.Request.of(lab.build_parser(), words))


def train(words: Sequence[str]) -> None:
    """In a worker: one run; what it says is in its files."""
    request = lab.Request.of(lab.build_parser(), words)
    with redirect_stdout(io.StringIO()):
        lab.train(request)


def seconds_of(words: Sequence[str]) -> Mapping[str, float]:
    """In a worker: seconds of a step and of what a run does beside its steps."""
    return lab.measure(lab.Request.of(lab.build_parser(), words), TIMED_STEPS)


def dry_run(study: Study, jobs: int) -> int:
    """Say what is missing, and how long that takes, by timing a step of each arm."""
    scores = study.scores()
    spec, total = study.spec, number_of_runs(study.spec)
    say(f"{spec.title}: {total} runs, {len(scores)} of them finished\n")
    left = total - len(scores)
    with workers(1) as pool:
        pool.submit(make_base_policy, study.words(Run(spec.arms[0].name, "screen", spec.arms[0].cells[0], 0))).result()
        lengths = []
        for arm in spec.arms:
            words = study.words(Run(arm.name, "screen", arm.cells[0], 0))
            steps = lab.Request.of(lab.build_parser(), words).settings.steps
            found = pool.submit(seconds_of, words).result()
            lengths.append(steps * found["step"] + found["rest"])
            one = f"{steps} steps of {found['step']:.2f} s, a run {lengths[-1]:.0f} s"
            say(f"  {arm.name}: {len(arm.cells)} cells, {one}\n")
    minutes = left * sum(lengths) / len(lengths) / jobs / 60
    say(f"about {minutes:.0f} min with --jobs {jobs}; a step was timed on this machine as it is now\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
