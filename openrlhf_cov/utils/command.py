"""``command.txt``: the command line of a run, beside its metrics, so that its settings can be read later."""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

COMMAND_FILE = "command.txt"
SECRET_FLAG, SHORTEST = "--logger.wandb.key", "--logger.wandb.k"
"""Upstream's flag whose value is nobody's business, and the shortest beginning by which argparse knows it."""
SECRET = re.compile(
    r"(wandb\.key|api_?key|secret|password|runtime-env-json|(hf|hub|auth|access|api)_?token)$", re.IGNORECASE
)
"""Flags whose values no report shows."""
NOT_SHOWN = "(not shown)"
UPSTREAM_DEFAULTS = {"--rollout.batch_size": "1024", "--train.num_episodes": "1", "--algo.kl.init_coef": "0.01"}
"""What openrlhf 0.11.2 takes where a command does not say, of the flags that a reader of runs asks for."""


def write_command(folder: str | Path, words: Sequence[str]) -> None:
    """Write ``words`` (program first) as a shell would read them, without secrets; the folder is made."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / COMMAND_FILE).write_text(shlex.join(without_secrets(words)) + "\n", encoding="utf-8")


def without_secrets(words: Sequence[str]) -> list[str]:
    """The words with ``***`` in place of every value of ``SECRET_FLAG``, in all spellings that argparse takes, and of
    who logs in at an address (``http://name:password@host``)."""
    kept: list[str] = []
    for word in words:
        flag, equals, _ = word.partition("=")
        if kept and _is_secret(kept[-1]):
            word = "***"
        elif equals and _is_secret(flag):
            word = f"{flag}=***"
        kept.append(re.sub(r"(://)[^/@\s]+@", r"\1***@", word))
    return kept


def _is_secret(flag: str) -> bool:
    return flag.startswith(SHORTEST) and SECRET_FLAG.startswith(flag)


def read_flags(path: Path) -> dict[str, str]:
    """The flags of a command line in a file, {"--cov_type": "kl_cov", ...}; a flag without a value is "true".

    A bare ``--``, which parts one command from the next, ends the values of a flag. Empty for a file that cannot be
    read.
    """
    try:
        words = shlex.split(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    settings: dict[str, str] = {}
    flag = None
    for word in words:
        if word == "--":
            flag = None
        elif word.startswith("--"):
            flag, _, value = word.partition("=")
            settings[flag] = value
        elif flag is not None:
            settings[flag] = f"{settings[flag]} {word}".strip()
    return {flag: value or "true" for flag, value in settings.items()}


def setting(settings: Mapping[str, str], flag: str) -> str | None:
    """What a run had for a flag of ``UPSTREAM_DEFAULTS``: upstream's default where its command does not name it.

    None where nothing is known, of a run without settings. argparse takes the beginning of a flag for the flag.
    """
    if not settings:
        return None
    return next((value for name, value in settings.items() if flag.startswith(name)), UPSTREAM_DEFAULTS[flag])


def masked(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings with ``NOT_SHOWN`` in place of every value of a flag that is ``SECRET``."""
    return {flag: NOT_SHOWN if SECRET.search(flag) else value for flag, value in settings.items()}
