"""Show the scores of evaluations side by side, and test which of them differ."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from openrlhf_cov.cli.entry_point import program
from openrlhf_cov.evaluation import paper
from openrlhf_cov.evaluation.compared_runs import comparison_table, read_compared_runs
from openrlhf_cov.evaluation.pairing import compare
from openrlhf_cov.utils.json_lines import write_lines
from openrlhf_cov.utils.output_folders import check_file
from openrlhf_cov.utils.terminal import Parser, say


def build_parser() -> Parser:
    """Return the parser of this command."""
    parser = Parser(prog="openrlhf-cov compare", about=__doc__)
    parser.add_argument(
        "runs",
        type=Path,
        nargs="+",
        metavar="RUN",
        help="folder of an evaluation; the others are compared with the first",
    )
    parser.add_argument("--metric", default="avg", help="avg, or pass@k such as pass@8 (default: avg)")
    parser.add_argument("--against", choices=tuple(paper.ROWS), help=f"also show the rows of {paper.SOURCE}")
    parser.add_argument(
        "--grader",
        default="strict",
        choices=("strict", "published"),
        help="grader whose scores are compared (default: strict)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the comparison to this file")
    return parser


@program("openrlhf-cov compare")
def main(argv: list[str] | None = None) -> None:
    """Print the comparison; exit status 2 with one line on stderr for a folder or flag that is not as it should be."""
    args = build_parser().parse_args(argv)
    if args.json:
        check_file("--json", args.json, b'{\n  "metric": ')
    comparison = compare(read_compared_runs(args.runs, args.grader), args.metric, args.against, args.grader)
    if args.json:
        write_lines(args.json, [json.dumps(asdict(comparison), indent=2, ensure_ascii=False)])
    say(comparison_table(comparison) + "\n")


if __name__ == "__main__":
    sys.exit(main())
