"""The process of the reward service: its socket, its limit of open files, and the server that runs until a signal."""

import ipaddress
import logging
import os
import resource
import socket
from contextlib import closing

from openrlhf_cov.config import RewardConfig
from openrlhf_cov.errors import RunStopped, UsageError
from openrlhf_cov.rewards.limits import ServiceLimits
from openrlhf_cov.rewards.pool import SECOND_OPINION_TARGET, PoolError, shared_pool
from openrlhf_cov.utils.terminal import say

logger = logging.getLogger(__name__)

# Time of requests in work after SIGTERM or SIGINT, before they are answered with 503.
STOP_SECONDS = 4
# Time that a connection stays open without a request.
KEEP_ALIVE_SECONDS = 20


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


def raise_file_limit() -> None:
    """Let this process open as many files as the host allows; the usual 1,024 are fewer than --max_connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def serve(listener: socket.socket, config: RewardConfig, limits: ServiceLimits, token: str | None) -> None:
    """Answer requests until a signal. The grading processes live as long as this function.

    The URL of the service is written to stdout before the first request is answered.

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

    from openrlhf_cov.rewards.service import make_app, make_service

    raise_file_limit()
    host, port = listener.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    if token is None and not ipaddress.ip_address(host).is_loopback:
        logger.warning("%s can be reached from other machines and asks for no token; see --token_file", url)
    with shared_pool(config.reward_workers) as pool, closing(make_service(config, limits, token)) as service:
        try:
            pool.call("1", "1", timeout=config.reward_timeout)  # the processes are there before the first request
            if config.reward_grader == "published":
                shared_pool(target=SECOND_OPINION_TARGET).call("1", "1", timeout=config.reward_timeout)
        except PoolError as error:
            raise RunStopped(f"no grading process works: {error}") from error
        settings = uvicorn.Config(
            make_app(service),
            http="h11",  # the other parser of uvicorn has no limit on the size of headers
            limit_concurrency=limits.max_connections,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=STOP_SECONDS,
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            ws="none",
        )
        logger.info("start: process %d, %d grading processes", os.getpid(), config.reward_workers)
        say(f"serving on {url}\n")
        uvicorn.Server(settings).run(sockets=[listener])
