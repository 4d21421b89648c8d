"""Compare methods over settings and seeds; the same command resumes an interrupted study."""

import argparse
import sys
from pathlib import Path

from openrlhf_cov.cli.entry_point import program
from openrlhf_cov.cluster.packages import require
from openrlhf_cov.errors import RunStopped, UsageError
from openrlhf_cov.experiments.study.campaign import Campaign, packed, study_of, write
from openrlhf_cov.experiments.study.spec import ENGINES
from openrlhf_cov.utils.cores import cores
from openrlhf_cov.utils.output_folders import alone_in
from openrlhf_cov.utils.terminal import Parser


def build_parser() -> Parser:
    """Return the parser of this command."""
    parser = Parser(prog="openrlhf-cov study", about=__doc__)
    parser.add_argument("spec", type=Path, metavar="SPEC", help="file of studies/, or one like these")
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        help="the lab, or the whole trainer, also for what is written for the lab (default: the spec's)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="folder of the study (default: runs/study/NAME; NAME-ray where --engine ray is not the spec's)",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help=f"runs side by side, in the lab with a thread each (default: {cores()}; of trainings 1)",
    )
    parser.add_argument("--base_policies", type=Path, metavar="DIR", help="where base policies are kept")
    parser.add_argument("--page", action="store_true", help="write page and table from what is finished, run nothing")
    parser.add_argument("--pack", type=Path, metavar="FILE", help="write the finished runs to one file (.jsonl.xz)")
    parser.add_argument(
        "--unpack", type=Path, metavar="FILE", help="take the runs of a file of --pack as finished; go on from there"
    )
    parser.add_argument("--dry_run", action="store_true", help="say what would run and how long")
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
