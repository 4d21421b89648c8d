"""What the processes of this host have open."""

from contextlib import suppress


def open_files() -> dict[str, int]:
    """Files that processes have open, as far as this user may see -> process id; none where psutil is not there."""
    try:
        import psutil
    except ImportError:  # a host without packages, which ``doctor`` looks at
        return {}
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # gone meanwhile, or of another user
            found |= {file.path: process.pid for file in process.open_files()}
    return found
