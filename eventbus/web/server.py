"""A server for health and metrics in a separate thread, so that it answers while the bus recovers or is blocked."""

from __future__ import annotations

import asyncio
import errno
import importlib.util
import socket
import threading
import time
from collections.abc import Generator, MutableMapping
from contextlib import contextmanager
from email.utils import formatdate
from typing import TYPE_CHECKING, Any, cast

import anyio.to_thread

from eventbus.errors import ConfigError
from eventbus.server.acceptor import Acceptor
from eventbus.web.app import App, Receive, Scope, Send, app_of
from eventbus.web.sources import OfBus, Source

if TYPE_CHECKING:
    from eventbus.client.bus import EventBus

DEFAULT_PORT = 8080
_CLOSING_SECONDS = 1.0
"""How long running requests may take when the server stops."""
_IDLE_SECONDS = 75
"""A connection without a request for this long is closed: longer than the pause between two probes."""
_MOST_CONNECTIONS = 100


class HealthServer:
    """Serves the probes and metrics of `health_app` while the bus runs: ``bus.include(HealthServer(port=8080))``.

    A part of a bus starts once its log is open. To serve earlier, during a long recovery, and until the very end, enter
    it around the bus: ``with HealthServer().around(bus): anyio.run(bus.run)``; ``eventbus run --health-port`` does
    that. ``host``: by default only this machine can connect (Kubernetes connects from outside: ``0.0.0.0``); clients
    that can connect see names of topics, groups and handlers. ``port``: 0 uses a free port, see `port`. Needs uvicorn.
    Raises ConfigError without uvicorn, or for an address that cannot be used.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = DEFAULT_PORT) -> None:
        if not 0 <= port <= 65_535:
            raise ConfigError(f"port {port} is none: ports end at 65535")
        self.host = host
        self.port = port
        """The actual port, known once it listens."""
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host or "0.0.0.0"
        return f"http://{host}:{self.port}"

    async def start(self, bus: EventBus) -> None:
        """Start as a part of the bus."""
        if self._thread is None:  # otherwise it already runs around the bus
            self.open(OfBus(bus))

    async def aclose(self) -> None:
        """Close as a part of the bus."""
        await anyio.to_thread.run_sync(self.close)  # running requests may wait for this loop

    @contextmanager
    def around(self, source: EventBus | Source) -> Generator[HealthServer]:
        """Listen before the bus starts and until it has closed, in any case."""
        from eventbus.client.bus import EventBus

        self.open(OfBus(source, is_coming=True) if isinstance(source, EventBus) else source)
        try:
            yield self
        finally:
            self.close()

    def open(self, source: Source) -> None:
        """Listen, in a separate thread."""
        if self._thread is not None:
            raise ConfigError(f"the health server on {self.url} listens already: each bus needs one of its own")
        protocol_class, config = _protocol(_dated(app_of(source)))
        listening = self._bind()
        self.port = listening.getsockname()[1]
        ready = threading.Event()

        def serve() -> None:
            try:
                asyncio.run(self._serve(listening, protocol_class, config, ready))
            finally:
                ready.set()

        self._thread = threading.Thread(
            target=serve,
            name=f"health on {self.url}",
            daemon=True,  # a process that exits abnormally does not wait for a probe
        )
        self._thread.start()
        ready.wait()

    def _bind(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            return socket.create_server((self.host, self.port), family=family)
        except OSError as error:
            raise ConfigError(_why_not(self.host, self.port, error)) from error

    async def _serve(self, listening: socket.socket, protocol: Any, config: Any, ready: threading.Event) -> None:
        from uvicorn.server import ServerState

        loop = self._loop = asyncio.get_running_loop()
        end = self._end = asyncio.Event()
        state = ServerState()

        def connect() -> asyncio.Protocol:
            return protocol(config=config, server_state=state, app_state={}, _loop=loop)

        async def greet(sock: socket.socket, address: Any) -> None:
            await loop.connect_accepted_socket(connect, sock)

        listening.setblocking(False)
        server = Acceptor([listening], greet, f"health on {self.url}")
        ready.set()
        await end.wait()
        server.close()
        for connection in list(state.connections):
            connection.shutdown()
        if state.tasks:
            await asyncio.wait(state.tasks, timeout=_CLOSING_SECONDS)
        for connection in list(state.connections):
            cast("Any", connection).transport.abort()

    def close(self) -> None:
        """Stop listening, and finish running requests."""
        thread, self._thread = self._thread, None
        if thread is None or self._loop is None or self._end is None:
            return
        self._loop.call_soon_threadsafe(self._end.set)
        thread.join()


def check_library() -> None:
    """Raise ConfigError without uvicorn, with what to install."""
    if importlib.util.find_spec("uvicorn") is None:
        raise ConfigError('health over HTTP needs uvicorn: pip install "eventbus-log[web]"')


def _protocol(app: App) -> tuple[Any, Any]:
    """Return uvicorn's protocol class and configuration."""
    check_library()
    from uvicorn import Config

    config = Config(
        cast("Any", app), lifespan="off", ws="none", access_log=False, log_config=None,
        timeout_keep_alive=_IDLE_SECONDS, limit_concurrency=_MOST_CONNECTIONS,
    )  # fmt: skip
    config.load()
    return config.http_protocol_class, config


def _dated(app: App) -> App:
    """Add the Date header that an HTTP server must send."""

    async def dated(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_dated(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [(b"date", formatdate(time.time(), usegmt=True).encode()), *message["headers"]]
            await send(message)

        await app(scope, receive, send_dated)

    return dated


def _why_not(host: str, port: int, error: OSError) -> str:
    where = host or "this machine"
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} of {where} is in use, by another service perhaps: stop it, or choose another port for health "
            "(0 takes a free one)"
        )
    if error.errno == errno.EACCES:
        return f"port {port} needs privileges: choose one above 1023 for health"
    return f"cannot serve health on {where}, port {port}: {error.strerror or error}"
