"""The Rays of this host, known without importing Ray; and how the Rays that we start ourselves are protected."""

import os
import secrets
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

import psutil

# Environment variable of a run that leaves its engines to the next one on its Ray: 1.
KEEP_ENGINES = "OPENRLHF_COV_KEEP_ENGINES"

# Environment variable with which all processes of a Ray listen on 127.0.0.1 alone, as they do on macOS and Windows.
#
# On Linux Ray replaces ``--node-ip-address 127.0.0.1`` by an address that other hosts reach unless this variable is
# set. The programs that connect to such a Ray need the variable as well.
LOOPBACK_ONLY = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}

# Environment variables with which a Ray starts and stays on a host whose cores are all busy, with Ray's own names.
PATIENCE = {
    # The raylet ends itself, and the head with it, when its agent has not registered in this time (default 30 s).
    "RAY_agent_register_timeout_ms": "300000",
    # How long a driver or worker waits for the raylet, and the raylet for a new worker (both 60 s by default).
    "RAY_raylet_start_wait_time_s": "300",
    "RAY_worker_register_timeout_seconds": "300",
    # How long clients wait until the GCS accepts their connection (defaults 5 and 30 s) and answers (60 s).
    "RAY_gcs_rpc_server_connect_timeout_s": "60",
    "RAY_py_gcs_connect_timeout_s": "120",
    "RAY_gcs_server_request_timeout_seconds": "180",
    "RAY_NUM_REDIS_GET_RETRIES": "120",
    # A node is dead after this many missed health checks of 10 s (default 5).
    "RAY_health_check_failure_threshold": "30",
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "300",
}

# Bytes of the name of a temporary folder: the names of Unix sockets below it must stay under 108 bytes.
LONGEST_FOLDER = 40


def ray_of_this_host() -> str | None:
    """Return host:port of the Ray that ``ray start`` of this user runs on this host; None if there is none.

    Differs from ``ray.init()``: what a killed Ray left behind, or one of another user, is not taken for one.
    """
    file = address_file()
    try:
        address = file.read_text().strip() if file.stat().st_uid == os.getuid() else None
    except OSError:
        return None
    return address if address in rays_of_this_host() else None


def address_file() -> Path:
    """Return the file in which ``ray start`` notes the address."""
    return temporary_folder() / "ray" / "ray_current_cluster"


def temporary_folder() -> Path:
    """Return the folder below which Ray makes its temporary files."""
    return Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp")


def rays_of_this_host() -> frozenset[str]:
    """Return host:port of every Ray with a node here, by its processes."""
    flag = "--gcs-address="
    found = set()
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"]
        if words and Path(words[0]).name == "raylet":
            found |= {word.removeprefix(flag) for word in words if word.startswith(flag)}
    return frozenset(found)


def is_ray_of_this_host(address: str) -> bool:
    """Return True if a Ray with a node here has the port of host:port; its host may have several names."""
    _, _, port = address.rpartition(":")
    return port in {each.rpartition(":")[2] for each in rays_of_this_host()}


def fresh_token() -> dict[str, str]:
    """Return environment variables under which Ray refuses whoever lacks the token in them."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


def own_ray_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a Ray of our own and of its clients: token, loopback address and patience.

    Args:
        environ: The environment of this process. A value of ``PATIENCE`` that the user has set stays.
    """
    patience = {name: environ.get(name, value) for name, value in PATIENCE.items()}
    return fresh_token() | LOOPBACK_ONLY | patience


def protect_own_ray() -> None:
    """Give the Ray that this process may start a token, and have it listen on the loopback address alone.

    A Ray runs the code of whoever reaches it. The token is in the environment, which this user alone can read. Ray
    reads these variables when it is imported, so call this function before.
    """
    os.environ.update(protection(os.environ, ray_of_this_host()))


def protection(environ: Mapping[str, str], found: str | None) -> dict[str, str]:
    """Return the variables that protect the Ray that a process may start.

    Args:
        environ: The environment of the process. A user who set RAY_AUTH_MODE gets no token.
        found: The result of ``ray_of_this_host``.

    Returns:
        Variables to add to the environment; none where the process will join a Ray.
    """
    address = environ.get("RAY_ADDRESS", "")
    if address not in ("", "local") or (address == "" and found is not None):
        return {}
    variables = own_ray_variables(environ)
    if "RAY_AUTH_MODE" in environ:
        variables = {name: value for name, value in variables.items() if not name.startswith("RAY_AUTH")}
    return variables


def private_folder(parent: Path) -> Path:
    """Return a folder that only this user can enter, and make it; for the temporary files of our own Rays.

    Ray makes its temporary folder and all folders below it writable for every user (mode 0777), so pass Ray a
    subfolder of the result.

    Args:
        parent: The folder to make it in, usually ``temporary_folder()``. It is made in /tmp where its name would be
            too long for Unix sockets, or where it cannot be made.
    """
    folder = Path(parent, f"cov-{os.getuid()}").absolute()
    if len(os.fsencode(folder)) > LONGEST_FOLDER:
        folder = Path("/tmp", folder.name)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:  # a file of somebody else has its name, or RAY_TMPDIR cannot be written
        return Path(tempfile.mkdtemp(prefix="cov-", dir="/tmp"))
    found = folder.lstat()
    # Another user may have made a folder or a link of this name first: do not use it.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        return Path(tempfile.mkdtemp(prefix="cov-", dir="/tmp"))
    folder.chmod(0o700)
    return folder
