"""Limits on connections, on the bytes of all requests, and on time.

Time is coarse: a single timer checks all connections, and they use the time of its last check. So a request needs no
call of the clock, and ten thousand idle connections cost nothing but the check.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from eventbus.server.config import ServerConfig

if TYPE_CHECKING:
    from eventbus.server.connection import Connection

_LOOKS = 8
"""The number of checks per deadline: a deadline is at most an eighth late."""
_LOOK_MAX_MS = 5_000
_FILES_OF_THE_LOG = 4_096
"""The number of files that `eventbus.log.storage` keeps open, or half of the process's limit if that is less."""


def _spare_files() -> int:
    """Return the number of connections that leave enough file descriptors for the log."""
    try:
        import resource
    except ImportError:  # Windows has no limit of this kind
        return sys.maxsize
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit - min(_FILES_OF_THE_LOG, limit // 2) - limit // 16


class Gate:
    """All connections of a server."""

    def __init__(self, config: ServerConfig, now_ms: Callable[[], int]) -> None:
        self.connections: set[Connection] = set()
        self.time_ms = now_ms()
        """The time of the last check."""
        self._greeting: set[Connection] = set()
        """Connections whose TLS handshake is unfinished: they have a socket, too."""
        self._config = config
        self._max_connections = min(config.max_connections, _spare_files())
        self._now_ms = now_ms
        self._per_host: dict[str, int] = {}
        self._held_bytes = 0
        self._waiting: set[Connection] = set()
        self._goes_on: Connection | None = None
        self._empty = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    # connections -----------------------------------------------------------------------------------------------------

    def greet(self, connection: Connection) -> str:
        """Register a TLS handshake, until `greeted`. Return why it is refused, or an empty string."""
        if len(self.connections) + len(self._greeting) >= self._max_connections:
            return self._too_many(1)
        self._greeting.add(connection)
        return ""

    def greeted(self, connection: Connection) -> None:
        self._greeting.discard(connection)

    def admit(self, connection: Connection) -> str:
        """Accept a connection. Return why it is refused, or an empty string."""
        self._greeting.discard(connection)
        self.connections.add(connection)
        self._empty.clear()
        host = connection.peer_host
        count = self._per_host[host] = self._per_host.get(host, 0) + 1
        if self._timer is None:
            self._look_later()
        if len(self.connections) + len(self._greeting) > self._max_connections:
            return self._too_many(0)
        if count > self._config.max_connections_per_ip:
            return f"{count:,} connections of {host}; at most {self._config.max_connections_per_ip:,} of one address"
        return ""

    def _too_many(self, more: int) -> str:
        what = f"max_connections={self._max_connections:,}"
        if self._max_connections < self._config.max_connections:
            what = f"{self._max_connections:,}, because of how many files this process may open (ulimit -n)"
        return f"{len(self.connections) + len(self._greeting) + more:,} connections; at most {what}"

    def forget(self, connection: Connection) -> None:
        """Remove a connection that has ended."""
        if connection not in self.connections:
            return
        self.connections.discard(connection)
        self._waiting.discard(connection)
        if self._goes_on is connection:
            self._goes_on = None
            self._wake()
        host = connection.peer_host
        self._per_host[host] -= 1
        if not self._per_host[host]:
            del self._per_host[host]
        if not self.connections:
            self._empty.set()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    async def wait_until_empty(self, seconds: float) -> None:
        """Return when all connections have ended; after ``seconds`` the rest are aborted."""
        try:
            async with asyncio.timeout(seconds):
                await self._empty.wait()
        except TimeoutError:
            for connection in list(self.connections):
                connection.abort()

    # bytes -----------------------------------------------------------------------------------------------------------

    def hold(self, size_bytes: int) -> None:
        """Count the bytes of a new request."""
        self._held_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Subtract the bytes of a finished request."""
        self._held_bytes -= size_bytes
        if self._waiting and self._held_bytes <= self._config.in_flight_max_bytes:
            self._wake()

    def must_wait(self, connection: Connection) -> bool:
        """True if the connection must not be read, because all requests together take too many bytes.

        One connection whose request has begun may continue; otherwise several half-received requests would wait for
        each other forever. `Connection.flow` is called when the answer changes.
        """
        if self._held_bytes <= self._config.in_flight_max_bytes:
            return False
        if self._goes_on is None and connection.is_receiving:
            self._goes_on = connection
        if self._goes_on is connection:
            return False
        self._waiting.add(connection)
        return True

    def received(self, connection: Connection) -> None:
        """Record that the connection's large request is complete."""
        if self._goes_on is connection:
            self._goes_on = None
            self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for connection in waiting:
            connection.flow()

    # time ------------------------------------------------------------------------------------------------------------

    def _look_later(self) -> None:
        config = self._config
        nearest = min(config.handshake_timeout_ms, config.request_timeout_ms, config.connections_max_idle_ms)
        if self._timer is not None:
            self._timer.cancel()
        self.time_ms = self._now_ms()
        delay_ms = min(max(1, nearest // _LOOKS), _LOOK_MAX_MS)
        self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self.look)

    def look(self) -> None:
        """Close the connections that are past a deadline."""
        self._look_later()
        for connection in list(self.connections):
            connection.check_deadlines(self.time_ms)
