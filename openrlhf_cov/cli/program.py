"""What commands share: where they write, and how they end: one line and the exit status."""

import fcntl
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from openrlhf_cov.errors import RunStopped, UsageError
from openrlhf_cov.utils.terminal import refuse, say


def run_as_program(name: str, work: Callable[[], int | None]) -> int:
    """Do the work; its exit status, or 2 for a bad setting, 1 for a run that stopped, 130 after Ctrl-C.

    SIGTERM ends the process with status 143. Either way the work can clean up behind itself.
    """
    handlers = {
        signal.SIGTERM: lambda *_: sys.exit(128 + signal.SIGTERM),
        signal.SIGINT: signal.default_int_handler,  # a background shell starts programs with SIGINT ignored
    }
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        return work() or 0
    except (UsageError, RunStopped) as error:
        return refuse(name, error, 2 if isinstance(error, UsageError) else 1)
    except KeyboardInterrupt:
        say(f"\n{name}: interrupted; what it started on this host is stopped\n", sys.stderr)
        return 128 + signal.SIGINT
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)  # None: it was not set by Python


@contextmanager
def alone_in(output: Path) -> Iterator[None]:
    """While the body runs, no other process that asks so writes this folder, which is made; UsageError where one does.

    The lock ends with the process, however it ends.
    """
    output.mkdir(parents=True, exist_ok=True)
    with (output / ".lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                f"--output {output}: another process is writing there; wait for it, or give another folder"
            ) from error
        yield


def check_folder(folder: Path, flag: str = "--output") -> None:
    """UsageError for a folder to write, as ``flag`` says, that can be none; nothing is made."""
    try:
        there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    except OSError as error:  # too long, or below a folder that may not be entered
        raise UsageError(f"{flag} {folder}: {error.strerror}") from error
    if not there.is_dir():
        raise UsageError(f"{flag} {folder}: {there} is a file; give a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UsageError(f"{flag} {folder}: {there} cannot be written to; give another folder")
