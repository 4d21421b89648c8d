"""Locks that a killed process left in torch's folder of compiled extensions.

DeepSpeed compiles and loads its CPU and fused optimizers through torch, which holds a lock file meanwhile. A process
that is killed just then leaves the file behind, and every later load would wait for it for ever.
"""

import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)

# File systems that only processes of one host write to; any other may be a network's.
LOCAL = frozenset("bcachefs btrfs ext2 ext3 ext4 f2fs jfs overlay ramfs reiserfs tmpfs xfs zfs".split())

# Seconds for which a lock may have an owner that cannot be seen, such as a process of another container.
YOUNG = 300.0
# Seconds between two looks at a young lock.
PAUSE = 2.0


@dataclass(frozen=True)
class Locks:
    """Lock files that no process has open, as far as can be seen from here."""

    # No process has these.
    stale: tuple[Path, ...] = ()
    # A process of another container may have these.
    young: tuple[Path, ...] = ()
    # A process of another host or user may have these.
    foreign: tuple[Path, ...] = ()


def extensions_folder() -> Path:
    """Return torch's folder of compiled extensions, found without torch."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("TORCH_EXTENSIONS_DIR") or cache / "torch_extensions")


def find_locks(root: Path) -> Locks:
    """Return the files called ``lock`` below a folder that no process has open, by who may own them."""
    locks = sorted(Path(folder, "lock") for folder, _, files in os.walk(root) if "lock" in files)
    if not locks:
        return Locks()
    held = open_files()
    local = is_local(root)
    kinds: dict[str, list[Path]] = {"stale": [], "young": [], "foreign": []}
    for lock in locks:
        with suppress(OSError):  # released meanwhile
            status = lock.stat()
            mine = os.geteuid() in (status.st_uid, 0)
            if str(lock.resolve()) in held:
                continue
            if not (local and mine):
                kinds["foreign"].append(lock)
            elif time.time() - status.st_mtime < YOUNG:
                kinds["young"].append(lock)
            else:
                kinds["stale"].append(lock)
    return Locks(**{kind: tuple(found) for kind, found in kinds.items()})


def is_local(folder: Path) -> bool:
    """Return True if the file system of a folder certainly belongs to this host alone."""
    try:
        import psutil
    except ImportError:  # a host without packages, which ``doctor`` looks at
        return False
    mounts = {Path(part.mountpoint): part.fstype for part in psutil.disk_partitions(all=True)}  # the last hides others
    real = folder.resolve()
    return next((mounts[path] for path in (real, *real.parents) if path in mounts), None) in LOCAL


def open_files() -> dict[str, int]:
    """Return the files that processes have open, as path -> process id.

    Only files that this user may see are found, and none without psutil.
    """
    try:
        import psutil
    except ImportError:
        return {}
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # gone meanwhile, or of another user
            found |= {file.path: process.pid for file in process.open_files()}
    return found


def remove_stale_locks(sleep: Callable[[float], None] = time.sleep) -> list[Path]:
    """Remove the stale locks as their owners would have, and return them.

    Call this function on every node before extensions load. It waits for a young lock until the lock is gone, held or
    old. Foreign locks stay, with a warning.
    """
    root = extensions_folder()
    for lock in find_locks(root).foreign:
        logger.warning(
            f"{lock}: loading waits until it is gone. A killed process may have left it, or one of another host or "
            f"user may have it; if nothing compiles there: rm {lock}"
        )
    if not (root.is_dir() and is_local(root)):
        return []
    with _alone(root):
        removed = _remove(root)
        young = find_locks(root).young
        for lock in young:
            logger.warning(
                f"{lock} is held by no process that can be seen from here; it is removed when it is {YOUNG:.0f} s "
                f"old, loading waits. If nothing compiles: rm {lock}"
            )
        waited = 0.0
        while find_locks(root).young and waited <= YOUNG:  # one from the future stays
            sleep(PAUSE)
            waited += PAUSE
            removed += _remove(root)
        # A lock may have become old between the last removal and the check that ended the loop.
        removed += _remove(root)
    return removed


def _remove(root: Path) -> list[Path]:
    removed = []
    for lock in find_locks(root).stale:
        with suppress(OSError):
            lock.unlink()
            removed.append(lock)
            logger.warning(f"removed {lock}, which a killed process had left; loading would have waited for it")
    return removed


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold a lock on the folder, so that one process of this host at a time judges and removes locks.

    A lock that two processes have judged could belong to another process by the time the second one removes it.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
