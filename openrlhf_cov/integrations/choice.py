"""Choosing methods by name and settings in Python, as ``--method`` and its flags do on the command line."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from openrlhf_cov.models.cov_config import OF_METHODS, CovConfig, methods_of
from openrlhf_cov.settings import Schedule


def choose(method: str, settings: Mapping[str, Any]) -> CovConfig:
    """Return the settings of the policy loss for some methods.

    Args:
        method: Name of a method, of several methods with commas between them, or ``none``.
        settings: Name -> value of the methods' settings (the flags on the methods' pages, without dashes). A setting
            that may have a schedule also takes its text, such as ``"0:1:500"``.

    Raises:
        ValueError: A method or a setting is unknown, belongs to a method that was not chosen, or is out of range.
    """
    entries = {entry.name: entry for entry in fields(CovConfig)}
    values = {}
    for name, value in settings.items():
        if name in ("cov_type", "method") or name not in entries:
            raise ValueError(f"{name!r} is not a setting of a method; docs/methods/ lists the settings of each method")
        is_schedule = entries[name].metadata["scheduled"] and isinstance(value, str)
        values[name] = Schedule.parse(value) if is_schedule else value
    try:
        config = CovConfig(method=method, **values)
    except ValueError as error:
        raise ValueError(in_python(str(error))) from error

    # A setting of a method that was not chosen would have no effect.
    of_all_methods = {entry.name for group in OF_METHODS for entry in fields(group)}
    of_chosen_methods = {entry.name for each in methods_of("none", method) for entry in fields(each.settings)}
    for name in values:
        if name in of_all_methods and name not in of_chosen_methods:
            raise ValueError(f"{name}={values[name]!r} has no effect with method={method!r}; drop it")
    return config


def in_python(message: str) -> str:
    """Return a message about flags as one about settings: ``--kl_cov_ratio`` becomes ``kl_cov_ratio``."""
    return message.replace("--", "")
