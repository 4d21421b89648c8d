"""The token of the reward service: read from a file or from the environment, which then has it no more."""

import ctypes
import os
import re
from pathlib import Path

from openrlhf_cov.errors import UsageError
from openrlhf_cov.rewards.limits import REWARD_TOKEN

# Characters that stand for themselves in a URL; upstream splits ``--reward.remote_url`` at commas.
TOKEN = re.compile(r"[A-Za-z0-9._~-]+")


def read_token(path: Path | None) -> str | None:
    """Return the token of a file, else of the environment; None where neither has one.

    The variable is removed from the environment in any case, because the grading processes inherit it.

    Args:
        path: The file; None for the environment.

    Raises:
        UsageError: The file cannot be read, or what was found cannot be a token.
    """
    token = take_from_environment(REWARD_TOKEN)
    source = REWARD_TOKEN
    if path is not None:
        source = f"--token_file {path}"
        try:
            token = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{source} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if token is not None and not TOKEN.fullmatch(token):
        raise UsageError(f"{source} holds no token: at least one letter, digit or one of . _ ~ - and nothing else")
    return token


def take_from_environment(name: str) -> str | None:
    """Return a variable of the environment and remove it, also from what ``/proc/PID/environ`` shows of this process.

    Removing a variable leaves its text in the memory that the kernel shows to all processes of the same user.
    """
    library = ctypes.CDLL(None)
    library.getenv.restype = ctypes.c_void_p
    address = library.getenv(name.encode())
    value = os.environ.pop(name, None)
    status = Path("/proc/self/stat")
    if address and value is not None and status.exists():
        # The name of the process comes before the last bracket; env_start and env_end are the fields 50 and 51.
        columns = status.read_text(encoding="utf-8").rpartition(")")[2].split()
        # A variable that this process set itself lies elsewhere, and may have been freed by now.
        if int(columns[47]) <= address < int(columns[48]):
            ctypes.memset(address, 0, len(os.fsencode(value)))
    return value
