"""The Rays of this host, known without importing Ray; and a token for those that we start ourselves."""

import os
import secrets
from pathlib import Path

import psutil

KEEP_ENGINES = "OPENRLHF_COV_KEEP_ENGINES"
"""Environment variable of a run that leaves its engines to the next one on its Ray: 1."""


def ray_of_this_host() -> str | None:
    """host:port of the Ray that ``ray start`` of this user runs on this host; None if there is none.

    Differs from ``ray.init()``: what a killed Ray left behind, or one of another user, is not taken for one.
    """
    file = address_file()
    try:
        address = file.read_text().strip() if file.stat().st_uid == os.getuid() else None
    except OSError:
        return None
    return address if address in rays_of_this_host() else None


def address_file() -> Path:
    """Where ``ray start`` notes the address."""
    return Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp", "ray", "ray_current_cluster")


def rays_of_this_host() -> frozenset[str]:
    """host:port of every Ray with a node here, by its processes."""
    flag, found = "--gcs-address=", set()
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"]
        if words and Path(words[0]).name == "raylet":
            found |= {word.removeprefix(flag) for word in words if word.startswith(flag)}
    return frozenset(found)


def is_ray_of_this_host(address: str) -> bool:
    """Whether a Ray with a node here has the port of host:port; its host may have several names."""
    _, _, port = address.rpartition(":")
    return port in {each.rpartition(":")[2] for each in rays_of_this_host()}


def fresh_token() -> dict[str, str]:
    """Environment variables under which Ray refuses whoever lacks the token in them."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


def protect_own_ray() -> None:
    """Give the Ray that this process may start a token; in the environment, which this user alone can read.

    A Ray listens on all interfaces and runs the code of whoever reaches it. It reads these variables when it is
    imported: call this before. Nothing happens where a Ray will be joined, or where the user set RAY_AUTH_MODE.
    """
    if "RAY_AUTH_MODE" in os.environ or os.environ.get("RAY_ADDRESS", "") not in ("", "local"):
        return
    if os.environ.get("RAY_ADDRESS") == "local" or ray_of_this_host() is None:
        os.environ.update(fresh_token())
