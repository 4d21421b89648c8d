"""``command.txt``: the command line of a run, beside its metrics, so that its settings can be read later."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from openrlhf_cov.utils.json_lines import write_lines
from openrlhf_cov.utils.redaction import redact_words

COMMAND_FILE = "command.txt"
UPSTREAM_DEFAULTS = {"--rollout.batch_size": "1024", "--train.num_episodes": "1", "--algo.kl.init_coef": "0.01"}
"""What openrlhf 0.11.2 takes where a command does not say, of the flags that a reader of runs asks for."""


def write_command(folder: str | Path, words: Sequence[str]) -> None:
    """Write ``words`` (program first) as a shell would read them, without secrets, for the user alone to read; the
    folder is made."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_lines(folder / COMMAND_FILE, [shlex.join(redact_words(words))], private=True)


def read_flags(path: Path) -> dict[str, str]:
    """The flags of a command line in a file, {"--train.batch_size": "256", ...}; a flag without a value is "true".

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
