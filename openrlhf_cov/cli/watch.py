"""Show curves and alerts of training runs in the terminal."""

import argparse
import os
import signal
import sys
import threading
import time
from pathlib import Path

from openrlhf_cov.cli.entry_point import program
from openrlhf_cov.errors import UsageError
from openrlhf_cov.utils.terminal import Parser, say

SLOWEST = 3600.0
FASTEST = 0.1


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    found = Parser(prog="openrlhf-cov watch", about=__doc__)
    found.add_argument(
        "runs",
        type=Path,
        nargs="+",
        metavar="RUN",
        help="folder of a run of the trainer, the lab or a study; logs of other trainers are read once",
    )
    found.add_argument("--once", action="store_true", help="print a snapshot as plain text and exit")
    found.add_argument("--interval", type=float, default=1.0, help="seconds between reads of the files (default: 1)")
    found.add_argument("--steps", type=int, help="global steps of the run, for the ETA, if its command does not say")
    return found


def check(args: argparse.Namespace) -> None:
    """Raise UsageError for values out of range, and for a live dashboard without a terminal."""
    if not FASTEST <= args.interval <= SLOWEST:
        raise UsageError(f"--interval {args.interval:g}: must be between {FASTEST:g} and {SLOWEST:g} seconds")
    if args.steps is not None and args.steps < 1:
        raise UsageError(f"--steps {args.steps}: must be at least 1")
    streams = (sys.stdin, sys.stdout, sys.stderr)  # keys, size, pictures
    on_terminal = all(stream.isatty() for stream in streams) and os.environ.get("TERM") != "dumb"
    if not (args.once or on_terminal):
        raise UsageError("the dashboard needs a terminal; add --once for a snapshot as plain text")


def end_with_terminal() -> None:
    """End this process when its terminal is closed.

    A closed terminal usually ends its processes by SIGHUP. A process that ignores SIGHUP, or whose terminal is not its
    controlling one, would go on and wait for the terminal in a busy loop.
    """
    while os.isatty(sys.stdin.fileno()):
        time.sleep(1.0)
    os._exit(128 + signal.SIGHUP)


@program("openrlhf-cov watch")
def main(argv: list[str] | None = None) -> None:
    """Watch until a key ends it, or with ``--once`` print a snapshot; exit status 2 with one line on stderr for a path
    or flag that cannot be used."""
    args = parser().parse_args(argv)
    check(args)
    from openrlhf_cov.analysis.dashboard.state import open_sources

    sources = open_sources(args.runs, args.steps)
    if not args.once:
        from openrlhf_cov.analysis.dashboard.app import Watch

        threading.Thread(target=end_with_terminal, daemon=True).start()
        Watch(sources, args.interval).run()
        return
    from openrlhf_cov.analysis.dashboard.panels import snapshot
    from openrlhf_cov.analysis.runs import unreadable

    for source in sources:
        try:
            source.update()
        except OSError as error:
            raise unreadable(error) from error
    say(snapshot([source.state for source in sources if source.state], time.time()))


if __name__ == "__main__":
    sys.exit(main())
