"""``python -m openrlhf_cov.cli.serve_reward``: rule-based rewards as a service, for ``--reward.remote_url http://…``.

Start it once per machine or per port and give the trainer all URLs, separated by commas; upstream's client takes them
in turn. A token that the service asks for goes into these URLs (``http://HOST:PORT/?token=TOKEN``): upstream's client
sends no Authorization header.
"""

import argparse
import ctypes
import ipaddress
import logging
import os
import re
import resource
import signal
import socket
import sys
import time
from pathlib import Path

from openrlhf_cov.cli.entry_point import program
from openrlhf_cov.cluster.packages import SERVICE, require, require_grader
from openrlhf_cov.config import RewardConfig
from openrlhf_cov.errors import RunStopped, UsageError
from openrlhf_cov.rewards.limits import REWARD_TOKEN, ServiceLimits
from openrlhf_cov.utils.config_flags import add_config_arguments
from openrlhf_cov.utils.terminal import Parser, clean_logs, say

logger = logging.getLogger(__name__)

# Characters that stand for themselves in a URL; upstream splits ``--reward.remote_url`` at commas.
TOKEN = re.compile(r"[A-Za-z0-9._~-]+")

# Settings of the trainer's side: nobody tells the service which response was cut off, and it reads no data.
TRAINER_ONLY = ("reward_keep_truncated", "reward_skip_bad_labels", "reward_max_error_frac")

# How long requests in work may take after SIGTERM or SIGINT, before they are answered with 503.
STOP_SECONDS = 4

# How long a connection without a request stays open.
KEEP_ALIVE_SECONDS = 20

# Files and pipes that the service may have open beside its connections.
OTHER_FILES = 512

# That of upstream.
LOG_FORMAT = "%(levelname)s %(asctime)s %(filename)s:%(lineno)d] %(message)s"


def build_parser() -> Parser:
    """The parser of this command; limits and rewards have the defaults of their configs."""
    parser = Parser(prog="serve_reward", about=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--host", default="127.0.0.1", help="address to bind to (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=5000, help="port to bind to; 0: any free one (default: 5000)")
    parser.add_argument(
        "--token_file",
        type=Path,
        metavar="FILE",
        help=f"file with the token that requests must carry (default: the environment's {REWARD_TOKEN}, or none)",
    )
    add_config_arguments(parser, "limits", ServiceLimits)
    add_config_arguments(parser, "rewards", RewardConfig)
    for action in parser._actions:
        if action.dest in TRAINER_ONLY:
            action.help = argparse.SUPPRESS
    return parser


@program("serve_reward")
def main(argv: list[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT: exit status 0. Exit status 2 with one line for anything the user can mend."""
    parser = build_parser()
    args = parser.parse_args(argv)
    require(SERVICE)
    reject_trainer_flags(args, parser)
    config = RewardConfig.from_args(args)
    limits = ServiceLimits.from_args(args)
    require_grader(config.reward_grader)
    token = read_token(args.token_file)
    listener = listen(args.host, args.port)
    clean_logs()
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT, datefmt="%m-%d %H:%M:%S")
    for stop in (signal.SIGTERM, signal.SIGINT):
        signal.signal(stop, lambda *_: sys.exit(0))  # while the server runs it has handlers of its own
    allow_connections(limits.max_connections)
    with listener:
        serve(listener, config, limits, token)
    return 0


def serve(listener: socket.socket, config: RewardConfig, limits: ServiceLimits, token: str | None) -> None:
    """Answer requests until a signal; ends by SystemExit. The grading processes live as long as this function."""
    import uvicorn

    from openrlhf_cov.rewards.pool import SECOND_OPINION_TARGET, PoolError, shared_pool
    from openrlhf_cov.rewards.service import make_app, make_service

    url = url_of(listener)
    if token is None and not is_loopback(listener):
        logger.warning("%s can be reached from other machines and asks for no token; see --token_file", url)
    server = uvicorn.Server(
        uvicorn.Config(
            make_app(make_service(config, limits, token)),
            http="h11",
            limit_concurrency=limits.max_connections,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            ws="none",
            timeout_graceful_shutdown=STOP_SECONDS,
        )
    )
    started = time.monotonic()
    with shared_pool(config.reward_workers) as pool:
        try:
            pool.call("1", "1", timeout=config.reward_timeout)  # the processes are there before the first request
            if config.reward_grader == "published":
                shared_pool(target=SECOND_OPINION_TARGET).call("1", "1", timeout=config.reward_timeout)
        except PoolError as error:
            raise RunStopped(f"no grading process works: {error}") from error
        logger.info("start: process %d, %d grading processes", os.getpid(), config.reward_workers)
        say(f"serving on {url}\n")
        try:
            server.run(sockets=[listener])
        finally:
            logger.info("stop after %.0f seconds", time.monotonic() - started)


def reject_trainer_flags(args: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """UsageError for a setting that would do nothing here."""
    for name in TRAINER_ONLY:
        if getattr(args, name) != parser.get_default(name):
            raise UsageError(f"--{name} does nothing here: give it to the trainer")


def read_token(path: Path | None) -> str | None:
    """The token of a file, else of the environment, from which it is removed; None where neither has one."""
    token = take_from_environment(REWARD_TOKEN)  # the grading processes inherit the environment
    source = REWARD_TOKEN
    if path is not None:
        source = f"--token_file {path}"
        try:
            token = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{source} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if token is not None and not TOKEN.fullmatch(token):
        raise UsageError(f"{source} holds no token: at least one letter, digit or one of . _ ~ - and nothing else")
    return token


def take_from_environment(name: str) -> str | None:
    """Return a variable of the environment and remove it, also from what ``/proc/PID/environ`` shows of this process.

    Removing a variable leaves its text in the memory that the kernel shows to all processes of the same user.
    """
    library = ctypes.CDLL(None)
    library.getenv.restype = ctypes.c_void_p
    address = library.getenv(name.encode())
    value = os.environ.pop(name, None)
    # A variable that this process set itself lies elsewhere, and may have been freed by now.
    if address and value is not None and Path("/proc/self/environ").exists():
        first, last = environment_addresses()
        if first <= address < last:
            ctypes.memset(address, 0, len(os.fsencode(value)))
    return value


def environment_addresses() -> tuple[int, int]:
    """Return the first address of the environment with which this process began, and the address behind it."""
    try:
        # The name of the process comes before the last bracket; env_start and env_end are the fields 50 and 51.
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return int(fields[47]), int(fields[48])
    except (OSError, ValueError, IndexError):
        return 0, 0


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. UsageError if there can be none."""
    if not 0 <= port < 1 << 16:
        raise UsageError(f"--port is from 0 to 65535, got {port}")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot listen on --host {host} --port {port}: {reason}") from error


def allow_connections(count: int) -> None:
    """Raise this process' limit of open files, often 1024, to what so many connections need, if it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * count + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def is_loopback(listener: socket.socket) -> bool:
    """Return True if only this machine can reach a socket."""
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback


def url_of(listener: socket.socket) -> str:
    """``http://127.0.0.1:5000``"""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


if __name__ == "__main__":
    sys.exit(main())
