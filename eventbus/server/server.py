"""The lifecycle of a server: open the log, listen, and finally flush and close."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import msgspec

from eventbus.backends.clock import Clock, system_clock
from eventbus.backends.embedded import EmbeddedBackend
from eventbus.backends.urls import open_backend
from eventbus.errors import ConfigError, EventBusError
from eventbus.server.acceptor import Acceptor, Greeter, bind
from eventbus.server.config import Listener, ServerConfig, format_address
from eventbus.server.connection import Connection
from eventbus.server.node import Node

_logger = logging.getLogger("eventbus.server")

_BACKLOG = 1_024
_TURNS_TO_CONNECT = 3
_CLOSING_SECONDS = 5.0
"""How long connections may take to read their last answers."""


class Server:
    """Serves a log, on asyncio: ``async with Server("file://./data") as server: ...``

    Buses of this process that open the same URL share its topics, groups and transactions.
    """

    def __init__(
        self,
        url: str = "file://./data",
        config: ServerConfig | None = None,
        settings: Mapping[str, Any] | None = None,
        *,
        clock: Clock = system_clock,
    ) -> None:
        """``settings`` are those of the log (`eventbus.broker.BrokerConfig`). Raises ConfigError."""
        self.config = config or ServerConfig()
        self.config.check()
        self.url = url
        backend = open_backend(url, settings or {}, clock)
        if not isinstance(backend, EmbeddedBackend):
            raise ConfigError(f"{url} is served by somebody else already: serve a directory (file://DIR) or memory://")
        self._backend = backend
        self._node: Node | None = None
        self._sockets: list[Acceptor] = []
        self._housekeeping: asyncio.Task[None] | None = None
        self.listeners: tuple[Listener, ...] = ()
        """The bound listeners, with their actual ports and advertised addresses."""

    @property
    def node(self) -> Node:
        if self._node is None:
            raise ConfigError("the server is not started: use `async with server:`")
        return self._node

    @property
    def bootstrap(self) -> str:
        """``host:port`` for clients' ``bootstrap.servers``. Raises ConfigError before the start."""
        if not self.listeners:
            raise ConfigError("the server is not started: use `async with server:`")
        return ",".join(
            format_address(listener.advertised_host, listener.advertised_port) for listener in self.listeners
        )

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def start(self) -> None:
        """Open the log and listen. Raises ConfigError (an address in use), LogLocked, CorruptRecord."""
        if not _on_asyncio():
            raise ConfigError("a server runs on asyncio: use anyio.run(main, backend='asyncio')")
        if self._housekeeping is not None:
            raise ConfigError(f"the server of {self.url} is started already")
        await self._backend.start(clients_may_return=True)
        try:
            self._node = Node(self._backend.engine, self.config)
            self.listeners = tuple([await self._open(listener) for listener in self.config.listeners])
            self._node.listeners = self.listeners
        except BaseException:
            await self.aclose()
            raise
        self._housekeeping = asyncio.create_task(self._backend.run(), name=f"housekeeping of {self.url}")
        for listener in self.listeners:
            _logger.info(
                "%s listens, clients get %s", listener.url,
                format_address(listener.advertised_host, listener.advertised_port),
            )  # fmt: skip

    async def _open(self, listener: Listener) -> Listener:
        """Listen on every address of the host with one port (a client may resolve "localhost" to ::1 first)."""
        context = self.config.tls.context() if listener.has_tls and self.config.tls else None
        port = listener.port
        opened: list[tuple[Acceptor, list[Listener]]] = []
        hosts = ["127.0.0.1", "::1"] if listener.host == "localhost" else [listener.host or None]
        for host in hosts:
            actual = [listener]

            def connect(actual: list[Listener] = actual) -> Connection:
                return Connection(self.node, actual[0])

            try:
                sockets = await bind(host, port, _BACKLOG)
            except OSError as error:
                if host == "::1" and opened and error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    continue  # a machine without IPv6
                raise ConfigError(_why_not(listener, error)) from error
            server = Acceptor(sockets, Greeter(connect, self.node.gate, context).greet, listener.name)
            self._sockets.append(server)
            opened.append((server, actual))
            port = server.sockets[0].getsockname()[1]
        advertised_host = listener.advertised_host or (
            socket.gethostname() if listener.host in ("", "0.0.0.0", "::") else listener.host
        )
        result = msgspec.structs.replace(
            listener, port=port, advertised_host=advertised_host, advertised_port=listener.advertised_port or port
        )
        for _, actual in opened:
            actual[0] = result
        return result

    async def wait(self) -> None:
        """Return when the server's housekeeping ends, which happens only if it fails: then its error is raised."""
        assert self._housekeeping is not None
        await asyncio.shield(self._housekeeping)

    async def _accept_no_more(self) -> None:
        """Close the listeners, after peers accepted a moment ago have become connections, which `aclose` closes.

        asyncio needs some turns for that: a task, a transport, `connection_made`. If the listener were closed or the
        node gone in between, the task would fail, and nothing would own the socket.
        """
        loop = asyncio.get_running_loop()
        for server in self._sockets:
            for listening in server.sockets:
                with contextlib.suppress(NotImplementedError, RuntimeError):  # other loops accept in other ways
                    loop.remove_reader(listening.fileno())
        for _ in range(_TURNS_TO_CONNECT if self._sockets else 0):
            await asyncio.sleep(0)
        for server in self._sockets:
            server.close()

    async def aclose(self) -> None:
        """Stop listening, answer requests in flight, close every connection, flush and close the log."""
        await self._accept_no_more()
        self._sockets.clear()
        node, self._node = self._node, None
        try:
            if node is not None and node.connections:
                try:
                    await node.engine.flushes.flush_all()
                except EventBusError as error:
                    _logger.warning("%s: the last flush: %s", self.url, error)
                for connection in list(node.connections):
                    connection.close("the server stops")
                await node.gate.wait_until_empty(_CLOSING_SECONDS)
        finally:
            if self._housekeeping is not None:
                self._housekeeping.cancel()
                await asyncio.wait([self._housekeeping])
                self._housekeeping = None
            await self._backend.aclose()


def _on_asyncio() -> bool:
    """True if a task of asyncio runs this (trio may be a guest of asyncio's loop, and then runs outside any task)."""
    try:
        return asyncio.current_task() is not None
    except RuntimeError:
        return False


def _why_not(listener: Listener, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {listener.port} of {listener.host or 'this machine'} is in use, by another server perhaps: stop it, "
            "or choose another port (--port 0 takes a free one)"
        )
    if error.errno == errno.EACCES:
        return f"port {listener.port} needs privileges: choose one above 1023"
    return f"cannot listen on {listener.url}: {error.strerror or error}"
