"""Accept connections, also when the process has no file descriptor for another one.

asyncio's servers answer a lack of descriptors with a traceback for each connection that their backlog may hold, and
again every second (Python 3.11). They also report a connection only after its TLS handshake. Peers that begin a
handshake and stay silent would take all descriptors before anything has counted them.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eventbus.server.connection import Connection
    from eventbus.server.gate import Gate

_logger = logging.getLogger("eventbus.server")

_PAUSE_SECONDS = 1.0
"""The pause after the system had no file descriptor for a connection."""
_WARNING_SECONDS = 60.0
"""The least time between two warnings about that."""


class Acceptor:
    """Listens on bound sockets and starts a connection for each peer, as `asyncio.Server` does."""

    def __init__(
        self, sockets: list[socket.socket], greet: Callable[[socket.socket, Any], Awaitable[object]], name: str
    ) -> None:
        """``greet`` makes a connection of an accepted socket and returns when its handshake is complete."""
        self.sockets = sockets
        self._greet = greet
        self._name = name
        self._greetings: set[asyncio.Task[None]] = set()
        self._not_greeted: set[socket.socket] = set()
        self._next_warning = 0.0
        self._accepting = [asyncio.create_task(self._accept(sock), name=f"listener of {name}") for sock in sockets]

    def close(self) -> None:
        """Stop listening, and end unfinished handshakes."""
        for task in (*self._accepting, *self._greetings):
            task.cancel()
        for sock in (*self.sockets, *self._not_greeted):
            sock.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, address = await loop.sock_accept(listening)
            except OSError as error:
                if error.errno != errno.ECONNABORTED:  # the peer has already disconnected
                    self._warn(error, loop.time())
                    await asyncio.sleep(_PAUSE_SECONDS)
                continue
            self._not_greeted.add(sock)
            greeting = loop.create_task(self._connect(sock, address))
            self._greetings.add(greeting)
            greeting.add_done_callback(self._greetings.discard)

    async def _connect(self, sock: socket.socket, address: Any) -> None:
        self._not_greeted.discard(sock)
        try:
            await self._greet(sock, address)
        except OSError as error:  # TLS errors are OSErrors
            _logger.info("%s connection of %s:%s failed: %s", self._name, *address[:2], error)

    def _warn(self, error: OSError, now: float) -> None:
        if now >= self._next_warning:
            self._next_warning = now + _WARNING_SECONDS
            _logger.warning(
                "%s accepts no connections now: %s. Those that come wait and are accepted when others have ended. "
                "Raise `ulimit -n`, or allow fewer connections.",
                self._name, error.strerror or error,
            )  # fmt: skip


class Greeter:
    """Starts the connections of one listener. With TLS, each connection counts from its first packet on."""

    def __init__(self, connect: Callable[[], Connection], gate: Gate, context: ssl.SSLContext | None) -> None:
        self._connect = connect
        self._gate = gate
        self._context = context

    async def greet(self, sock: socket.socket, address: Any) -> None:
        connection = self._connect()
        timeout_seconds = None
        if self._context is not None:
            refusal = self._gate.greet(connection)
            if refusal:
                _logger.info("%s connection of %s:%s: refused: %s", connection.listener.name, *address[:2], refusal)
                sock.close()
                return
            timeout_seconds = connection.node.config.handshake_timeout_ms / 1000
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, sock, ssl=self._context, ssl_handshake_timeout=timeout_seconds
            )
        finally:
            self._gate.greeted(connection)


async def bind(host: str | None, port: int, backlog: int) -> list[socket.socket]:
    """Return sockets that listen on every address of the host. Raises OSError."""
    addresses = await asyncio.get_running_loop().getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    opened: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(addresses):
            sock = socket.socket(family, kind, protocol)
            opened.append(sock)
            if os.name == "posix":  # elsewhere it would let two servers share a port
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(address)
            sock.listen(backlog)
            sock.setblocking(False)
    except BaseException:
        for sock in opened:
            sock.close()
        raise
    return opened
