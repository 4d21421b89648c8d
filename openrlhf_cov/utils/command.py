"""``command.txt`` and ``settings.json``: the command line of a run and all its settings, beside its metrics."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from openrlhf_cov.settings import Schedule
from openrlhf_cov.utils.json_lines import read_json, write_lines
from openrlhf_cov.utils.redaction import redact_settings, redact_words

COMMAND_FILE = "command.txt"
SETTINGS_FILE = "settings.json"
# Defaults of openrlhf 0.11.2, for runs of the trainer that were made before ``settings.json`` existed.
TRAINER_DEFAULTS = {"--rollout.batch_size": "1024", "--train.num_episodes": "1"}


def write_command(folder: str | Path, words: Sequence[str]) -> None:
    """Write the command line of a run as a shell would read it, without secrets. Only the user can read the file.

    Args:
        folder: Folder of the run. It is made if it does not exist.
        words: The words of the command line, the program first.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_lines(folder / COMMAND_FILE, [shlex.join(redact_words(words))], private=True)


def read_flags(path: Path) -> dict[str, str]:
    """Return the flags of a command line in a file, such as {"--train.batch_size": "256", ...}.

    A flag without a value is "true". A bare ``--``, which parts one command from the next, ends the values of a flag.
    Empty for a file that cannot be read.
    """
    try:
        words = shlex.split(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return flags_of(words)


def flags_of(words: Sequence[str]) -> dict[str, str]:
    """Return the flags of a command line as ``read_flags`` does; of a flag that is given twice the last value."""
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


def write_settings(folder: str | Path, values: Mapping[str, Any]) -> None:
    """Write every setting of a run, flag by flag, with the defaults that the program filled in.

    Readers of a run need no defaults of their own: another program, or another version, may have other ones. Secrets
    are hidden, and only the user can read the file.

    Args:
        folder: Folder of the run; it must exist.
        values: Flag, such as ``--algo.kl.init_coef``, to its value; None for a setting that is not set.
    """
    texts = {flag: setting_text(value) for flag, value in values.items()}
    shown = redact_settings({flag: text for flag, text in texts.items() if text is not None})
    content = {flag: shown.get(flag) for flag in texts}
    write_lines(Path(folder) / SETTINGS_FILE, [json.dumps(content, indent=2)], private=True)


def read_settings(path: Path) -> dict[str, str]:
    """Return the settings in a file of ``write_settings``; an empty text means that the setting is not set.

    Return nothing for a file that does not exist or is damaged, and leave out values that are not texts.
    """
    content = read_json(path)
    if not isinstance(content, dict):
        return {}
    known = {flag: "" if value is None else value for flag, value in content.items()}
    return {flag: value for flag, value in known.items() if isinstance(value, str)}


def setting_text(value: Any) -> str | None:
    """Return a value as a command line has it; None for a setting that is not set."""
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Schedule):
        steps = f"{value.begin}-{value.steps}" if value.begin else value.steps
        return f"{value.start:g}:{value.end:g}:{steps}:{value.shape}"
    if isinstance(value, list | tuple):
        return " ".join(str(each) for each in value)
    return str(value)


def setting(settings: Mapping[str, str], flag: str) -> str | None:
    """Return what a command line says for a flag; None where the command line does not name the flag.

    argparse accepts the beginning of a flag for the flag, so ``--algo.kl.init`` counts as ``--algo.kl.init_coef``.

    Args:
        settings: Flag -> value, as ``read_flags`` returns them.
        flag: The whole name of the flag, with its dashes.
    """
    if flag in settings:
        return settings[flag]
    return next((value for name, value in settings.items() if flag.startswith(name)), None)
