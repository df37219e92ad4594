"""A registry's own HTTP server: uvicorn's protocol on sockets of ours, guarded by deadlines and limits."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
import ssl
import time
from email.utils import formatdate
from types import TracebackType
from typing import Any, cast

from uvicorn import Config
from uvicorn.server import ServerState

from eventbus.errors import ConfigError
from eventbus.server.acceptor import Acceptor, bind
from schema_registry.http.guard import App, Gate, guarded
from schema_registry.http.limits import Limits

DEFAULT_PORT = 8081
_CLOSING_S = 5.0
_LOOK_S = 0.5


class HttpServer:
    """Serve an app on one address: ``async with HttpServer(create_app(bus)) as server: server.url``, on asyncio.

    An address that other machines can reach requires TLS and authentication, or ``insecure=True``.
    """

    def __init__(
        self,
        app: App,
        *,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        tls: ssl.SSLContext | None = None,
        insecure: bool = False,
    ) -> None:
        if not 0 <= port <= 65_535:
            raise ConfigError(f"port {port} is none: ports end at 65535")
        self.host = host
        self.port = port
        self.gate = Gate(app)
        app.gate = self.gate
        self._tls = tls
        self._app = app
        self._state = ServerState()
        self._listening: Acceptor | None = None
        self._watching: asyncio.Task[None] | None = None
        check_reach(host, tls=tls, asks=app.asks_who or (tls is not None and tls.verify_mode == ssl.CERT_REQUIRED),
                    insecure=insecure)  # fmt: skip

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self._tls else 'http'}://{host}:{self.port}"

    async def __aenter__(self) -> HttpServer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def start(self) -> None:
        """Listen. Raises ConfigError if the address is not available."""
        loop = asyncio.get_running_loop()
        limits: Limits = self._app.limits
        config = Config(
            cast("Any", self._app), lifespan="off", ws="none", access_log=False, log_config=None,
            http=guarded(self.gate), timeout_keep_alive=int(limits.idle_s) + 1,
        )  # fmt: skip
        config.load()
        protocol: Any = config.http_protocol_class

        def connect() -> asyncio.Protocol:
            return protocol(config=config, server_state=self._state, app_state={}, _loop=loop)

        try:
            sockets = await bind(self.host or None, self.port, 1024)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ConfigError(
                    f"port {self.port} of {self.host or 'this machine'} is in use, by another registry perhaps: stop "
                    "it, or choose another port (0 takes a free one)"
                ) from error
            raise ConfigError(f"cannot serve a registry on {self.url}: {error.strerror or error}") from error

        async def greet(sock: socket.socket, address: Any) -> None:
            await loop.connect_accepted_socket(
                connect, sock, ssl=self._tls, ssl_handshake_timeout=limits.header_s if self._tls else None
            )

        self.port = sockets[0].getsockname()[1]
        self._listening = Acceptor(sockets, greet, self.url)
        self._watching = asyncio.create_task(self._watch(), name=f"deadlines of {self.url}")

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            date = formatdate(time.time(), usegmt=True).encode()
            self._state.default_headers = [(b"date", date)]
            self.gate.head = b"HTTP/1.1 200 OK\r\ndate: %b\r\n" % date
            self.gate.look(loop.time())
            await asyncio.sleep(_LOOK_S)

    async def aclose(self) -> None:
        """Stop listening, let what is being answered be answered, close every connection."""
        listening, self._listening = self._listening, None
        watching, self._watching = self._watching, None
        if watching:
            watching.cancel()
            await asyncio.wait([watching])
        if listening is None:
            return
        listening.close()
        for connection in list(self.gate.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=_CLOSING_S)
        for connection in list(self.gate.connections):
            connection.transport.abort()


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_reach(host: str, *, tls: ssl.SSLContext | None, asks: bool, insecure: bool) -> None:
    """Raises ConfigError: other machines would reach the registry without TLS, or without saying who they are."""
    if insecure or is_loopback(host) or (tls is not None and asks):
        return
    missing = "TLS and users" if tls is None and not asks else "TLS" if asks else "users"
    raise ConfigError(
        f"a registry on {host or 'every address'} can be reached from other machines, without {missing}: give it a "
        "certificate and users, bind it to 127.0.0.1, or say insecure (--insecure) if everybody there may read and "
        "write schemas"
    )
