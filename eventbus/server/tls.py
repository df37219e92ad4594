"""Listening with TLS: a peer counts as a connection from its first packet on, not from the end of its handshake.

The event loop's own servers make a connection known when its handshake is done. Peers that begin one and say no more
would take all files the process may open, before anybody has asked who they are.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
from collections.abc import Callable
from typing import Any

from eventbus.server.connection import Connection
from eventbus.server.gate import Gate

_logger = logging.getLogger("eventbus.server")

_PAUSE_SECONDS = 1.0
"""How long to wait when the system has no file for one more connection."""


class TlsServer:
    """Listens at every address of a host. What `asyncio.Server` is without TLS."""

    def __init__(
        self, sockets: list[socket.socket], connect: Callable[[], Connection], gate: Gate, context: ssl.SSLContext
    ) -> None:
        self.sockets = sockets
        self._connect = connect
        self._gate = gate
        self._context = context
        self._greetings: set[asyncio.Task[None]] = set()
        self._accepting = [asyncio.create_task(self._accept(sock), name="TLS listener") for sock in sockets]

    def close(self) -> None:
        """Listen no more, and end handshakes that are under way."""
        for task in (*self._accepting, *self._greetings):
            task.cancel()
        for sock in self.sockets:
            sock.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, address = await loop.sock_accept(listening)
            except OSError as error:
                if error.errno != errno.ECONNABORTED:  # the peer has gone again
                    _logger.warning("no connection can be accepted: %s", error)
                    await asyncio.sleep(_PAUSE_SECONDS)
                continue
            greeting = loop.create_task(self._greet(sock, address))
            self._greetings.add(greeting)
            greeting.add_done_callback(self._greetings.discard)

    async def _greet(self, sock: socket.socket, address: Any) -> None:
        connection = self._connect()
        refusal = self._gate.greet(connection)
        if refusal:
            _logger.info("%s connection of %s:%s: refused: %s", connection.listener.name, *address[:2], refusal)
            sock.close()
            return
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                sock,
                ssl=self._context,
                ssl_handshake_timeout=connection.node.config.handshake_timeout_ms / 1000,
            )
        except OSError as error:  # errors of TLS are such, too
            _logger.info("%s connection of %s:%s: no TLS: %s", connection.listener.name, *address[:2], error)
        finally:
            self._gate.greeted(connection)


async def bind(host: str | None, port: int, backlog: int) -> list[socket.socket]:
    """Sockets that listen at every address of the host. Raises OSError."""
    addresses = await asyncio.get_running_loop().getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    opened: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(addresses):
            sock = socket.socket(family, kind, protocol)
            opened.append(sock)
            if os.name == "posix":  # elsewhere it would let two servers have one port
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
