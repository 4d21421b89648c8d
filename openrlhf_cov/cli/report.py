"""Draw figures of training runs, and test the entropy law (docs/methods/entropy_law.md)."""

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from openrlhf_cov.analysis.naming import NAMINGS, SHORT_NAMES
from openrlhf_cov.cli.entry_point import program
from openrlhf_cov.errors import UsageError
from openrlhf_cov.utils.json_lines import write_lines
from openrlhf_cov.utils.metrics_log import METRICS_FILE
from openrlhf_cov.utils.output_folders import check_file, check_folder, check_own
from openrlhf_cov.utils.terminal import Parser, one_line, say

if TYPE_CHECKING:
    from openrlhf_cov.analysis.report.contents import Options

DEFAULT_FORMATS = "svg,png"
# Value of --entropy -> column.
ENTROPIES = {"token": "entropy/mean", "response": "entropy/response_mean"}


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = Parser(prog="openrlhf-cov report", about=__doc__)
    parser.add_argument(
        "runs",
        type=Path,
        nargs="+",
        metavar="RUN",
        help="folder of a run, its metrics.jsonl, a folder of TensorBoard events, a .csv or .tsv file, or "
        "trainer_state.json of TRL",
    )
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="folder for report.html and figures/ (default: RUN/report)"
    )
    parser.add_argument(
        "--mapping",
        nargs="+",
        action="extend",
        metavar="NAME",
        help=f"names in TensorBoard and CSV: one of {', '.join(NAMINGS)}, or OURS=THEIRS such as "
        "entropy=actor/entropy reward=critic/score/mean (default: the trainer that fits best)",
    )
    law = parser.add_argument_group("the law")
    law.add_argument(
        "--metric",
        default="reward",
        help="R: reward, score or a metric of eval.jsonl; several, with commas, are averaged (default: reward)",
    )
    law.add_argument(
        "--entropy",
        choices=tuple(ENTROPIES),
        default="token",
        help="H: mean entropy over all tokens (token), or first within each response as in the paper (response) "
        "(default: token)",
    )
    law.add_argument(
        "--forecast",
        type=float,
        default=0.15,
        metavar="SHARE",
        help="share of the points that the forecast is fitted to (default: 0.15)",
    )
    law.add_argument("--robust", action="store_true", help="use Huber's fit, which is robust to outlying rewards")
    law.add_argument("--reward_max", type=float, default=1.0, help="largest possible R (default: 1)")
    law.add_argument(
        "--size",
        nargs="+",
        action="extend",
        default=[],
        metavar="RUN=N",
        help="non-embedding parameters of the model of a run",
    )
    law.add_argument(
        "--extrapolate",
        type=float,
        metavar="N",
        help="predict a, b and the ceiling for a model of this size; needs --size",
    )
    files = parser.add_argument_group("files")
    files.add_argument("--formats", help=f"formats of the figures (default: {DEFAULT_FORMATS})")
    files.add_argument("--no_page", action="store_true", help="write the figures only, without report.html")
    files.add_argument("--export", metavar="FILE", help="write the numbers as JSON to this file; -: to stdout")
    return parser


@program("openrlhf-cov report")
def main(argv: list[str] | None = None) -> None:
    """Print the table and write the report; exit status 2 with one line on stderr for bad input."""
    args = build_parser().parse_args(argv)
    formats, options, mapping = check_flags(args)
    from openrlhf_cov.analysis.report.build_contents import build_contents, read_runs
    from openrlhf_cov.analysis.report.export import export_text
    from openrlhf_cov.analysis.report.words import summary
    from openrlhf_cov.analysis.report.write import write_files

    contents = build_contents(read_runs(args.runs, mapping), options)
    stream = sys.stderr if args.export == "-" else sys.stdout
    for run in contents.runs:
        for warning in run.warnings:
            say(f"report: {run.name}: {one_line(warning)}\n", sys.stderr)
    say(summary(contents), stream)
    if args.output:
        written = write_files(contents, args.output, formats=formats, with_page=not args.no_page)
        say(f"\n{len(written.figures)} figures in {args.output / 'figures'}\n", stream)
        say(f"{written.page}\n" if written.page else "", stream)
    if args.export == "-":
        say(export_text(contents))
    elif args.export:
        write_lines(Path(args.export), [export_text(contents).rstrip("\n")])


def default_output(runs: Sequence[Path]) -> Path:
    """Return the folder of a report without ``--output``.

    Args:
        runs: The paths of the command line.

    Returns:
        ``RUN/report`` for one folder, ``NAME_report`` beside a table, and ``report`` beside several runs.

    Raises:
        UsageError: If several runs do not stand in one folder.
    """
    places = [run.parent if run.name == METRICS_FILE else run for run in runs]
    if len(places) == 1:
        (place,) = places
        return place.with_name(f"{place.stem}_report") if place.is_file() else place / "report"
    # Not the resolved path: a report belongs beside the paths that the user named.
    parents = {place.absolute().parent for place in places}
    if len(parents) > 1:
        raise UsageError("the runs are in different folders; name the folder of the report: --output DIR")
    return places[0].parent / "report"


def parse_mapping(words: Sequence[str] | None) -> Mapping[str, str] | str | None:
    """Return the value of ``--mapping`` as ``read_run`` takes it; UsageError for a word that is not OURS=THEIRS."""
    if not words:
        return None
    if len(words) == 1 and words[0] in NAMINGS:
        return words[0]
    pairs = [word.partition("=") for word in words]
    for word, (ours, _, theirs) in zip(words, pairs, strict=True):
        if not ours or not theirs:
            names = ", ".join(NAMINGS)
            raise UsageError(
                f"--mapping {word}: must be one of {names}, or pairs OURS=THEIRS; name the runs before the flags"
            )
    found: dict[str, str] = {}
    for ours, _, theirs in pairs:
        name = SHORT_NAMES.get(ours, ours)
        if name in found:
            raise UsageError(
                f"--mapping {ours}={theirs}: {name} is mapped to {found[name]} as well; drop one of the two"
            )
        found[name] = theirs
    return found


def parse_sizes(words: Sequence[str]) -> dict[str, float]:
    """Return the value of ``--size`` as a number of parameters by run; UsageError for one that is not RUN=N."""
    sizes = {}
    for word in words:
        name, _, text = word.rpartition("=")
        try:
            size = float(text)
        except ValueError:
            size = 0.0
        if not name or not 0.0 < size < math.inf:
            raise UsageError(
                f"--size {word}: must be RUN=N with N above 0, such as run=7e9; name the runs before the flags"
            )
        if name in sizes:
            raise UsageError(f"--size {name} is given twice")
        sizes[name] = size
    return sizes


def parse_formats(text: str) -> tuple[str, ...]:
    """Return the values of ``--formats``, each once; UsageError for one that no figure can have."""
    from openrlhf_cov.analysis.report.write import FORMATS

    formats = tuple(dict.fromkeys(filter(None, text.split(","))))
    if not formats or set(formats) - set(FORMATS):
        raise UsageError(f"--formats {text}: must be {', '.join(FORMATS)} or both")
    return formats


def check_places(output: Path | None, export: str | None) -> None:
    """Raise UsageError if a place cannot be written, or holds the files of something else.

    Args:
        output: Folder of the report; None without a report.
        export: File of the numbers, ``-`` for stdout; None for no export.
    """
    from openrlhf_cov.analysis.report.write import PAGE

    if output is not None:
        check_folder(output)
        check_own("--output", output / PAGE, b"<title>Entropy report: ")
    if export is not None and export != "-":
        path = Path(export)
        if output and path.parent == output and not output.exists():
            return  # it will be made
        check_file("--export", path, b'{\n  "schema": ')


def check_flags(args: argparse.Namespace) -> tuple[tuple[str, ...], "Options", Mapping[str, str] | str | None]:
    """Return formats, options and mapping; set the default of ``--output``. UsageError for flags that are refused."""
    from openrlhf_cov.analysis.report.contents import Options

    if not args.output and not args.export:
        args.output = default_output(args.runs)
    if not args.output:
        for flag, is_given in (("--formats", args.formats is not None), ("--no_page", args.no_page)):
            if is_given:
                raise UsageError(f"{flag} has no effect with --export alone, which draws nothing; add --output DIR")
    check_places(args.output, args.export)
    if not 0.0 < args.forecast < 1.0:
        raise UsageError(f"--forecast {args.forecast:g}: must be a fraction between 0 and 1")
    if not math.isfinite(args.reward_max):
        raise UsageError(f"--reward_max {args.reward_max:g}: must be a finite number")
    if args.extrapolate is not None and not 0.0 < args.extrapolate < math.inf:
        raise UsageError(f"--extrapolate {args.extrapolate:g}: must be a number of parameters above 0")
    if args.extrapolate is not None and not args.size:
        raise UsageError(f"--extrapolate {args.extrapolate:g} needs the sizes of the runs: --size RUN=N ...")
    options = Options(
        metric=args.metric,
        entropy=ENTROPIES[args.entropy],
        forecast_share=args.forecast,
        robust=args.robust,
        highest_reward=args.reward_max,
        sizes=parse_sizes(args.size),
        extrapolate_to=args.extrapolate,
    )
    mapping = parse_mapping(args.mapping)
    if mapping is not None and all(map(_is_own_run, args.runs)):
        raise UsageError(
            f"--mapping {' '.join(args.mapping)} has no effect: the runs have a {METRICS_FILE}, whose names are "
            "known; drop it"
        )
    formats = DEFAULT_FORMATS if args.formats is None else args.formats
    return parse_formats(formats), options, mapping


def _is_own_run(path: Path) -> bool:
    """Return True for a run folder of this package, or its metrics."""
    return path.name == METRICS_FILE or (path / METRICS_FILE).exists()


if __name__ == "__main__":
    sys.exit(main())
