"""Grade the responses in a file, to check a reward before training."""

import sys
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

from tqdm import tqdm

from openrlhf_cov.cli.entry_point import program
from openrlhf_cov.cluster.packages import require_grader
from openrlhf_cov.config import RewardConfig
from openrlhf_cov.errors import UsageError
from openrlhf_cov.rewards import response_files
from openrlhf_cov.rewards.grades import Grade
from openrlhf_cov.rewards.unread_reward_flags import UNREAD_BY, unread_reward_flags
from openrlhf_cov.utils.config_flags import add_config_arguments, given_flags
from openrlhf_cov.utils.json_lines import write_lines
from openrlhf_cov.utils.output_folders import check_file
from openrlhf_cov.utils.terminal import Parser, say

# Settings of a training: they make rewards of grades, or say what becomes of truncated responses and bad labels.
OF_TRAINING = (
    *("reward_incorrect", "reward_format_bonus", "reward_keep_truncated", "reward_skip_bad_labels"),
    "reward_max_error_frac",
)


def build_parser() -> Parser:
    """Return the parser of this command."""
    parser = Parser(prog="openrlhf-cov grade", about=__doc__)
    parser.add_argument(
        "file", metavar="FILE", type=Path, help="JSON Lines file with one response and its label per line"
    )
    parser.add_argument("--response_key", default="response", help="key of the response (default: response)")
    parser.add_argument("--label_key", default="answer", help="key of the label (default: answer)")
    prompt_key = response_files.PROMPT_KEY
    parser.add_argument(
        "--prompt_key",
        help=f"key of the prompt, which graders also use (default: {prompt_key}, if a row has it)",
    )
    parser.add_argument("--output", type=Path, help="write every grade to this JSON Lines file")
    parser.add_argument(
        "--compare",
        action="store_true",
        help="grade by both graders, strict and published, and show where they differ",
    )
    own = [entry.name for entry in fields(RewardConfig) if entry.name not in OF_TRAINING]
    add_config_arguments(parser, "rewards", RewardConfig, own)
    parser.set_defaults(**{entry.name: entry.default for entry in fields(RewardConfig) if entry.name in OF_TRAINING})
    return parser


@program("openrlhf-cov grade")
def main(argv: list[str] | None = None) -> None:
    """Print the summary; exit status 2 with one line on stderr for a bad file or flag."""
    parser = build_parser()
    args = parser.parse_args(argv)
    config = RewardConfig.from_args(args)
    for reason in unread_reward_flags(config, given_flags(parser.parse_args, argv, args)):
        raise UsageError(reason)
    if args.compare and config.reward_source in UNREAD_BY["reward_grader"][0]:
        raise UsageError(
            f"--compare: by --reward_source {config.reward_source} both graders are the same; drop one of the two"
        )
    if args.output and args.output.resolve() == args.file.resolve():
        raise UsageError(f"--output {args.output} is the file of the responses; give another file")
    if args.output:
        check_file("--output", args.output, b'{"line": ')
    if args.compare and config.reward_grader != "strict":
        raise UsageError("--compare grades by both graders; drop --reward_grader")
    require_grader("published" if args.compare else config.reward_grader)
    rows = response_files.read_response_rows(args.file, args.response_key, args.label_key, args.prompt_key)
    response_files.check_labels(args.file, rows, config)
    grades = response_files.grade_rows(rows, config, progress_bar)
    published = response_files.published_grades(rows, grades, config, progress_bar) if args.compare else None
    if args.output:
        write_lines(args.output, response_files.grade_lines(rows, grades, published))
    say(response_files.summary(rows, grades) + "\n")
    if published:
        say("\n" + response_files.comparison(rows, grades, published) + "\n")


def progress_bar(grades: Iterable[Grade], count: int) -> Iterable[Grade]:
    """Yield the grades and show their number in a progress bar on stderr.

    Args:
        grades: The grades, which are computed as they are read.
        count: Number of all grades.
    """
    return tqdm(grades, total=count, desc="grading", unit="response")


if __name__ == "__main__":
    sys.exit(main())
