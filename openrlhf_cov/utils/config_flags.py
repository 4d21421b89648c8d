"""Command-line flags from the fields of config classes."""

import argparse
from collections.abc import Callable, Container, Sequence
from dataclasses import fields
from typing import Any

from openrlhf_cov.settings import Schedule, help_with_default


def given_flags(
    parse: Callable[..., argparse.Namespace], words: Sequence[str] | None, parsed: argparse.Namespace
) -> set[str]:
    """Return the names of the flags that the command line gives a value, even if it is the default.

    Args:
        parse: Parser of the command line: ``(words, namespace) -> namespace``, as ``ArgumentParser.parse_args``.
        words: The command line without the program; None for that of this process.
        parsed: What ``parse`` made of ``words``. It is not changed.
    """
    unset = object()
    marked = argparse.Namespace(**dict.fromkeys(vars(parsed), unset))
    return {name for name, value in vars(parse(words, marked)).items() if value is not unset}


def add_config_arguments(
    parser: argparse.ArgumentParser,
    title: str,
    config: type,
    only: Container[str] | None = None,
    description: str | None = None,
) -> None:
    """Add the flag group of a config class, one flag per field with the default of the field.

    Args:
        parser: Parser that gets the group.
        title: Title of the group in ``--help``.
        config: Class whose fields are made with ``openrlhf_cov.settings.setting``.
        only: Names of the fields that get a flag; None for all.
        description: Text under the title.
    """
    group = parser.add_argument_group(title, description)
    for setting in fields(config):
        if only is not None and setting.name not in only:
            continue
        flag = f"--{setting.metadata['flag'] or setting.name}"
        help = help_with_default(setting.metadata["help"], setting.default)
        if isinstance(setting.default, bool):
            kind: dict[str, Any] = {"action": "store_true"}
        elif isinstance(setting.default, tuple):
            kind = {"nargs": len(setting.default), "type": type(setting.default[0])}
        elif setting.metadata["scheduled"]:
            kind = {"type": _number_or_schedule, "metavar": "X|START:END:STEPS[:cosine]"}
        else:
            kind = {"type": float if setting.default is None else type(setting.default)}
            kind["choices"] = setting.metadata["choices"]
        group.add_argument(flag, dest=setting.name, default=setting.default, help=help, **kind)


def _number_or_schedule(text: str) -> float | Schedule:
    try:
        return Schedule.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
