"""Serve rule-based rewards over HTTP, for --reward.remote_url http://….

Start it once per machine or per port and give the trainer all URLs, separated by commas; upstream's client takes them
in turn. A token that the service asks for goes into these URLs (http://HOST:PORT/?token=TOKEN): upstream's client
sends no Authorization header.
"""

import argparse
import ipaddress
import logging
import os
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
from openrlhf_cov.rewards.service_token import read_token
from openrlhf_cov.rewards.worker import at_most
from openrlhf_cov.utils.config_flags import add_config_arguments
from openrlhf_cov.utils.terminal import Parser, clean_logs, say

logger = logging.getLogger(__name__)

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
    """Answer requests until a signal. The grading processes live as long as this function.

    Args:
        listener: The listening socket.
        config: How responses are graded.
        limits: Limits on requests and connections.
        token: The token that requests must carry; None for none.

    Raises:
        RunStopped: No grading process works.
        SystemExit: A signal ended the service.
    """
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


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Args:
        host: Name or address of this host.
        port: The port; 0 for any free one.

    Raises:
        UsageError: The port is out of range, or the address cannot be listened on.
    """
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
