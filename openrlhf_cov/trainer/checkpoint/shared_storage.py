"""Check that all ranks of a model share one folder of checkpoints and restored the same one.

``share(value)`` tells all ranks the value of each, in their order; every rank calls it. What is raised is raised on
every rank alike.
"""

import os
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from openrlhf_cov.errors import RunStopped

Share = Callable[[Any], list[Any]]

# Seconds for which a rank looks again: an NFS client may believe what it knew of a folder for 60.
WAIT = 65.0
PAUSE = 0.5
# Ranks that a message names.
NAMED = 8


def check_shared(path: Path, pointer: Path, share: Share, *, first: bool, wait: float = WAIT) -> None:
    """Check that all ranks read the same files in the folder of the checkpoints.

    The first rank writes a file into ``path``, which the other ranks have to see. All of them must read the same text
    in ``pointer``.

    Args:
        path: ``--ckpt.path``; it is created if it does not exist.
        pointer: The file with the name of the newest checkpoint; it need not exist.
        share: ``share(value)`` returns the values of all ranks in the order of the ranks; called on every rank.
        first: True on the rank that writes.
        wait: Seconds for which a rank looks again before it gives up.

    Raises:
        RunStopped: The first rank cannot write, or a rank does not see what it wrote; on every rank alike.
    """
    # A name of its own for every check: a file of an earlier run must not be taken for this one.
    nonce = path / f".shared-{uuid.uuid4().hex}"
    error = _write(nonce) if first else None
    try:
        error, name, host, pointed = share((error, nonce.name, socket.gethostname(), _read(pointer)))[0]
        if error:
            raise RunStopped(f"--ckpt.path {path} cannot be written by rank 0 on host {host}: {error}")
        seen = _within(wait, lambda: (_read(path / name), _read(pointer)) == (name, pointed), path)
        blind = _named(share((socket.gethostname(), seen)), lambda seen: not seen)
    finally:
        if first:
            with suppress(OSError):
                nonce.unlink(missing_ok=True)
    if blind:
        raise RunStopped(
            f"--ckpt.path {path} is not one folder for all ranks: {blind} cannot read what rank 0 on host {host} "
            "writes there; name a folder on a file system that all hosts mount at this path"
        )


def check_restored(path: Path, restored: str | None, share: Share) -> None:
    """Check that all ranks restored the same checkpoint.

    Args:
        path: ``--ckpt.path``, for the message.
        restored: Text about the checkpoint that this rank restored; None if it restored none.
        share: ``share(value)`` returns the values of all ranks in the order of the ranks; called on every rank.

    Raises:
        RunStopped: A rank restored another checkpoint than the first rank; on every rank alike.
    """
    answers = share((socket.gethostname(), restored))
    expected = answers[0][1]
    others = _named(answers, lambda restored: restored != expected)
    if others:
        raise RunStopped(
            f"--ckpt.load_enable: the ranks restored different checkpoints from --ckpt.path {path}: rank 0 "
            f"{expected or 'none'}, but {others}; make the folder the same for all of them"
        )


def _write(nonce: Path) -> str | None:
    try:
        nonce.parent.mkdir(parents=True, exist_ok=True)
        nonce.write_text(nonce.name, encoding="utf-8")
    except OSError as error:
        return error.strerror or str(error)
    return None


def _read(path: Path) -> str | None:
    """Return the text of a small file; None where it does not exist or cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _within(seconds: float, condition: Callable[[], bool], folder: Path) -> bool:
    """Return True if a condition on the files of a folder becomes true in so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(PAUSE)
        with suppress(OSError):
            os.scandir(folder).close()  # an NFS client asks the server again when a folder is opened
    return True


def _named(answers: list[tuple[str, Any]], deviates: Callable[[Any], bool]) -> str:
    """Return the ranks whose answers deviate, with their hosts, and with answers that say more than yes or no."""
    found = [(rank, *answer) for rank, answer in enumerate(answers) if deviates(answer[1])]
    names = [
        f"rank {rank} on host {host}" + ("" if isinstance(value, bool) else f" {value or 'none'}")
        for rank, host, value in found[:NAMED]
    ]
    return ", ".join(names) + (f" and {len(found) - NAMED} more" if len(found) > NAMED else "")
