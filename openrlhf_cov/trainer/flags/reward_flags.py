"""Find the settings of the rule-based rewards that a run reads; the others are refused instead of being ignored.

Only the package's own reward function, or a file with ``make_reward_func(config)``, reads all of them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from types import ModuleType, SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

from openrlhf_cov.config import RewardConfig
from openrlhf_cov.evaluation.flags import GRADING_FLAGS

# Read by the trainer itself for the rewards of a server or a file: of responses whose reward failed, and of truncated
# ones.
OF_TRAINER = ("reward_incorrect", "reward_keep_truncated", "reward_max_error_frac")
# Read for a file as well: its function may use the grading processes, and its ``check_label`` drops rows.
OF_FILE = (*OF_TRAINER, "reward_workers", "reward_skip_bad_labels")
# Read by an evaluation on benchmarks, whoever gives the rewards. Its scores are those of the grader strict alone.
OF_BENCHMARKS = tuple(name for name in GRADING_FLAGS if name != "reward_grader")

# Functions of a file that take the settings.
TAKE_SETTINGS = ("make_reward_func", "make_check_label")


def fault_without_file(flags: Mapping[str, Any], given: Iterable[str]) -> str | None:
    """Return why a setting of the rewards has no effect where an agent, a server or a model gives the rewards.

    Args:
        flags: The flags by dotted name, ``--reward.remote_url`` as one string.
        given: Names of the flags that the user gave.

    Returns:
        One line about the first such setting; None if all are read, or if a file gives the rewards.
    """
    urls = (flags["reward.remote_url"] or "").split(",")
    reads: set[str] = set()
    if flags["train.agent_func_path"]:
        reason = "with --train.agent_func_path, which gives rewards; drop it"
    elif urls[0].endswith(".py"):
        return None  # see ``fault_of_file``
    elif urls[0]:
        reads |= {*OF_TRAINER, *_of_labels(flags["reward_source"])}
        reason = (
            "with a server in --reward.remote_url, which grades by settings of its own; give the flag to openrlhf-cov "
            "serve-reward, or drop it"
        )
    elif not flags["reward.model_name_or_path"]:
        return None  # a run without any reward is refused as such
    else:
        reason = "with --reward.model_name_or_path, which gives the rewards; drop it"
    if (flags["eval.dataset"] or "").startswith("bench:"):
        reads |= set(OF_BENCHMARKS)
    return next((f"--{name} has no effect {reason}" for name in _settings(given) if name not in reads), None)


def fault_of_place(remote_url: str | None) -> str | None:
    """Return why ``--reward.remote_url`` names no reward function and no servers; None if it does, or is missing.

    Args:
        remote_url: The flag as one string: a file, or addresses separated by commas.
    """
    if not remote_url:
        return None
    places = remote_url.split(",")
    flag = f"--reward.remote_url {remote_url}"
    if any(place.endswith(".py") for place in places) and len(places) > 1:
        return f"{flag}: a file gives all rewards and the other places have no effect; give the file alone"
    if places[0].endswith(".py") or all(map(_is_address, places)):
        return None
    return f"{flag}: must be a file that ends in .py, or addresses such as http://HOST:PORT, separated by commas"


def _is_address(text: str) -> bool:
    try:
        address = urlsplit(text)
        return address.scheme in ("http", "https") and bool(address.hostname) and not any(map(str.isspace, text))
    except ValueError:  # brackets that do not match
        return False


def fault_of_file(args: SimpleNamespace, module: ModuleType | None) -> str | None:
    """Return why a setting of the rewards has no effect on the reward function of a file.

    The module has to be loaded for this check, so it comes after the flags were parsed; a setting counts as given if
    it differs from its default.

    Args:
        args: The flags of the run, as OpenRLHF nests them.
        module: The module of the file; None where no file gives the rewards.

    Returns:
        One line about the first such setting; None if all are read.
    """
    if module is None or any(hasattr(module, name) for name in TAKE_SETTINGS):
        return None
    config = RewardConfig.from_args(args)
    given = [entry.name for entry in fields(config) if getattr(config, entry.name) != entry.default]
    reads = {*OF_FILE, *_of_labels(config.reward_source)}
    if (args.eval.dataset or "").startswith("bench:"):
        reads |= set(OF_BENCHMARKS)
    for name in _settings(given):
        if name not in reads:
            return (
                f"--{name} has no effect with --reward.remote_url {args.reward.remote_url[0]}, which has no function "
                "make_reward_func(config); add it to the file, or drop the flag"
            )
    return None


def _of_labels(source: str) -> tuple[str, ...]:
    """Return ``reward_source`` if its value makes labels with the source of the row, which any reward gets."""
    return ("reward_source",) if source == "row" else ()


def _settings(given: Iterable[str]) -> list[str]:
    """Return the settings of the rewards among the given flags, in the order of their definition."""
    names = set(given)
    return [entry.name for entry in fields(RewardConfig) if entry.name in names]
