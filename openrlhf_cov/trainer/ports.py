"""A TCP port that stays free until its owner listens on it."""

import socket


def reserve_port() -> socket.socket:
    """Reserve a free TCP port of this host, on all of its addresses.

    A port that is only looked up may be given to another process before the caller listens on it. While the returned
    socket is open, the kernel does not give its port to a process that asks for any free port. A server that names
    the port can still listen on it if it sets ``SO_REUSEADDR``, as torch's stores do.

    Returns:
        The socket, which is bound and does not listen. ``getsockname()[1]`` is the port; close it when the server
        listens.

    Raises:
        OSError: No port is free.
    """
    reserved = socket.socket()
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("", 0))
    except OSError:
        reserved.close()
        raise
    return reserved
