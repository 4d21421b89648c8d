"""Train and measure the base policies of embedded tasks, and pack them into one file."""

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from openrlhf_cov.cli.entry_point import program
from openrlhf_cov.cluster.packages import require
from openrlhf_cov.errors import UsageError
from openrlhf_cov.experiments.lab import request as lab
from openrlhf_cov.experiments.lab.base_policy_archive import add_to_manifest, make, pack, unpack
from openrlhf_cov.experiments.tiny_task.catalogue import check_sandbox
from openrlhf_cov.utils.config_flags import given_flags
from openrlhf_cov.utils.output_folders import alone_in, check_folder
from openrlhf_cov.utils.terminal import Parser, say

# The tasks on which methods can end at different scores, each with policies of three seeds.
DEFAULT_TASKS = ("shortcut", "shortcut_large", "tail", "graph_paths", "two_peaks")
DEFAULT_SEEDS = (0, 1, 2)
WEIGHTS = "model.safetensors"


def build_parser() -> Parser:
    """Return the parser of this command."""
    parser = Parser(prog="openrlhf-cov base-policies", description=__doc__)
    parser.add_argument(
        "--task",
        nargs="+",
        choices=lab.TASKS,
        default=DEFAULT_TASKS,
        metavar="TASK",
        help=f"{', '.join(lab.TASKS)} (default: {' '.join(DEFAULT_TASKS)})",
    )
    parser.add_argument(
        "--base_seed",
        nargs="+",
        type=int,
        default=DEFAULT_SEEDS,
        metavar="N",
        help="seeds of the base policies (default: 0 1 2)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="folder of base policies, for --base_policies of lab and study (default: ~/.cache/openrlhf_cov)",
    )
    parser.add_argument("--pack", type=Path, metavar="FILE", help="write the policies to one file (.tar.xz)")
    parser.add_argument(
        "--unpack", type=Path, metavar="FILE", help="use the policies of a file that --pack wrote; nothing is trained"
    )
    return parser


@program("openrlhf-cov base-policies")
def main(argv: Sequence[str] | None = None) -> None:
    """Make, pack or unpack base policies; exit status 2 with one line on stderr for a refused request."""
    parser = build_parser()
    words = sys.argv[1:] if argv is None else list(argv)
    args = parser.parse_args(words)
    output: Path = args.output or lab.base_policies()
    if any(not 0 <= seed < 2**31 for seed in args.base_seed):
        raise UsageError(f"--base_seed {' '.join(map(str, args.base_seed))}: must be numbers from 0 to 2^31 - 1")
    if args.pack and args.unpack:
        raise UsageError("--pack writes an archive and --unpack reads one; give one of the two")
    if args.unpack and (unread := sorted(given_flags(parser.parse_args, words, args) & {"task", "base_seed"})):
        raise UsageError(f"--{unread[0]} has no effect with --unpack, which takes all policies of the file; drop it")
    check_folder(output)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if args.unpack:
        with alone_in(output):
            names = unpack(args.unpack, output)
        say(f"{output}: took {', '.join(names)}\n")
        return
    if args.pack:
        check_folder(args.pack.absolute().parent, "--pack")
    require(("torch", "transformers", "openrlhf"))
    if "code" in args.task:
        check_sandbox()
    say(
        f"{len(args.task) * len(args.base_seed)} base policies ({', '.join(args.task)}; seeds "
        f"{', '.join(map(str, args.base_seed))}) in {output}: those that are missing are trained, then all are "
        "measured\n"
    )
    with alone_in(output):
        entries = [make(output, task, seed) for task in args.task for seed in args.base_seed]
        add_to_manifest(output, {entry["name"]: entry for entry in entries})
    for entry in entries:
        numbers = ", ".join(f"{name} {value:.3f}" for name, value in entry["numbers"].items())
        say(f"{entry['name']}: {numbers}, {WEIGHTS} {entry['files'][WEIGHTS][:12]}\n")
    if args.pack:
        pack(output, entries, args.pack)
        say(f"{args.pack}: {len(entries)} base policies\n")


if __name__ == "__main__":
    sys.exit(main())
