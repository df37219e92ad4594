"""A registry's own HTTP server: uvicorn with its documented options."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import ssl
from collections.abc import Generator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

import uvicorn

from eventbus.errors import ConfigError
from eventbus.server.acceptor import bind

if TYPE_CHECKING:
    from schema_registry.http.app import RegistryApp

DEFAULT_PORT = 8081
_CLOSING_S = 5


class HttpServer:
    """Serve an app on one address: ``async with HttpServer(create_app(bus)) as server: server.url``, on asyncio.

    ``limit_concurrency`` (connections) and ``timeout_keep_alive`` (seconds between two requests) are uvicorn's options.
    An address that other machines can reach requires TLS and authentication, or ``insecure=True``; put a reverse proxy
    before it, because uvicorn waits for slow peers without a limit.
    """

    def __init__(
        self,
        app: RegistryApp,
        *,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        tls: ssl.SSLContext | None = None,
        insecure: bool = False,
        limit_concurrency: int = 10_000,
        timeout_keep_alive: int = 60,
    ) -> None:
        if not 0 <= port <= 65_535:
            raise ConfigError(f"port {port} is none: ports end at 65535")
        self.host = host
        self.port = port
        check_reach(host, tls=tls, asks=app.asks_who or (tls is not None and tls.verify_mode == ssl.CERT_REQUIRED),
                    insecure=insecure)  # fmt: skip
        self._is_tls = tls is not None
        # log_level: uvicorn logs a warning for each invalid request, so any client could fill the log.
        self._server = _Server(uvicorn.Config(
            cast("Any", app), http="httptools", ws="none", lifespan="off", access_log=False, log_config=None,
            log_level="error", proxy_headers=False, server_header=False, limit_concurrency=limit_concurrency,
            timeout_keep_alive=timeout_keep_alive, timeout_graceful_shutdown=_CLOSING_S,
            ssl_context_factory=None if tls is None else lambda _config, _default: tls,
        ))  # fmt: skip
        self._serving: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self._is_tls else 'http'}://{host}:{self.port}"

    async def __aenter__(self) -> HttpServer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def start(self) -> None:
        """Listen. Raises ConfigError if the address is not available."""
        try:
            sockets = await bind(self.host or None, self.port, 1024)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ConfigError(
                    f"port {self.port} of {self.host or 'this machine'} is in use, by another registry perhaps: stop "
                    "it, or choose another port (0 takes a free one)"
                ) from error
            raise ConfigError(f"cannot serve a registry on {self.url}: {error.strerror or error}") from error
        self.port = sockets[0].getsockname()[1]
        self._serving = asyncio.create_task(self._server.serve(sockets), name=f"registry on {self.url}")

    async def aclose(self) -> None:
        """Stop listening, let running requests finish, and close every connection."""
        serving, self._serving = self._serving, None
        if serving is not None:
            self._server.should_exit = True
            await asyncio.shield(serving)  # a cancelled program closes the port, too


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals to the program that the registry is a part of."""
        yield


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
