"""What commands share: where they write, and how they end: one line and the exit status."""

import fcntl
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import ParamSpec

from openrlhf_cov.errors import RunStopped, UsageError
from openrlhf_cov.utils.terminal import refuse, say

Given = ParamSpec("Given")
STOPPED = "what it started on this host is stopped"


class Terminated(SystemExit):
    """SIGTERM, as an exception: the work can clean up behind itself."""


def run_as_program(name: str, work: Callable[[], int | None], after_signal: str = STOPPED) -> int:
    """Do the work; its exit status, or with one line on stderr 2 for a bad setting, 1 for a run that stopped or a file
    that cannot be written, 130 after Ctrl-C, 143 after SIGTERM.

    A ValueError whose message begins with a flag is of a bad setting; any other is an error of the program.
    """
    handlers = {
        signal.SIGTERM: _terminate,
        signal.SIGINT: signal.default_int_handler,  # a background shell starts programs with SIGINT ignored
    }
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        return work() or 0
    except UsageError as error:
        return refuse(name, error)
    except ValueError as error:
        if not str(error).startswith("--"):
            raise
        return refuse(name, error)
    except RunStopped as error:
        return refuse(name, error, 1)
    except OSError as error:
        if error.strerror is None:  # not of the system: Ray's and the network's errors have a traceback worth reading
            raise
        return refuse(name, f"{error.filename}: {error.strerror}" if error.filename else error.strerror, 1)
    except (KeyboardInterrupt, Terminated) as error:
        say(f"\n{name}: interrupted; {after_signal}\n", sys.stderr)
        return 128 + (signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)  # None: it was not set by Python


def program(name: str, after_signal: str = STOPPED) -> Callable[[Callable[Given, int | None]], Callable[Given, int]]:
    """For the ``main`` of a command: it ends as ``run_as_program`` says."""

    def decorate(main: Callable[Given, int | None]) -> Callable[Given, int]:
        @wraps(main)
        def ending(*args: Given.args, **kwargs: Given.kwargs) -> int:
            return run_as_program(name, lambda: main(*args, **kwargs), after_signal)

        return ending

    return decorate


def check_file(flag: str, path: Path, mark: bytes) -> None:
    """UsageError for a file that cannot be written, or that holds what is not the command's own: in the first
    kilobytes of its own is ``mark``. Nothing is made."""
    if path.is_dir():
        raise UsageError(f"{flag} {path} is a folder; give a file")
    if not path.parent.is_dir():
        raise UsageError(f"{flag} {path}: there is no folder {path.parent}; make it, or give another file")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"{flag} {path} cannot be written; give another file")
    check_own(flag, path, mark)


def check_own(flag: str, path: Path, mark: bytes) -> None:
    """UsageError for a file that is there, not empty, and does not have ``mark`` in its first kilobytes."""
    if path.is_file():
        with path.open("rb") as file:
            head = file.read(1 << 12)
        if head and mark not in head:
            raise UsageError(f"{flag} {path}: this file is there and not of this command; give another place")


def _terminate(*_: object) -> None:
    raise Terminated(128 + signal.SIGTERM)


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
