"""A user's ``reward_func.py`` as a module, and the labels of rows as it sees them."""

import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from openrlhf_cov.config import RewardConfig
from openrlhf_cov.utils.rows import value_at


class MissingRewardFunction(AttributeError):
    """The module has no ``reward_func``."""


def load_reward_module(path: str | Path) -> ModuleType:
    """Return the module of a file.

    Raises:
        MissingRewardFunction: The file has no ``reward_func`` that takes queries, prompts and labels.
        ImportError: The name of the file does not end in ``.py``.
        OSError: The file cannot be read.
        Exception: The code of the file raised it.
    """
    module = load_module("reward_func", path)
    function = getattr(module, "reward_func", None)
    if not callable(function):
        raise MissingRewardFunction(f"{path} has no function reward_func(queries, prompts, labels)")
    try:
        inspect.signature(function).bind([], [], [])
    except TypeError as error:
        raise MissingRewardFunction(
            f"{path}: reward_func(queries, prompts, labels) cannot be called with these three arguments ({error})"
        ) from error
    except ValueError:  # a function of a compiled module, of which Python knows no arguments
        pass
    return module


def load_module(name: str, path: str | Path) -> ModuleType:
    """Return the module of a file.

    Args:
        name: The name of the module.
        path: The file.

    Raises:
        ImportError: The name of the file does not end in ``.py``.
        OSError: The file cannot be read.
        Exception: The code of the file raised it.
    """
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file; give a file whose name ends in .py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def label_check(module: ModuleType | None, config: RewardConfig) -> Callable[[Any], None] | None:
    """Return the function of a reward module that checks a label.

    Args:
        module: The module of the user's file; None without one.
        config: Settings of the rewards, for a module that makes the function from them.

    Returns:
        ``make_check_label(config)`` of the module, or else its ``check_label``, which takes a label and raises
        ValueError if it cannot be graded; None if the module has neither.
    """
    make = getattr(module, "make_check_label", None)
    return make(config) if make else getattr(module, "check_label", None)


def label_of(row: dict, label_key: str, config: RewardConfig) -> Any:
    """Return the label of one row; with ``--reward_source row``, ``{"answer", "source"}``, as the source decides.

    Args:
        row: A row of the data set.
        label_key: Key of the label. Dots lead into nested values, see ``value_at``; None is returned where it is
            missing.
        config: Settings of the rewards.
    """
    label = value_at(row, label_key, default=None)
    if config.reward_source != "row" or isinstance(label, dict):
        return label
    return {"answer": label, "source": row.get("source")}
