"""Choosing methods by name and settings in Python, as ``--method`` and its flags do on the command line."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.unread_method_flags import unread_method_flags
from openrlhf_cov.settings import Schedule

# Settings of the policy loss that another trainer does not read.
NOT_READ = ("cov_dump_every", "cov_dump_tokens")


def choose(method: str, settings: Mapping[str, Any]) -> CovConfig:
    """Return the settings of the policy loss for some methods.

    Args:
        method: Name of a method, of several methods with commas between them, or ``none``.
        settings: Name -> value of the methods' settings (the flags on the methods' pages, without dashes). A setting
            that may have a schedule also takes its text, such as ``"0:1:500"``.

    Raises:
        ValueError: A method or a setting is unknown, or a setting has no effect or is out of range.
    """
    entries = {entry.name: entry for entry in fields(CovConfig)}
    values = {}
    for name, value in settings.items():
        if name in ("cov_type", "method") or name not in entries:
            raise ValueError(f"{name!r} is not a setting of a method; docs/methods/ lists the settings of each method")
        values[name] = value
        if entries[name].metadata["scheduled"] and isinstance(value, str):
            try:
                values[name] = Schedule.parse(value)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
    try:
        config = CovConfig(method=method, **values)
    except ValueError as error:
        raise ValueError(in_python(str(error))) from error

    for reason in unread_method_flags(config, values):
        raise ValueError(in_python(reason))
    for name in NOT_READ:
        if name in values:
            raise ValueError(
                f"{name}={values[name]!r} has no effect here: only openrlhf-cov train writes tokens; drop it"
            )
    return config


def in_python(message: str) -> str:
    """Return a message about flags as one about settings: ``--kl_cov_ratio`` becomes ``kl_cov_ratio``."""
    return message.replace("--", "")
