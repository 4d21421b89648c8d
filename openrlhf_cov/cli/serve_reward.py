"""Serve rule-based rewards over HTTP, for --reward.remote_url http://….

Start it once per machine or per port and give the trainer all URLs, separated by commas; upstream's client takes them
in turn. A token that the service asks for goes into these URLs (http://HOST:PORT/?token=TOKEN): upstream's client
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
from dataclasses import fields
from pathlib import Path

from openrlhf_cov.cli.entry_point import program
from openrlhf_cov.cluster.packages import SERVICE, require, require_grader
from openrlhf_cov.config import RewardConfig
from openrlhf_cov.errors import RunStopped, UsageError
from openrlhf_cov.rewards.limits import REWARD_TOKEN, ServiceLimits
from openrlhf_cov.rewards.worker import at_most
from openrlhf_cov.utils.config_flags import add_config_arguments
from openrlhf_cov.utils.terminal import Parser, clean_logs, say

logger = logging.getLogger(__name__)

# Characters that stand for themselves in a URL; upstream splits ``--reward.remote_url`` at commas.
TOKEN = re.compile(r"[A-Za-z0-9._~-]+")
# Settings of the trainer's side: nobody tells the service which response was cut off, and it reads no data.
TRAINER_ONLY = ("reward_keep_truncated", "reward_skip_bad_labels", "reward_max_error_frac")
# Time of requests in work after SIGTERM or SIGINT, before they are answered with 503.
STOP_SECONDS = 4
# Time that a connection stays open without a request.
KEEP_ALIVE_SECONDS = 20
# Files and pipes that the service may have open beside its connections.
OTHER_FILES = 512
# That of upstream.
LOG_FORMAT = "%(levelname)s %(asctime)s %(filename)s:%(lineno)d] %(message)s"


def build_parser() -> Parser:
    """Return the parser of this command; limits and rewards have the defaults of their configs."""
    parser = Parser(prog="openrlhf-cov serve-reward", about=__doc__, allow_abbrev=False)
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
    own = [entry.name for entry in fields(RewardConfig) if entry.name not in TRAINER_ONLY]
    add_config_arguments(parser, "rewards", RewardConfig, own)
    parser.set_defaults(**{entry.name: entry.default for entry in fields(RewardConfig) if entry.name in TRAINER_ONLY})
    return parser


@program("openrlhf-cov serve-reward")
def main(argv: list[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT: exit status 0. Exit status 2 with one line for anything the user can mend."""
    args = build_parser().parse_args(argv)
    require(SERVICE)
    config = RewardConfig.from_args(args)
    limits = ServiceLimits.from_args(args)
    require_grader(config.reward_grader)
    token = read_token(args.token_file)
    with listen(args.host, args.port) as listener:
        clean_logs()
        logging.basicConfig(level=logging.INFO, format=LOG_FORMAT, datefmt="%m-%d %H:%M:%S")
        for stop in (signal.SIGTERM, signal.SIGINT):
            signal.signal(stop, lambda *_: sys.exit(0))  # while the server runs it has handlers of its own
        # The usual limit of 1,024 open files would be reached before the limit of connections.
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY:
            wanted = at_most(hard, 2 * limits.max_connections + OTHER_FILES)
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
        serve(listener, config, limits, token)
    return 0


def serve(listener: socket.socket, config: RewardConfig, limits: ServiceLimits, token: str | None) -> None:
    """Answer requests until a signal; ends by SystemExit. The grading processes live as long as this function."""
    import uvicorn

    from openrlhf_cov.rewards.pool import SECOND_OPINION_TARGET, PoolError, shared_pool
    from openrlhf_cov.rewards.service import make_app, make_service

    host, port = listener.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    if token is None and not ipaddress.ip_address(host).is_loopback:
        logger.warning("%s can be reached from other machines and asks for no token; see --token_file", url)
    server = uvicorn.Server(
        uvicorn.Config(
            make_app(make_service(config, limits, token)),
            http="h11",
            limit_concurrency=limits.max_connections,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=STOP_SECONDS,
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            ws="none",
        )
    )
    with shared_pool(config.reward_workers) as pool:
        try:
            pool.call("1", "1", timeout=config.reward_timeout)  # the processes are there before the first request
            if config.reward_grader == "published":
                shared_pool(target=SECOND_OPINION_TARGET).call("1", "1", timeout=config.reward_timeout)
        except PoolError as error:
            raise RunStopped(f"no grading process works: {error}") from error
        logger.info("start: process %d, %d grading processes", os.getpid(), config.reward_workers)
        say(f"serving on {url}\n")
        server.run(sockets=[listener])


def read_token(path: Path | None) -> str | None:
    """Return the token of a file, else of the environment, from which it is removed; None where neither has one."""
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
    status = Path("/proc/self/stat")
    if address and value is not None and status.exists():
        # The name of the process comes before the last bracket; env_start and env_end are the fields 50 and 51.
        columns = status.read_text(encoding="utf-8").rpartition(")")[2].split()
        # A variable that this process set itself lies elsewhere, and may have been freed by now.
        if int(columns[47]) <= address < int(columns[48]):
            ctypes.memset(address, 0, len(os.fsencode(value)))
    return value


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises UsageError if there can be none."""
    if not 0 <= port < 1 << 16:
        raise UsageError(f"--port {port}: must be from 0 to 65535")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot listen on --host {host} --port {port}: {reason}") from error


if __name__ == "__main__":
    sys.exit(main())
