"""Flags as upstream hands them to ``train``."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any


def nested(flags: Mapping[str, Any]) -> SimpleNamespace:
    """``{"actor.num_nodes": 1}`` as ``args.actor.num_nodes``."""
    root = SimpleNamespace()
    for flag, value in flags.items():
        *path, last = flag.split(".")
        node = root
        for part in path:
            node = vars(node).setdefault(part, SimpleNamespace())
        setattr(node, last, value)
    return root
