"""Checks of the files and folders that a command writes, and the lock that one process at a time holds on a folder."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from openrlhf_cov.errors import UsageError


def check_file(flag: str, path: Path, mark: bytes) -> None:
    """Check that a command may write a file. Nothing is written.

    Args:
        flag: Flag that names the file, for messages.
        path: The file.
        mark: Bytes in the first kilobytes of a file that the command wrote earlier.

    Raises:
        UsageError: The file cannot be written, or holds what the command did not write.
    """
    if path.is_dir():
        raise UsageError(f"{flag} {path} is a folder; give a file")
    if not path.parent.is_dir():
        raise UsageError(f"{flag} {path}: there is no folder {path.parent}; make it, or give another file")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"{flag} {path} cannot be written; give another file")
    check_own(flag, path, mark)


def check_own(flag: str, path: Path, mark: bytes) -> None:
    """Check that a command only replaces a file that it wrote earlier. A missing or empty file passes.

    Args:
        flag: Flag that names the file, for messages.
        path: The file.
        mark: Bytes in the first 4 KiB of every file that the command writes.

    Raises:
        UsageError: The file has content without the mark.
    """
    if path.is_file():
        with path.open("rb") as file:
            head = file.read(1 << 12)
        if head and mark not in head:
            raise UsageError(f"{flag} {path}: this file is there and not of this command; give another place")


@contextmanager
def alone_in(output: Path, flag: str = "--output") -> Iterator[None]:
    """Hold the lock of a folder while the body runs, so that no other process that asks for the lock writes there.

    The lock ends with the process, however it ends.

    Args:
        output: The folder. It is made if it does not exist.
        flag: Flag that names the folder, for messages.

    Raises:
        UsageError: Another process holds the lock.
        OSError: The folder cannot be made or written to.
    """
    output.mkdir(parents=True, exist_ok=True)
    with (output / ".lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                f"{flag} {output}: another process is writing there; wait for it, or give another folder"
            ) from error
        yield


def check_folder(folder: Path, flag: str = "--output") -> None:
    """Check that a folder can be written. Nothing is made.

    Args:
        folder: The folder, which need not exist.
        flag: Flag that names the folder, for messages.

    Raises:
        UsageError: The folder cannot be made or written to.
    """
    try:
        there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    except OSError as error:  # too long, or below a folder that may not be entered
        raise UsageError(f"{flag} {folder}: {error.strerror}") from error
    if not there.is_dir():
        raise UsageError(f"{flag} {folder}: {there} is a file; give a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UsageError(f"{flag} {folder}: {there} cannot be written to; give another folder")
