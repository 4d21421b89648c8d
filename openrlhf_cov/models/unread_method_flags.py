"""Settings of the policy loss that would have no effect, whether they are given as flags or in Python (pure)."""

from collections.abc import Collection, Iterator
from dataclasses import fields

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.methods import METHODS

COVARIANCE_METHODS = [method for method in METHODS.values() if method.by_covariance]

# Setting of a single method -> a list of that method.
OWN_FLAGS = {entry.name: [method] for method in METHODS.values() for entry in fields(method.settings)}

# Settings of several methods -> these.
SHARED_FLAGS = {
    "cov_scope": COVARIANCE_METHODS,
    "cov_log_probs": COVARIANCE_METHODS,
    "allow_large_cov_ratio": [
        method for method in METHODS.values() if any(each.metadata["fraction"] for each in fields(method.settings))
    ],
}


def unread_method_flags(config: CovConfig, given: Collection[str]) -> Iterator[str]:
    """Yield why settings of the policy loss would have no effect, one line each.

    Args:
        config: The settings of the run.
        given: Names of the settings that the user gave. Only these are checked.
    """
    for entry in fields(CovConfig):
        if entry.name not in given:
            continue
        name = entry.name
        owners = SHARED_FLAGS.get(name) or OWN_FLAGS.get(name)
        if owners and not any(method in config.methods for method in owners):
            flags = " or ".join(method.flag for method in owners)
            got = " ".join(method.flag for method in config.methods) or "--method none"
            yield f"--{name} only applies to {flags}, got {got}; drop it or set {flags}"
        other, value = entry.metadata["only"] or (name, getattr(config, name))
        got = getattr(config, other)
        if got != value and value is None:
            yield f"--{name} has no effect with --{other} {got}, which takes its place; drop one of the two"
        elif got != value:
            yield f"--{name} only applies to --{other} {value}, got --{other} {got}; drop it"
    if "method" in given and config.method == "none" and config.cov_type != "none":
        yield f"--cov_type {config.cov_type} adds a method where --method none asks for none; drop one of the two"
    if config.allow_no_trust_region and not any(config.lacks_bound(method) for method in config.methods):
        yield "--allow_no_trust_region only applies where a surrogate stands beside a method with a clip of its own"
    if "cov_dump_tokens" in given and not config.cov_dump_every:
        yield "--cov_dump_tokens only applies with --cov_dump_every; drop it or set --cov_dump_every"
