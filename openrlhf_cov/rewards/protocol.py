"""HTTP as uvicorn speaks it, with what uvicorn leaves to a proxy in front: clients that are slow or too many."""

import asyncio
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 20.0
"""Time that a client has to send the head of a request, from its connection or the last answer on."""
LINGER_SECONDS = 2.0
"""How long a connection that is closed goes on reading: closing while bytes arrive resets it, and the answer that the
client has not read is lost."""


class Lingering:
    """A transport that ends with its last answer, not with a reset."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport, self._ended = transport, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """True from ``close`` on."""
        return self._ended or self._transport.is_closing()

    def close(self) -> None:
        """Say that no more comes, and close when the client has closed, or ``LINGER_SECONDS`` later."""
        if not self.is_closing():
            self._ended = True
            self._transport.write_eof()
            self._transport.resume_reading()
            asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.abort)


class GuardedProtocol(H11Protocol):
    """uvicorn's protocol for one connection, closed with 408 when no head of a request comes in time, and with 503
    when there are ``max_connections`` others."""

    def __init__(self, *args: Any, max_connections: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._max_connections = max_connections
        self._clock: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Start the clock, or refuse one connection too many."""
        super().connection_made(Lingering(transport))
        self._watch()
        if len(self.connections) > 2 * self._max_connections:
            transport.abort()
        elif len(self.connections) > self._max_connections:
            self._refuse(b"503 Service Unavailable")

    def data_received(self, data: bytes) -> None:
        """Go on with a request; what comes after the last answer is thrown away."""
        if not self.transport.is_closing():
            super().data_received(data)
            self._watch()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        super().connection_lost(exc)
        if self._clock is not None:
            self._clock.cancel()

    def _watch(self) -> None:
        """Let the clock run exactly while no request is in work."""
        in_work = self.cycle is not None and not self.cycle.response_complete
        if in_work and self._clock is not None:
            self._clock.cancel()
            self._clock = None
        elif not in_work and self._clock is None:
            self._clock = self.loop.call_later(HEADER_SECONDS, self._refuse, b"408 Request Timeout")

    def _refuse(self, status: bytes) -> None:
        if self.cycle is None:  # no answer is on its way or was given
            self.transport.write(
                b"HTTP/1.1 %s\r\nConnection: close\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n" % status
            )
        self.transport.close()


class GuardedServer(uvicorn.Server):
    """uvicorn's server, which does not end before its last answers were read."""

    async def shutdown(self, sockets: list[Any] | None = None) -> None:
        """End as uvicorn does, then wait at most ``LINGER_SECONDS`` for clients to close, and leave nothing open."""
        await super().shutdown(sockets)
        loop = asyncio.get_running_loop()
        connections, deadline = self.server_state.connections, loop.time() + LINGER_SECONDS
        while connections and loop.time() < deadline:
            await asyncio.sleep(0.01)
        for connection in connections:
            connection.transport.abort()
        while connections:  # each leaves in a turn of the loop that follows
            await asyncio.sleep(0)
