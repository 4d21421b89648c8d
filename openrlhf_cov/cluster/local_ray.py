"""A Ray head of our own on this host, for the demo: started apart from any other Ray, stopped whatever happens."""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple

from openrlhf_cov.cluster.ray_here import own_ray_variables
from openrlhf_cov.errors import RunStopped
from openrlhf_cov.utils.orphans import die_with_parent

# Seconds until a head is ready. On a host with a load of 10 a head takes minutes; one that dies is seen at once.
START_TIMEOUT = 600.0
STOP_TIMEOUT = 20.0
ATTEMPTS = 3
# In the output of a head whose processes all run: it looks at them once a second from then on, and ends with any.
WATCHING = "--block"
# Seconds in which it has looked once.
SETTLING = 1.5
# Program of a client: it ends with status 0 if it was registered with the GCS and the raylet.
CONNECT = "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False); ray.shutdown()"
PORT_FLAGS = (
    "--port",
    "--dashboard-port",
    "--dashboard-agent-listen-port",
    "--dashboard-agent-grpc-port",
    "--ray-client-server-port",
    "--metrics-export-port",
    "--node-manager-port",
    "--object-manager-port",
)


# Linux gives ports from 32,768 on to connections.
PORTS = range(20_000, 32_768)

ANOTHER_RAY = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


class RayAddress(NamedTuple):
    """The addresses of a Ray head: ``dashboard`` for ``ray job submit --address``, ``gcs`` for RAY_ADDRESS.

    It answers clients that have the environment variables ``token``: the token itself, which belongs in no command
    line and in no log, and those with which Ray's clients use the loopback address and are patient.
    """

    dashboard: str
    gcs: str
    token: dict[str, str]


class EndedAtStart(RunStopped):
    """A Ray head ended while it started."""


@contextmanager
def local_ray(num_gpus: int, num_cpus: int, log: Path) -> Iterator[RayAddress]:
    """Run a Ray head while the block runs, and yield its addresses as soon as a client has connected.

    Ports and temporary folder are its own. It is stopped when the block ends, and also when this process is killed.
    On a busy host one of a head's processes may give up while it starts, and the head with it: then another one is
    started, ``ATTEMPTS`` in all.

    Args:
        num_gpus: GPUs that Ray hands out. They are logical: slots for actors.
        num_cpus: CPUs that Ray hands out.
        log: File that gets the output of the head; an old one is removed.

    Raises:
        RunStopped: No head stayed, or one did not answer within ``START_TIMEOUT`` seconds.
    """
    log.unlink(missing_ok=True)
    for attempt in range(1, ATTEMPTS + 1):
        before = log.stat().st_size if log.exists() else 0  # what an earlier head wrote says nothing of this one
        with _head(num_gpus, num_cpus, log) as (process, address):
            try:
                _wait_until_up(process, address, log, before)
            except EndedAtStart:
                if attempt == ATTEMPTS:
                    raise
                continue
            yield address
            return


@contextmanager
def _head(num_gpus: int, num_cpus: int, log: Path) -> Iterator[tuple[subprocess.Popen, RayAddress]]:
    private = Path(tempfile.mkdtemp(prefix="cov-", dir="/tmp"))  # short: Ray puts unix sockets below it
    folder = private / "ray"  # Ray makes this one writable for all users; nobody else can enter the private one
    ports = dict(zip(PORT_FLAGS, free_ports(len(PORT_FLAGS)), strict=True))
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--disable-usage-stats"]
    command += ["--node-ip-address", "127.0.0.1", "--dashboard-host", "127.0.0.1", "--temp-dir", str(folder)]
    command += ["--num-gpus", str(num_gpus), "--num-cpus", str(num_cpus), "--object-store-memory", str(2**28)]
    command += [part for flag, port in ports.items() for part in (flag, str(port))]
    token = own_ray_variables(os.environ)
    with log.open("a") as output:
        head = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment() | token,
            start_new_session=True,
            preexec_fn=partial(die_with_parent, signal.SIGTERM),
        )
    address = RayAddress(f"http://127.0.0.1:{ports['--dashboard-port']}", f"127.0.0.1:{ports['--port']}", token)
    try:
        yield head, address
    finally:
        stop(head)
        shutil.rmtree(private, ignore_errors=True)


def environment() -> dict[str, str]:
    """Return this process's environment without address and token of another Ray."""
    return {name: value for name, value in os.environ.items() if name not in ANOTHER_RAY}


def free_ports(count: int) -> list[int]:
    """Return ``count`` different TCP ports that nothing listens on now.

    They lie below those that the kernel gives to connections, so that no connection takes one before it is used.

    Raises:
        RunStopped: Fewer of these ports are free.
    """
    found: list[int] = []
    with ExitStack() as stack:
        for port in random.SystemRandom().sample(PORTS, len(PORTS)):
            probe = stack.enter_context(socket.socket())
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:  # taken
                continue
            found.append(port)
            if len(found) == count:
                return found
    raise RunStopped(f"fewer than {count} of the ports {PORTS.start} to {PORTS.stop - 1} of this host are free")


def stop(process: subprocess.Popen) -> None:
    """End a process that leads a session, with all its children: SIGTERM, then SIGKILL."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _wait_until_up(head: subprocess.Popen, address: RayAddress, log: Path, before: int = 0) -> None:
    """Wait until the head can be used: the dashboard answers, the head watches its processes, a client connected.

    Args:
        head: The process of the head.
        address: Where it answers.
        log: The file with its output.
        before: Bytes of ``log`` that earlier heads wrote.

    Raises:
        EndedAtStart: The head ended.
        RunStopped: The head did not answer within ``START_TIMEOUT`` seconds.
    """
    headers = {"Authorization": f"Bearer {address.token['RAY_AUTH_TOKEN']}"}
    request = urllib.request.Request(f"{address.dashboard}/api/jobs/", headers=headers)
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        _check_runs(head, log)
        if (
            _answers(request)
            and WATCHING.encode() in log.read_bytes()[before:]
            and _client_connects(head, address, deadline)
        ):
            # A process of the head may have died while the client connected: the head has seen it by then.
            time.sleep(SETTLING)
            _check_runs(head, log)
            return
        time.sleep(0.2)
    raise RunStopped(f"the local Ray did not answer within {START_TIMEOUT:.0f} s; see {log}")


def _check_runs(head: subprocess.Popen, log: Path) -> None:
    if head.poll() is not None:
        raise EndedAtStart(f"the local Ray ended while it started (status {head.returncode}); see {log}")


def _client_connects(head: subprocess.Popen, address: RayAddress, deadline: float) -> bool:
    """Connect as a driver does, in a separate process. Return False if that failed, the head ended or time is up."""
    client = subprocess.Popen(
        [sys.executable, "-c", CONNECT, address.gcs],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        env=environment() | address.token,
        start_new_session=True,
        preexec_fn=die_with_parent,
    )
    try:
        while client.poll() is None and head.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        return client.poll() == 0
    finally:
        stop(client)


def _answers(request: urllib.request.Request) -> bool:
    try:
        with urllib.request.urlopen(request, timeout=5):
            return True
    except (urllib.error.URLError, HTTPException, TimeoutError, ConnectionError):
        return False  # HTTPException: a dying dashboard, or another program on its port, does not speak HTTP
