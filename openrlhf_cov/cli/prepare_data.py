"""Make a training set: prompts with checked labels and no duplicates; with --eval_dir, no benchmark problems."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from tqdm import tqdm

from openrlhf_cov.cli.entry_point import program
from openrlhf_cov.data.inputs import TRAINING_SETS, DatasetPart, Keys, check_sources, open_sources, unread_part
from openrlhf_cov.data.output import DROPPED, MANIFEST, TRAIN, write_training_set
from openrlhf_cov.data.overlap import EvaluationSets, read_evaluation_sets
from openrlhf_cov.data.selection import REASONS
from openrlhf_cov.data.templates import TEMPLATES
from openrlhf_cov.errors import UsageError
from openrlhf_cov.rewards.sources import SOURCES
from openrlhf_cov.utils.output_folders import alone_in, check_folder, check_own
from openrlhf_cov.utils.terminal import Parser, say
from openrlhf_cov.utils.text_table import aligned

KEYS = ("id", "problem", "answer", "source")
# What a process leaves in its folder that was killed or found no row; the same command then writes there again.
LEFT = {".lock", DROPPED, *(f".{name}.tmp" for name in (TRAIN, DROPPED, MANIFEST))}


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = Parser(prog="openrlhf-cov prepare", about=__doc__)
    names = ", ".join(TRAINING_SETS)
    parser.add_argument(
        "--dataset",
        required=True,
        help=f"{names}, files (.jsonl, .json, .csv, .parquet), folders of save_to_disk or ids on the hub; several, "
        "with commas",
    )
    parser.add_argument(
        "--output", type=Path, required=True, metavar="DIR", help="new or empty folder, or one that this command wrote"
    )
    parser.add_argument(
        "--data_dir", type=Path, metavar="DIR", help="folder with files of the named sets (default: the hub)"
    )
    parser.add_argument(
        "--split",
        default=DatasetPart.split,
        help=f"split of folders and ids on the hub (default: {DatasetPart.split})",
    )
    parser.add_argument(
        "--subset", metavar="NAME", help="configuration of ids on the hub, such as main of openai/gsm8k"
    )
    parser.add_argument(
        "--template",
        choices=tuple(TEMPLATES),
        default="qwen-boxed",
        help="template of the prompts (default: qwen-boxed)",
    )
    parser.add_argument(
        "--eval_dir", type=Path, metavar="DIR", help="leave out the problems of the *.jsonl files in this folder"
    )
    parser.add_argument(
        "--eval_ngram",
        type=int,
        default=0,
        metavar="N",
        help="also leave out problems that share N consecutive words with one of them, such as 20 (default: 0, off)",
    )
    parser.add_argument(
        "--rule",
        choices=tuple(SOURCES),
        help="grading rule for rows whose source names none (default: refuse such rows)",
    )
    for name in KEYS:
        default = getattr(Keys, name)
        parser.add_argument(
            f"--{name}_key", default=default, help=f"key of the {name}; a.b for a nested key (default: {default})"
        )
    return parser


@program("openrlhf-cov prepare")
def main(argv: list[str] | None = None) -> None:
    """Print the counts and the flags to train with; exit status 2 with one line on stderr for bad input."""
    args = build_parser().parse_args(argv)
    say(summary(prepare(args), args.output) + "\n")


def prepare(args: argparse.Namespace) -> dict[str, Any]:
    """Write the training set and return its manifest."""
    _check(args)
    keys = {f"{name}_key": getattr(args, f"{name}_key") for name in KEYS}
    sources = open_sources(
        args.dataset,
        args.data_dir,
        Keys(**{name: keys[f"{name}_key"] for name in KEYS}),
        args.rule,
        DatasetPart(split=args.split, subset=args.subset),
    )
    evaluation = read_evaluation_sets(args.eval_dir, args.eval_ngram) if args.eval_dir else EvaluationSets()
    settings = {"template": args.template, "eval_ngram": args.eval_ngram, "rule": args.rule} | keys
    settings |= {"split": args.split, "subset": args.subset}
    with alone_in(args.output):
        # Two passes over the rows have a progress bar each.
        return write_training_set(
            args.output,
            sources,
            evaluation,
            settings,
            watch=lambda rows, count, what: tqdm(rows, total=count, desc=what, unit="row"),
        )


def check_inputs(args: argparse.Namespace) -> None:
    """Raise UsageError for flags, folders and files that ``prepare`` refuses; nothing is written, no hub is asked."""
    _check(args)
    check_folder(args.output)
    check_sources(args.dataset, args.data_dir)
    if args.eval_dir:
        read_evaluation_sets(args.eval_dir, 0)


def summary(manifest: dict[str, Any], folder: Path) -> str:
    """Return the text of a manifest: rows kept and left out, overlaps, and the flags to train with ``folder``."""
    columns = ("read", "kept", *REASONS)
    rows = [(each["name"], *(f"{each[column]:,}" for column in columns)) for each in manifest["inputs"]]
    if len(rows) > 1:
        rows.append(("all", *(f"{manifest['rows'][column]:,}" for column in columns)))
    lines = aligned([("dataset", *columns), *rows], left=(0,))
    if manifest["evaluation"]:
        found = [f"{each['name']} {each['overlaps']:,}" for each in manifest["evaluation"] if each["overlaps"]]
        lines += ["", f"left out as problems of evaluation sets: {', '.join(found) or 'none'}"]
    else:
        lines += ["", "problems of evaluation sets were not removed: --eval_dir is not given"]
    flags = ["--data.prompt_dataset", str(folder / TRAIN), *manifest["training_flags"]]
    return "\n".join([*lines, "", f"train with: {shlex.join(flags)}"])


def _check(args: argparse.Namespace) -> None:
    """Refuse flags that contradict each other and folders that are not to be written to."""
    output: Path = args.output
    if args.eval_ngram < 0:
        raise UsageError(f"--eval_ngram {args.eval_ngram}: must be a number of words of at least 1, or 0 for off")
    if args.eval_ngram and not args.eval_dir:
        raise UsageError("--eval_ngram needs --eval_dir, a folder of evaluation sets")
    if fault := unread_part(args.dataset, args.data_dir, DatasetPart(split=args.split, subset=args.subset)):
        raise UsageError(fault)
    if output.exists() and not output.is_dir():
        raise UsageError(f"--output {output} is a file; choose a folder")
    check_folder(output)
    if output.is_dir() and {path.name for path in output.iterdir()} - LEFT and not (output / MANIFEST).is_file():
        raise UsageError(f"--output {output} is not empty and holds no {MANIFEST}; choose another folder")
    check_own("--output", output / MANIFEST, b'"openrlhf_cov": ')
    if any(Path(name.strip()).resolve().parent == output.resolve() for name in args.dataset.split(",")):
        raise UsageError(f"--output {output} is the folder of the input {args.dataset}; choose another folder")


if __name__ == "__main__":
    sys.exit(main())
