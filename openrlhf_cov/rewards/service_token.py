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

    Args:
        name: Name of the variable.

    Returns:
        Its value; None where it is not set.
    """
    library = ctypes.CDLL(None)
    library.getenv.restype = ctypes.c_void_p
    address = library.getenv(name.encode())
    if address:
        # Removing a variable leaves its text in memory that the kernel shows to all processes of the same user.
        ctypes.memset(address, 0, len(ctypes.string_at(address)))
    return os.environ.pop(name, None)
