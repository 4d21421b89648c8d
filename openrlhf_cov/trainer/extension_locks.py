"""Locks that a killed process left in torch's folder of compiled extensions.

DeepSpeed compiles and loads its CPU and fused optimizers through torch, which holds a lock file meanwhile. A process
that is killed just then leaves the file behind, and every later load on this host would wait for it for ever.
"""

import logging
import os
from contextlib import suppress
from pathlib import Path

from torch.utils.cpp_extension import get_default_build_root

logger = logging.getLogger(__name__)


def remove_stale_locks() -> list[Path]:
    """Remove the lock files that no process of this host holds open, as their owner would; returns them."""
    root = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or get_default_build_root())
    locks = list(root.rglob("lock"))
    held = _open_files() if locks else set()
    stale = [lock for lock in locks if str(lock.resolve()) not in held]
    for lock in stale:
        lock.unlink(missing_ok=True)
        logger.warning(f"removed {lock}, which a killed process had left; loading would have waited for it")
    return stale


def _open_files() -> set[str]:
    """Paths that processes have open, as far as this user may see; a lock's owner is of the same user."""
    paths = set()
    for process in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it ended meanwhile, or is of another user
            for link in os.scandir(f"/proc/{process}/fd"):
                with suppress(OSError):  # closed meanwhile
                    paths.add(os.readlink(link.path))
    return paths
