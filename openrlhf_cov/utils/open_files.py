"""What the processes of this host have open."""

import os
from contextlib import suppress
from pathlib import Path


def open_files(proc: Path = Path("/proc")) -> dict[str, int]:
    """What processes have open, as far as this user may see -> process id."""
    found = {}
    for pid in filter(str.isdigit, _names(proc)):
        for number in _names(proc / pid / "fd"):
            with suppress(OSError):  # closed meanwhile
                found[os.readlink(proc / pid / "fd" / number)] = int(pid)
    return found


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # gone meanwhile, or of another user
        return []
