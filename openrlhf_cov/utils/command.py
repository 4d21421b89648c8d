"""``command.txt``: the command line of a run, beside its metrics, so that its settings can be read later."""

import shlex
from collections.abc import Sequence
from pathlib import Path

COMMAND_FILE = "command.txt"
SECRET_FLAG, SHORTEST = "--logger.wandb.key", "--logger.wandb.k"
"""Upstream's flag whose value is nobody's business, and the shortest beginning by which argparse knows it."""


def write_command(folder: str | Path, words: Sequence[str]) -> None:
    """Write ``words`` (program first) as a shell would read them, without secrets; the folder is made."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / COMMAND_FILE).write_text(shlex.join(without_secrets(words)) + "\n", encoding="utf-8")


def without_secrets(words: Sequence[str]) -> list[str]:
    """The words with ``***`` in place of every value of ``SECRET_FLAG``, in all spellings that argparse takes."""
    kept: list[str] = []
    for word in words:
        flag, equals, _ = word.partition("=")
        if kept and _is_secret(kept[-1]):
            word = "***"
        elif equals and _is_secret(flag):
            word = f"{flag}=***"
        kept.append(word)
    return kept


def _is_secret(flag: str) -> bool:
    return flag.startswith(SHORTEST) and SECRET_FLAG.startswith(flag)


def read_flags(path: Path) -> dict[str, str]:
    """The flags of a command line in a file, {"--cov_type": "kl_cov", ...}; a flag without a value is "true"."""
    try:
        words = shlex.split(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    settings: dict[str, str] = {}
    flag = None
    for word in words:
        if word.startswith("--") and len(word) > 2:
            flag, _, value = word.partition("=")
            settings[flag] = value
        elif flag is not None:
            settings[flag] = f"{settings[flag]} {word}".strip()
    return {flag: value or "true" for flag, value in settings.items()}
