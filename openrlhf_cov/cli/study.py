"""Tune methods equally, repeat the best settings with fresh seeds, and compare them with intervals.

The same command resumes an interrupted study.
"""

import argparse
import sys
from pathlib import Path

from openrlhf_cov.cli.entry_point import program
from openrlhf_cov.cluster.packages import require
from openrlhf_cov.errors import RunStopped, UsageError
from openrlhf_cov.experiments.lab.request import BASE_POLICIES_HELP
from openrlhf_cov.experiments.study.campaign import Campaign, packed, study_of, write
from openrlhf_cov.experiments.study.spec import ENGINES
from openrlhf_cov.utils.cores import cores
from openrlhf_cov.utils.output_folders import alone_in
from openrlhf_cov.utils.terminal import Parser


def build_parser() -> Parser:
    """Return the parser of this command."""
    parser = Parser(prog="openrlhf-cov study", about=__doc__)
    parser.add_argument(
        "spec",
        type=Path,
        metavar="SPEC",
        help="YAML file of the study, such as studies/quick.yaml (docs/run_study.md)",
    )
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        help="lab: in one process; ray: with Ray, vLLM and DeepSpeed, also for lab specs (default: the spec's)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="folder of the study (default: runs/study/NAME, or NAME-ray for a lab spec with --engine ray)",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help=f"number of runs at a time, one thread each in the lab (default: {cores()}, or 1 with Ray)",
    )
    parser.add_argument("--base_policies", type=Path, metavar="DIR", help=BASE_POLICIES_HELP)
    parser.add_argument(
        "--page", action="store_true", help="write the page and table from the finished runs, and start no run"
    )
    parser.add_argument("--pack", type=Path, metavar="FILE", help="write all finished runs to one file (.jsonl.xz)")
    parser.add_argument(
        "--unpack",
        type=Path,
        metavar="FILE",
        help="use the runs of a file that --pack wrote, and make only those that are missing",
    )
    parser.add_argument(
        "--dry_run", action="store_true", help="print which runs are missing and how long they take, and start none"
    )
    return parser


@program("openrlhf-cov study")
def main(argv: list[str] | None = None) -> None:
    """Run a study; exit status 2 for a refused request, 1 if a run failed, 130 after Ctrl-C."""
    answer(build_parser().parse_args(argv))


def answer(args: argparse.Namespace) -> None:
    """Carry out the request of the flags.

    Raises:
        UsageError: The request is refused.
        RunStopped: A run failed.
    """
    try:
        if args.jobs is not None and args.jobs < 1:
            raise UsageError(f"--jobs {args.jobs}: must be at least 1")
        study = study_of(args)
        if args.pack:
            packed(study, args.pack)  # refused before anything runs
        if args.unpack:
            study.take(args.unpack)
        require(("torch", "transformers", "openrlhf"))
        jobs = args.jobs or study.default_jobs()
        if args.dry_run:
            study.dry_run(jobs)
            return
        failure = ""
        if args.page and not study.results():
            raise UsageError(
                f"--page: {study.output} has no finished run of the study; run it without --page first, or name the "
                "folder of its runs with --output"
            )
        if not args.page:
            with alone_in(study.output):
                failure = Campaign(study, jobs).run()
        write(study, args.pack)
        if failure:
            raise RunStopped(failure)
    except OSError as error:
        raise UsageError(str(error)) from error


if __name__ == "__main__":
    sys.exit(main())
