"""Check if this host is ready for a run, and print the command that fixes each fault."""

import json
import sys
from collections import Counter
from dataclasses import asdict

from openrlhf_cov.cli.entry_point import program
from openrlhf_cov.cluster.host.checks import Line, examine
from openrlhf_cov.cluster.host.facts import gather
from openrlhf_cov.cluster.host.library_reports import library_reports
from openrlhf_cov.errors import UsageError
from openrlhf_cov.utils.terminal import Parser, printable, say


def report(lines: list[Line]) -> str:
    """Return one line per check, with the command that fixes it if it is not ok, and the counts."""
    width = max(len(line.check) for line in lines)
    text = []
    for line in lines:
        fix = f"; fix: {line.fix}" if line.fix else ""
        text.append(f"{line.status:<4}  {line.check:<{width}}  {printable(line.found + fix)}")
    counts = Counter(line.status for line in lines)
    return "\n".join([*text, "", ", ".join(f"{counts[status]} {status}" for status in ("ok", "warn", "fail"))])


@program("openrlhf-cov doctor")
def main(argv: list[str] | None = None) -> int:
    """Print what was found; exit status 1 if something fails, 2 for a flag that does not exist."""
    parser = Parser(prog="openrlhf-cov doctor", about=__doc__)
    parser.add_argument(
        "--json", action="store_true", help="print JSON: a list of objects with check, status, found and fix"
    )
    parser.add_argument("--hub", action="store_true", help="also check that the Hugging Face hub answers")
    parser.add_argument(
        "--libraries",
        action="store_true",
        help="also print the reports of torch (python -m torch.utils.collect_env) and DeepSpeed (ds_report); takes up "
        "to a minute",
    )
    args = parser.parse_args(argv)
    if args.json and args.libraries:
        raise UsageError("--libraries has no effect with --json; drop one of the two")
    lines = examine(gather(args.hub))
    say((json.dumps([asdict(line) for line in lines], indent=2) if args.json else report(lines)) + "\n")
    if args.libraries:
        for text in library_reports():
            say("\n" + "\n".join(printable(line) for line in text.splitlines()) + "\n")
    return int(any(line.status == "fail" for line in lines))


if __name__ == "__main__":
    sys.exit(main())
